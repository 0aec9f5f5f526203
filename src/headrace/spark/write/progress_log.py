"""The records of a sink's progress, in a stream of their own beside the target.

Owns the two records of a query and the rules for replacing them: the last committed epoch with the attempts that count,
and how far it is published. Invariants: records are read from the stream's leader; a record is stored only if its
predecessor is the one that its writer read; a query never continues from the record of another query. Must not know
Spark. See ADR 59.
"""

from __future__ import annotations

import base64
import json
import os
import zlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from headrace.reader.blocking_connection import BlockingConnection
from headrace.reader.stream_admin import refuse
from headrace.spark.write.acks import describe_error, parse_reply
from headrace.spark.write.write_batches import HEADERS_ADDED, WriteError
from headrace.spark.write.write_target import WriteTarget

COMMITTED = "committed"
DONE = "done"
#: Committed, but the staged rows are gone: the epoch must be staged again.
LOST = "lost"
_WRONG_SEQUENCE = {10071, 10164}
_NO_MESSAGE = 10037
_STREAM_NOT_FOUND = 10059


@dataclass(frozen=True)
class StagedAttempt:
    """A task attempt that counts, and where its blocks are: for each block the references of its parts.

    The list of many blocks is staged, too, so that a record stays small; then `index` refers to it.
    """

    partition: int
    attempt: str
    blocks: list[list[int]]
    rows: int
    index: Sequence[int] = ()
    indexed_blocks: int = 0

    @property
    def block_count(self) -> int:
        return self.indexed_blocks or len(self.blocks)


@dataclass(frozen=True)
class EpochRecord:
    """The last committed epoch. `target_seq` is the last sequence of the target before it was published."""

    epoch: int = -1
    state: str = ""
    commit_id: str = ""
    owner: str = ""
    target_seq: int = 0
    attempts: Sequence[StagedAttempt] = ()
    #: Number of rows of the epoch, including refused ones; -1 if it is not known.
    rows: int = -1
    #: Earlier commits of the epoch whose staged rows were lost, and the last sequence of the target before them.
    lost_ids: Sequence[str] = ()
    lost_seq: int = 0
    #: Sequence of the record itself.
    seq: int = 0

    def decides(self, epoch: int) -> bool:
        """Return whether rows of an epoch that are staged now cannot count any more."""
        return self.epoch > epoch or (self.epoch == epoch and self.state != LOST)

    def is_done(self, epoch: int) -> bool:
        return self.epoch > epoch or (self.epoch == epoch and self.state == DONE)


@dataclass(frozen=True)
class Position:
    """How far an epoch is published: all rows before `row` of block number `block` are in the target.

    Later rows of the epoch have sequences above `target_seq`. `driver` is the process that stored the record.
    """

    commit_id: str = ""
    block: int = 0
    row: int = 0
    target_seq: int = 0
    driver: str = ""
    seq: int = 0


def make_id() -> str:
    """Return a new random id that is valid in subjects and headers."""
    return base64.b32encode(os.urandom(10)).decode().lower()


class ProgressLog:
    """Loads and stores the records of one query over a connection."""

    def __init__(self, target: WriteTarget, connection: BlockingConnection) -> None:
        self._target = target
        self._connection = connection

    def load_epoch(self) -> EpochRecord:
        """Return the last committed epoch; one with number -1 if there is none."""
        seq, fields = self._load(self._target.epoch_subject)
        attempts = [StagedAttempt(**each) for each in fields.pop("attempts", ())]
        found = EpochRecord(**fields, attempts=attempts, seq=seq)
        self._check_owner(found)
        return found

    def store_epoch(self, record: EpochRecord) -> EpochRecord | None:
        """Replace the record that has the sequence `record.seq`; return None if another was stored meanwhile."""
        seq = self._store(self._target.epoch_subject, asdict(record), record.seq)
        return replace(record, seq=seq) if seq else None

    def load_position(self) -> Position:
        """Return how far the epoch is published; an empty position if nothing is known."""
        seq, fields = self._load(self._target.position_subject)
        return Position(**fields, seq=seq)

    def store_position(self, position: Position) -> Position:
        """Replace the position; raise WriteError if another driver publishes the epoch."""
        while True:
            seq = self._store(self._target.position_subject, asdict(position), position.seq)
            if seq:
                return replace(position, seq=seq)
            found = self.load_position()
            if (found.commit_id, found.driver) != (position.commit_id, position.driver):
                raise WriteError(
                    f"another driver publishes the rows of {self._target.query} to stream {self._target.stream!r}; this "
                    "one stops. Run a query only once at a time"
                )
            # It is this one, or an earlier one of this driver that was stored after its connection broke.
            if replace(found, seq=0) == replace(position, seq=0):
                return found
            position = replace(position, seq=found.seq)

    def _load(self, subject: str) -> tuple[int, dict[str, Any]]:
        target = self._target
        api_subject = f"{target.api_prefix}.STREAM.MSG.GET.{target.progress_stream}"
        response = json.loads(self._connection.request(api_subject, {"last_by_subj": subject}).payload)
        error = response.get("error")
        if error is not None:
            if error.get("err_code") in (_NO_MESSAGE, _STREAM_NOT_FOUND):
                return 0, {}
            raise refuse(error, f"the progress on {subject} cannot be read")
        message = response["message"]
        return int(message["seq"]), json.loads(zlib.decompress(base64.b64decode(message["data"])))

    def _store(self, subject: str, fields: dict[str, Any], expected: int) -> int:
        """Store a record if its predecessor has this sequence; return its sequence, 0 if it has another."""
        del fields["seq"]
        payload = zlib.compress(json.dumps(fields).encode(), 1)
        limit = int(self._connection.server_info.get("max_payload", 1 << 20)) - HEADERS_ADDED
        if len(payload) > limit:
            raise WriteError(
                f"the record of epoch {self._target.epoch} of {self._target.query} has {len(payload)} bytes, and the server "
                f"accepts {limit}; nothing was published. Use fewer partitions, or raise max_payload"
            )
        header = b"NATS/1.0\r\nNats-Expected-Last-Subject-Sequence: %d\r\n\r\n" % expected
        inbox, size = self._connection.new_inbox(), len(header)
        line = (subject.encode(), inbox, size, size + len(payload), header, payload)
        self._connection.send(b"HPUB %s %s %d %d\r\n%s%s\r\n" % line)
        reply = parse_reply(self._connection.receive_reply(inbox, subject))
        error = reply.get("error")
        if error is None:
            return int(reply["seq"])
        if error.get("err_code") in _WRONG_SEQUENCE:
            return 0
        raise WriteError(
            f"stream {self._target.progress_stream!r} rejected a progress record: {describe_error(error)}"
        )

    def _check_owner(self, found: EpochRecord) -> None:
        if found.epoch >= 0 and found.owner != self._target.owner:
            raise WriteError(make_foreign_text(self._target, found.epoch))


def make_foreign_text(target: WriteTarget, epoch: int) -> str:
    """Return the error of a query under a name that another query has used."""
    return (
        f"writeId {target.query!r} belongs to another query, which has written epoch {epoch}; this query is at epoch "
        f"{target.epoch}, and its rows would count as already written. Continue from the checkpoint of the other query, or "
        "use another `writeId`, or none"
    )
