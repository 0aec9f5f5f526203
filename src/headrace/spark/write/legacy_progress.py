"""Progress messages of earlier versions, which stored them in the target.

Owns reading them, so that a query that an earlier version interrupted continues. A record of a partition is the last
message of an atomic batch with the rows that it covers; `committed` records that an epoch is complete. Nothing here is
written. Invariant: only records of the query's own epoch count. Must not know Spark. See ADRs 58 and 59.
"""

from __future__ import annotations

import base64
import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

from headrace.reader.blocking_connection import BlockingConnection
from headrace.reader.direct_get_decode import StoredMessage
from headrace.reader.leader_reader import LeaderReader
from headrace.reader.stream_admin import call_leader, refuse, with_retry
from headrace.spark.write.encode_rows import find_header
from headrace.spark.write.progress_log import make_foreign_text
from headrace.spark.write.row_digests import digest_message
from headrace.spark.write.stored_rows import BATCH_ID, BATCH_SEQUENCE, MSG_ID, iter_target, make_options
from headrace.spark.write.write_batches import WriteError
from headrace.spark.write.write_target import WriteTarget

_NO_MESSAGE = 10037


def load_legacy_epoch(target: WriteTarget) -> int:
    """Return the last epoch that an earlier version wrote completely; -1 if there is none."""
    found = with_retry(
        target.address,
        target.reconnect_s,
        lambda connection: _load_last(connection, target, f"{target.legacy_prefix}.{target.query}.committed"),
    )
    if found is None:
        return -1
    return _check_record(found, target)


def count_legacy_rows(connection: BlockingConnection, target: WriteTarget) -> Counter[bytes]:
    """Return the rows of the target's epoch that an earlier version stored: digest -> number."""
    if target.legacy_prefix:
        return _count_recorded_rows(connection, target)
    if target.may_have_legacy_ids:
        return _count_rows_with_ids(connection, target)
    return Counter()


def _count_recorded_rows(connection: BlockingConnection, target: WriteTarget) -> Counter[bytes]:
    rows: Counter[bytes] = Counter()
    prefix = f"{target.legacy_prefix}.{target.query}."
    api_subject = f"{target.api_prefix}.STREAM.INFO.{target.stream}"
    state = call_leader(connection, api_subject, {"subjects_filter": f"{prefix}*"})["state"]
    for subject in state.get("subjects") or ():
        if not subject.removeprefix(prefix).isdigit():
            continue
        for record in _iter_messages(connection, target, subject):
            if _check_record(json.loads(record.payload), target) == target.epoch:
                rows.update(_digest_batch(connection, target, record))
    return rows


def _digest_batch(
    connection: BlockingConnection, target: WriteTarget, record: StoredMessage
) -> Iterator[bytes]:
    """Yield the digests of the rows that were stored together with a record."""
    batch = find_header(record.header, BATCH_ID)
    size = int(find_header(record.header, BATCH_SEQUENCE) or b"1") - 1
    for message in iter_target(connection, target, record.seq - size - 1, record.seq):
        if batch is not None and find_header(message.header, BATCH_ID) == batch:
            yield digest_message(message.subject, message.header, message.payload)


def _count_rows_with_ids(connection: BlockingConnection, target: WriteTarget) -> Counter[bytes]:
    """Count rows with ids of an earlier version, which are made of the query, epoch, partition and row.

    It wrote no records. Beyond the duplicate window, it would have written such rows twice, too.
    """
    rows: Counter[bytes] = Counter()
    mark = f"{target.owner or target.query}:{target.epoch}:".encode()
    after = _find_seq_before(connection, target, target.duplicate_window_s)
    for message in iter_target(connection, target, after):
        if (find_header(message.header, MSG_ID) or b"").startswith(mark):
            rows[digest_message(message.subject, message.header, message.payload)] += 1
    return rows


def _find_seq_before(connection: BlockingConnection, target: WriteTarget, age_s: float) -> int:
    """Return the last sequence of the target that is older than `age_s`; the server's clock decides."""
    leader = LeaderReader(make_options(target), connection)
    last = leader.last_seq()
    newest = leader.read(last, last + 1, 1)[0] if last else []
    if not newest:
        return 0
    low, high = 0, last
    limit_ns = newest[0].time_ns - int(age_s * 1e9)
    while low < high:
        middle = (low + high) // 2
        seq = leader.next_seq(middle + 1)
        found = leader.read(seq, seq + 1, 1)[0] if seq else []
        if found and found[0].time_ns < limit_ns:
            low = middle + 1
        else:
            high = middle
    return low


def _check_record(fields: dict[str, Any], target: WriteTarget) -> int:
    """Return the epoch of a record; raise WriteError if it belongs to another query.

    Old records have no owner; one that is ahead of a named query is not its own.
    """
    epoch, owner = int(fields.get("epoch", -1)), fields.get("owner", "")
    if owner != target.owner if owner else bool(target.owner) and epoch > target.epoch:
        raise WriteError(make_foreign_text(target, epoch))
    return epoch


def _load_last(connection: BlockingConnection, target: WriteTarget, subject: str) -> dict[str, Any] | None:
    """Load the last record of a subject."""
    api_subject = f"{target.api_prefix}.STREAM.MSG.GET.{target.stream}"
    response = json.loads(connection.request(api_subject, {"last_by_subj": subject}).payload)
    error = response.get("error")
    if error is None:
        fields: dict[str, Any] = json.loads(base64.b64decode(response["message"]["data"]))
        return fields
    if error.get("err_code") == _NO_MESSAGE:
        return None
    raise refuse(error, f"the progress on {subject} cannot be read")


def _iter_messages(
    connection: BlockingConnection, target: WriteTarget, subject: str
) -> Iterator[StoredMessage]:
    """Yield the messages of a subject."""
    leader = LeaderReader(make_options(target, subject), connection)
    end = leader.last_seq() + 1
    start = leader.next_seq(1)
    while start and start < end:
        messages, _ = leader.read(start, start + 1, 1)
        yield from messages
        start = leader.next_seq(start + 1)
