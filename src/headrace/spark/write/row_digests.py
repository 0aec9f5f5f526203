"""Digests of rows, to recognise a row by its content wherever it is.

Owns what counts as content: subject, payload and the row's own headers, without those that publishers add. The payload
of a claim's reference is its claim's id, because the rest differs from attempt to attempt. Must not know streams.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from hashlib import blake2b

from headrace.claims import reference as references
from headrace.spark.write.encode_rows import MessageColumns, find_header

_DIGEST_BYTES = 16
#: Headers that publishers add: ids, batches, TTLs of claims.
_ADDED = (b"nats-", b"headrace-row:", b"nats/1.0")


def digest_message(subject: bytes, header: bytes, payload: bytes) -> bytes:
    """Return the digest of a message; `header` may begin with the status line."""
    lines = [line for line in header.split(b"\r\n") if line and not line.lower().startswith(_ADDED)]
    if find_header(header, references.CLAIM_HEADER.encode()) is not None:
        payload = _get_claim_digest(payload)
    digest = blake2b(digest_size=_DIGEST_BYTES)
    for part in (subject, b"\r\n".join(lines), payload):
        digest.update(b"%d " % len(part))
        digest.update(part)
    return digest.digest()


def _get_claim_digest(payload: bytes) -> bytes:
    """Return what identifies the payload of a claim: its checksum."""
    try:
        found = json.loads(payload)
        return str(found["checksum"]).encode()
    except (ValueError, TypeError, KeyError):
        return payload


def drop_counted_rows(
    columns: MessageColumns, counted: Counter[bytes], get_stored_subject: Callable[[bytes], bytes]
) -> list[int]:
    """Return the rows that are not among the counted ones, and subtract the others from these."""
    rest = []
    for row in range(len(columns)):
        subject, header_lines, payload = columns.get_message(row)
        digest = digest_message(get_stored_subject(subject), header_lines, payload)
        if counted[digest] > 0:
            counted[digest] -= 1
        else:
            rest.append(row)
    return rest
