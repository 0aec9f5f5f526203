"""Fingerprints of messages: they recognise a stream by its content, wherever it is stored.

A mirror or a restored stream has another creation time than the stream it was made from, and maybe another name, but the
same messages under the same sequences. Owns the comparison. Invariant: streams count as the same only if a message that
both have is equal in sequence, time to the nanosecond, and payload. Subjects and headers do not count, because a mirror
may change them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from hashlib import blake2b

from headrace.reader.direct_get_decode import StoredMessage

_DIGEST_BYTES = 12
_TEXT = re.compile(r"(\d+):(\d+):([0-9a-f]+)")
#: Returns the first message from a sequence on; None if there is none.
FindMessage = Callable[[int], StoredMessage | None]


@dataclass(frozen=True)
class Fingerprint:
    """A message of a stream: its sequence, its time, and a digest of its payload."""

    seq: int
    time_ns: int
    digest: str

    @classmethod
    def of(cls, message: StoredMessage) -> Fingerprint:
        digest = blake2b(message.payload, digest_size=_DIGEST_BYTES).hexdigest()
        return cls(message.seq, message.time_ns, digest)

    @classmethod
    def parse(cls, text: str) -> Fingerprint:
        found = _TEXT.fullmatch(text)
        if found is None:
            raise ValueError(f"{text!r} is not a fingerprint of a message")
        return cls(int(found[1]), int(found[2]), found[3])

    def __str__(self) -> str:
        return f"{self.seq}:{self.time_ns}:{self.digest}"


def take_fingerprints(find_message: FindMessage, seqs: Iterable[int]) -> tuple[Fingerprint, ...]:
    """Return the fingerprints of the first messages from these sequences on."""
    found = (find_message(seq) for seq in sorted(set(seqs)))
    return tuple({Fingerprint.of(message): None for message in found if message is not None})


def has_same_content(fingerprints: Iterable[Fingerprint], find_message: FindMessage) -> bool | None:
    """Return whether the stream has these messages: False if one differs, None if all of them are gone."""
    result = None
    for each in fingerprints:
        message = find_message(each.seq)
        if message is None or message.seq != each.seq:
            continue
        if Fingerprint.of(message) != each:
            return False
        result = True
    return result
