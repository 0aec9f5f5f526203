"""Handles what became of the windows of a commit.

Owns the order: the rows of a window are stored or refused, their claims are confirmed, and only then the position moves
past them. Must not know how windows are encoded.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from headrace.reader.blocking_connection import BlockingConnection
from headrace.spark.write.dead_letters import DeadLetters, RefusedRow
from headrace.spark.write.position_keeper import PositionKeeper
from headrace.spark.write.progress_log import EpochRecord
from headrace.spark.write.stored_rows import StoredRows, find_stored_rows
from headrace.spark.write.window_plan import PlannedBlock
from headrace.spark.write.window_sender import SentWindow, WindowResult, WindowSender
from headrace.spark.write.write_target import WriteTarget

if TYPE_CHECKING:
    from headrace.claims.registry import ClaimEntry

#: Windows that are sent ahead of their replies.
_WINDOWS_AHEAD = 2


class ResultHandler:
    """The windows of one commit, from sending to the position."""

    def __init__(
        self,
        connection: BlockingConnection,
        target: WriteTarget,
        record: EpochRecord,
        keeper: PositionKeeper,
        sender: WindowSender,
    ) -> None:
        self._connection = connection
        self._target = target
        self._record = record
        self._keeper = keeper
        self._sender = sender
        self._letters = DeadLetters(target, is_committed=True)
        self._uploader = target.make_claim_uploader()
        # If the position must follow each window, nothing is sent ahead; nor if errors may overtake acknowledgements,
        # or if any row may be refused.
        is_fast = target.is_atomic and not (target.is_volatile or target.refuses_full_subjects)
        self._ahead = _WINDOWS_AHEAD if is_fast else 0
        self._pending: deque[tuple[PlannedBlock, SentWindow]] = deque()
        self._block: PlannedBlock | None = None

    def begin_block(self, block: PlannedBlock, stored: StoredRows) -> None:
        """Take note of the block of the next windows; confirm claims of rows that are stored already."""
        self._block = block
        self._confirm(block, stored.find_seqs(block.number, block.rows.claims))

    def add(self, sent: SentWindow) -> None:
        """Add a window of the block; wait for earlier ones if too many have no reply."""
        assert self._block is not None, "a block begins before its windows"
        self._pending.append((self._block, sent))
        # Windows that still have to be sent, or sent again, must not be overtaken by later ones.
        window = sent.window
        ahead = 0 if window.as_single or sent.is_deferred or window.may_be_refused else self._ahead
        while len(self._pending) > ahead:
            self._settle()

    def drain(self) -> None:
        """Wait for all windows."""
        while self._pending:
            self._settle()

    def _settle(self) -> None:
        block, sent = self._pending[0]
        result = self._sender.receive(sent)
        if result.refused:
            self._refuse(block, sent, result)
        window = sent.window
        if window.needs_seqs:
            self._confirm(block, self._find_seqs(block, sent, result))
        self._pending.popleft()
        self._keeper.advance(window.block, window.row + len(window), result.last_seq)

    def _refuse(self, block: PlannedBlock, sent: SentWindow, result: WindowResult) -> None:
        for row, reason in result.refused:
            place = f"row {sent.window.row + row} of block {block.number} of partition {block.partition}"
            self._letters.refuse(RefusedRow(place, sent.window.columns.get_message(row), reason))

    def _find_seqs(self, block: PlannedBlock, sent: SentWindow, result: WindowResult) -> dict[int, int]:
        """Return the sequences of the window's rows with claims."""
        window = sent.window
        if result.seqs or result.refused:
            return {window.row + row: seq for row, seq in result.seqs.items()}
        with_other_replies = BlockingConnection(self._connection.address)
        try:
            stored = find_stored_rows(with_other_replies, self._target, self._keeper.position)
        finally:
            with_other_replies.close()
        return stored.find_seqs(block.number, range(window.row, window.row + len(window)))

    def _confirm(self, block: PlannedBlock, seqs: Mapping[int, int]) -> None:
        """Record where the references of claims are."""
        claims = {row: claim for row, claim in block.rows.claims.items() if row in seqs}
        if self._uploader is None or not claims:
            return
        from headrace.spark.write.claim_upload import UploadedClaim

        self._uploader.confirm(
            (
                UploadedClaim(row, block.rows.columns.subjects[row].as_py().decode(), _make_entry(claim)),
                self._target.stream,
                seqs[row],
            )
            for row, claim in claims.items()
        )


def _make_entry(fields: dict[str, Any]) -> ClaimEntry:
    from headrace.claims.registry import ClaimEntry

    places = {stream: (int(seq), subject) for stream, (seq, subject) in fields["places"].items()}
    return ClaimEntry(**{**fields, "places": places})
