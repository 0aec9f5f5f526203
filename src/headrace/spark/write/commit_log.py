"""Commit log of a sink, stored in the stream that it writes to.

Owns the records and the rules for using them: one record per partition, stored together with the rows that it covers,
and one record per completely written epoch, stored by the driver. Invariants: a record is read from the stream's
leader; a query never continues from the record of another query; an epoch is complete only if all its records belong to
it. Must not know Spark. See ADR 58.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from headrace.reader.blocking_connection import BlockingConnection, ServerAddress
from headrace.reader.stream_admin import StreamError, call_api, with_retry
from headrace.spark.write.write_batches import WriteError

if TYPE_CHECKING:
    from headrace.spark.write.claim_upload import ClaimUploadConfig, ClaimUploader

WRONG_SEQUENCE = {10071, 10164}
_NO_MESSAGE = 10037
#: Header of a record, so that it is not mistaken for a message.
PROGRESS_HEADER = b"Headrace-Progress: spark\r\n"


@dataclass(frozen=True)
class WriteTarget:
    """Where a task writes, and its identity. The same task of a repeated epoch has the same name and number.

    `owner` is the id of a streaming query whose records are stored under a user-given name.
    """

    address: ServerAddress
    api_prefix: str
    stream: str
    progress_prefix: str
    query: str
    epoch: int
    partition: int
    batch_messages: int = 1000
    reconnect_s: float = 30.0
    claim_upload: ClaimUploadConfig | None = None
    owner: str = ""

    @property
    def progress_subject(self) -> str:
        return f"{self.progress_prefix}.{self.query}.{self.partition}"

    @property
    def commit_subject(self) -> str:
        return f"{self.progress_prefix}.{self.query}.committed"

    @property
    def task_id(self) -> str:
        """Id of the task, used in the ids of its messages and claims."""
        return f"{self.owner or self.query}:{self.epoch}:{self.partition}"

    def make_claim_uploader(self) -> ClaimUploader | None:
        """Return the uploader for large payloads; None if they stay in their messages."""
        if self.claim_upload is None:
            return None
        from headrace.spark.write.claim_upload import ClaimUploader

        return ClaimUploader(self.claim_upload, self.task_id)


@dataclass(frozen=True)
class PartitionProgress:
    """Progress of a partition's task: epoch, number of rows, and their checksum."""

    seq: int = 0
    epoch: int = -1
    rows: int = 0
    crc: int = 0
    owner: str = ""

    def encode(self) -> bytes:
        """Encode the record without its sequence, which the server assigns."""
        fields = {"epoch": self.epoch, "rows": self.rows, "crc": self.crc}
        return json.dumps({**fields, "owner": self.owner} if self.owner else fields).encode()


def load_progress(connection: BlockingConnection, target: WriteTarget) -> PartitionProgress:
    """Load the record of the target's partition."""
    return _load(connection, target, target.progress_subject)


def load_committed_epoch(connection: BlockingConnection, target: WriteTarget) -> PartitionProgress:
    """Load the last completely written epoch of the target's query."""
    return _load(connection, target, target.commit_subject)


def _load(connection: BlockingConnection, target: WriteTarget, subject: str) -> PartitionProgress:
    """Load a record, from the stream's leader and never from a copy."""
    api_subject, request = _make_request(target, subject)
    return _parse_progress(connection.request(api_subject, request).payload, target, subject)


def _make_request(target: WriteTarget, subject: str) -> tuple[str, dict[str, str]]:
    return f"{target.api_prefix}.STREAM.MSG.GET.{target.stream}", {"last_by_subj": subject}


def _parse_progress(payload: bytes, target: WriteTarget, subject: str) -> PartitionProgress:
    response = json.loads(payload)
    if "error" in response:
        if response["error"].get("err_code") == _NO_MESSAGE:
            return PartitionProgress()
        raise StreamError(f"the progress on {subject} cannot be read: {response['error']}")
    message = response["message"]
    found = PartitionProgress(seq=message["seq"], **json.loads(base64.b64decode(message["data"])))
    _check_owner(found, target)
    return found


def _check_owner(found: PartitionProgress, target: WriteTarget) -> None:
    """Raise WriteError if a record belongs to another query.

    Records of earlier versions have no owner; one that is ahead of a named query is not its own.
    """
    is_foreign = (
        found.owner != target.owner if found.owner else bool(target.owner) and found.epoch > target.epoch
    )
    if is_foreign:
        raise WriteError(
            f"writeId {target.query!r} belongs to another query, which has written epoch {found.epoch}; this query is at "
            f"epoch {target.epoch}, and its rows would count as already written. Continue from the checkpoint of the other "
            "query, or use another `writeId`, or none"
        )


def commit_epoch(target: WriteTarget, partitions: int) -> None:
    """Record that all `partitions` tasks of an epoch are done; from now on a repetition has nothing to do."""
    with_retry(
        target.address, target.reconnect_s, lambda connection: _commit_epoch(connection, target, partitions)
    )


def _commit_epoch(connection: BlockingConnection, target: WriteTarget, partitions: int) -> None:
    while True:
        found = load_committed_epoch(connection, target)
        if found.epoch >= target.epoch:
            return
        check_partitions(connection, target, partitions)
        record = replace(found, epoch=target.epoch, owner=target.owner)
        response = _publish_record(connection, target.commit_subject, record.encode(), found.seq)
        error = response.get("error")
        if error is None:
            return
        if error.get("err_code") not in WRONG_SEQUENCE:
            raise WriteError(f"stream {target.stream!r} rejected the record of epoch {target.epoch}: {error}")


def check_partitions(connection: BlockingConnection, target: WriteTarget, partitions: int) -> None:
    """Reject an epoch if an earlier attempt wrote a partition that this one does not have.

    A task sees only the record of its own partition and does not know their number; the driver knows it at the end.
    """
    removed_partitions = [
        partition for partition in _list_recorded_partitions(connection, target) if partition >= partitions
    ]
    for partition, progress in _load_partitions(connection, target, removed_partitions):
        if progress.epoch == target.epoch:
            raise WriteError(
                f"epoch {target.epoch} of {target.query} has {partitions} partitions now, and an earlier attempt wrote "
                f"{progress.rows} rows as partition {partition}: stream {target.stream!r} contains them twice, or they no "
                "longer belong to the epoch. Exactly-once writes need the same partitions when an epoch is repeated: keep "
                "their number with repartition or minPartitions. To continue with the stream as it is, purge subject "
                f"{target.progress_prefix}.{target.query}.{partition} and start again"
            )


def _load_partitions(
    connection: BlockingConnection, target: WriteTarget, partitions: list[int]
) -> Iterator[tuple[int, PartitionProgress]]:
    """Load the records of some partitions, all at once, because a query may have had a thousand."""
    pending_targets = {
        connection.new_inbox(): replace(target, partition=partition) for partition in partitions
    }
    requests = bytearray()
    for inbox, partition_target in pending_targets.items():
        api_subject, request = _make_request(target, partition_target.progress_subject)
        body = json.dumps(request).encode()
        requests += b"PUB %s %s %d\r\n%s\r\n" % (api_subject.encode(), inbox, len(body), body)
    if pending_targets:
        connection.send(requests)
    while pending_targets:
        message = next(
            connection.iter_messages(
                connection.address.timeout_s, f"progress records in stream {target.stream!r}"
            )
        )
        found = pending_targets.pop(message.subject, None)
        if found is not None:
            yield found.partition, _parse_progress(message.payload, found, found.progress_subject)


def _list_recorded_partitions(connection: BlockingConnection, target: WriteTarget) -> list[int]:
    """Return the partitions that have records, of any epoch."""
    request = {"subjects_filter": f"{target.progress_prefix}.{target.query}.*"}
    state = call_api(connection, f"{target.api_prefix}.STREAM.INFO.{target.stream}", request)["state"]
    names = (subject.rpartition(".")[2] for subject in state.get("subjects") or ())
    return sorted(int(name) for name in names if name.isdigit())


def _publish_record(
    connection: BlockingConnection, subject: str, payload: bytes, expected: int
) -> dict[str, Any]:
    """Store a record if its predecessor has this sequence."""
    header = b"NATS/1.0\r\n%sNats-Expected-Last-Subject-Sequence: %d\r\n\r\n" % (PROGRESS_HEADER, expected)
    reply, size = connection.new_inbox(), len(header)
    line = (subject.encode(), reply, size, size + len(payload), header, payload)
    connection.send(b"HPUB %s %s %d %d\r\n%s%s\r\n" % line)
    response: dict[str, Any] = json.loads(connection.receive_reply(reply, subject).payload)
    return response
