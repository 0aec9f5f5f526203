"""What a sink keeps on record in the stream that it writes to.

Owns the records and who may use them: one of each partition, stored together with the rows that it speaks of, and one of
the epoch that is written as a whole, stored by the driver. Invariants: a record is read from the stream's leader; nobody
goes on from a record of another query; an epoch is called whole only if all that is on record of it belongs to it.
Must not know Spark.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from headrace.spark.chunks import WriteError
from headrace.spark.link import Address, Link
from headrace.spark.streams import StreamError, call, persistently

if TYPE_CHECKING:
    from headrace.spark.depositing import Depositor, Desk

WRONG_SEQUENCE = {10071, 10164}
_NO_MESSAGE = 10037
#: In the header of a record, so that nobody takes it for a message.
MARK = b"Headrace-Progress: spark\r\n"


@dataclass(frozen=True)
class Target:
    """Where a task writes, and as whom. The same task of a repeated epoch has the same name and number.

    `owner` is the id of a streaming query whose records go under a name that it was given.
    """

    address: Address
    api: str
    stream: str
    progress: str
    query: str
    epoch: int
    partition: int
    batch_messages: int = 1000
    reconnect_s: float = 30.0
    desk: Desk | None = None
    owner: str = ""

    @property
    def progress_subject(self) -> str:
        return f"{self.progress}.{self.query}.{self.partition}"

    @property
    def commit_subject(self) -> str:
        return f"{self.progress}.{self.query}.committed"

    @property
    def name(self) -> str:
        """The task, in ids of its messages and claims."""
        return f"{self.owner or self.query}:{self.epoch}:{self.partition}"

    def depositor(self) -> Depositor | None:
        """Who puts large payloads away; None where they stay in their messages."""
        if self.desk is None:
            return None
        from headrace.spark.depositing import Depositor

        return Depositor(self.desk, self.name)


@dataclass(frozen=True)
class Progress:
    """How far the task of a partition has come: in which epoch, how many rows, and what they were."""

    seq: int = 0
    epoch: int = -1
    rows: int = 0
    crc: int = 0
    owner: str = ""

    def encode(self) -> bytes:
        """The record without its sequence, which the server gives."""
        facts = {"epoch": self.epoch, "rows": self.rows, "crc": self.crc}
        return json.dumps({**facts, "owner": self.owner} if self.owner else facts).encode()


def recall(link: Link, target: Target) -> Progress:
    """What is on record of the target's partition."""
    return _read(link, target, target.progress_subject)


def committed(link: Link, target: Target) -> Progress:
    """The last epoch of the target's query that is written as a whole."""
    return _read(link, target, target.commit_subject)


def _read(link: Link, target: Target, subject: str) -> Progress:
    """A record; read from the stream's leader, never from a copy."""
    api, wanted = _question(target, subject)
    return _understood(link.request(api, wanted).payload, target, subject)


def _question(target: Target, subject: str) -> tuple[str, dict[str, str]]:
    return f"{target.api}.STREAM.MSG.GET.{target.stream}", {"last_by_subj": subject}


def _understood(payload: bytes, target: Target, subject: str) -> Progress:
    answer = json.loads(payload)
    if "error" in answer:
        if answer["error"].get("err_code") == _NO_MESSAGE:
            return Progress()
        raise StreamError(f"the progress on {subject} cannot be read: {answer['error']}")
    message = answer["message"]
    found = Progress(seq=message["seq"], **json.loads(base64.b64decode(message["data"])))
    _check_owner(found, target)
    return found


def _check_owner(found: Progress, target: Target) -> None:
    """Records of earlier versions do not say whose they are; one that is ahead of a named query is not its own."""
    is_others = (
        found.owner != target.owner if found.owner else bool(target.owner) and found.epoch > target.epoch
    )
    if is_others:
        raise WriteError(
            f"what is on record under writeId {target.query!r} is of another query, which has come to epoch "
            f"{found.epoch}, and this one begins anew at {target.epoch}: its rows would be taken for written. Go on from "
            "the checkpoint of that query, or give this one a `writeId` of its own, or none"
        )


def commit(target: Target, partitions: int) -> None:
    """All tasks of an epoch are done, so many; from now on a repetition of it has nothing to do."""
    persistently(target.address, target.reconnect_s, lambda link: _commit(link, target, partitions))


def _commit(link: Link, target: Target, partitions: int) -> None:
    while True:
        found = committed(link, target)
        if found.epoch >= target.epoch:
            return
        check_division(link, target, partitions)
        made = replace(found, epoch=target.epoch, owner=target.owner)
        answer = _publish(link, target.commit_subject, made.encode(), found.seq)
        error = answer.get("error")
        if error is None:
            return
        if error.get("err_code") not in WRONG_SEQUENCE:
            raise WriteError(f"stream {target.stream!r} refuses the record of epoch {target.epoch}: {error}")


def check_division(link: Link, target: Target, partitions: int) -> None:
    """Refuse an epoch of which an earlier attempt wrote a partition that this one does not have.

    A task sees what its own partition has on record, and nobody tells it how many there are; the driver knows at the end.
    """
    missing = [partition for partition in _recorded(link, target) if partition >= partitions]
    for partition, done in _recall_all(link, target, missing):
        if done.epoch == target.epoch:
            raise WriteError(
                f"epoch {target.epoch} of {target.query} has {partitions} partitions now, and an earlier attempt wrote "
                f"{done.rows} rows as partition {partition}: they are in stream {target.stream!r} twice, or are wanted no "
                "more. Writing once needs the same partitions when an epoch is repeated: keep their number, with "
                "repartition or minPartitions. To go on with what is there, purge subject "
                f"{target.progress}.{target.query}.{partition} and start again"
            )


def _recall_all(link: Link, target: Target, partitions: list[int]) -> Iterator[tuple[int, Progress]]:
    """What is on record of some partitions; asked at once, for a query may have had a thousand."""
    places = {link.new_inbox(): replace(target, partition=partition) for partition in partitions}
    asked = bytearray()
    for inbox, place in places.items():
        api, wanted = _question(target, place.progress_subject)
        body = json.dumps(wanted).encode()
        asked += b"PUB %s %s %d\r\n%s\r\n" % (api.encode(), inbox, len(body), body)
    if places:
        link.send(asked)
    while places:
        frame = next(link.frames(link.address.timeout_s, f"what is on record in stream {target.stream!r}"))
        found = places.pop(frame.subject, None)
        if found is not None:
            yield found.partition, _understood(frame.payload, found, found.progress_subject)


def _recorded(link: Link, target: Target) -> list[int]:
    """The partitions that have records, of whatever epoch."""
    wanted = {"subjects_filter": f"{target.progress}.{target.query}.*"}
    state = call(link, f"{target.api}.STREAM.INFO.{target.stream}", wanted)["state"]
    names = (subject.rpartition(".")[2] for subject in state.get("subjects") or ())
    return sorted(int(name) for name in names if name.isdigit())


def _publish(link: Link, subject: str, payload: bytes, expected: int) -> dict[str, Any]:
    """Store a record if its predecessor has this sequence."""
    header = b"NATS/1.0\r\n%sNats-Expected-Last-Subject-Sequence: %d\r\n\r\n" % (MARK, expected)
    reply, size = link.new_inbox(), len(header)
    line = (subject.encode(), reply, size, size + len(payload), header, payload)
    link.send(b"HPUB %s %s %d %d\r\n%s%s\r\n" % line)
    answer: dict[str, Any] = json.loads(link.answer(reply, subject).payload)
    return answer
