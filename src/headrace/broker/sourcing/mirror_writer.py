"""Stores the messages of a mirror: the same messages, with the sequences and times of the upstream.

Messages that the upstream did not deliver count as deleted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.broker.sourcing.copy_writer import (
    MESSAGE_OVERHEAD,
    NO_HEADERS,
    BaseCopyWriter,
    CopyWriter,
    strip_upstream_headers,
)
from headrace.broker.sourcing.upstream_requests import StartPosition
from headrace.broker.streams import publish_checks

if TYPE_CHECKING:
    from headrace.storage.sequence_arrays import Seqs


class MirrorWriter(BaseCopyWriter):
    """Keeps a stream identical to its upstream. `stored_seq` is the newest sequence that is done here."""

    __slots__ = ()

    @property
    def stored_seq(self) -> int:
        return self._log.last_seq

    @property
    def received_seq(self) -> int:
        return self._log.last_seq

    @property
    def durable_seq(self) -> int:
        """The newest sequence that is durable with the open frame."""
        return self._log.last_seq

    @property
    def identity(self) -> str:
        return ""

    def get_start_position(self) -> StartPosition:
        """Return where the upstream has to start."""
        last = self._log.last_seq
        return StartPosition(last + 1) if last else self._upstream.get_configured_start()

    def skip_to(self, seq: int, identity: str) -> None:
        """Skip to `seq`: the upstream will not deliver anything up to it."""
        if seq > self._log.last_seq:
            self._log.advance(seq)
            self._stream.mark_dirty()

    def reset_identity(self) -> None:
        """Do nothing: a mirror follows the sequences of a new upstream with the same name."""

    def store(self, seq: int, time_ns: int, subject: bytes, header: bytes, payload: bytes) -> None:
        """Store the next message."""
        stream, log = self._stream, self._log
        if (
            not header
            and self._subject_transform is None
            and stream.fast_path.enabled
            and seq == log.last_seq + 1
        ):
            self._store_plain(seq, time_ns, subject, payload)
            return
        header_map = NO_HEADERS
        if header:
            header = strip_upstream_headers(header, is_source=False)
            header_map = publish_checks.parse_nats_headers(header)
        subject = self._transform_subject(subject)
        rollup, ttl_s = (
            (self._get_rollup(header_map), self._parse_ttl(header_map)) if header_map else (b"", 0)
        )
        self._check_capacity(subject, header, payload, rollup)
        if seq > log.last_seq + 1:
            log.advance(seq - 1)
        if not stream.retention.has_interest(subject):
            log.advance(seq)
            stream.apply_side_effects(subject, rollup, header_map)
        else:
            stream.store(
                subject, header, payload, time_ns, ttl_s, header_map.get(publish_checks.MSG_ID, b""), rollup
            )
        stream.mark_dirty()

    def store_plain_run(
        self, view: memoryview, seqs: Seqs, start: int, count_max: int, size_max: int
    ) -> tuple[int, int]:
        """Store the next messages that need no decision in one step; return how many, and their size."""
        if not self._stores_runs:
            return 0, 0
        count, size = self._log.append_copies(view, seqs, start, count_max, size_max, MESSAGE_OVERHEAD)
        if count:
            self._on_run_stored()
        return count, size

    def _store_plain(self, seq: int, time_ns: int, subject: bytes, payload: bytes) -> None:
        """Store the next message without any checks, on a stream whose fast path is enabled."""
        stream = self._stream
        fast_path = stream.fast_path
        self._log.append(subject, b"", payload, time_ns)
        fast_path.last_message_id = b""
        if fast_path.calls_after_append:
            stream.retention.after_append(subject, seq, time_ns, 0)
        stream.mark_dirty()

    def flush_incomplete_batch(self, *, idle: bool) -> None:
        """Do nothing: a mirror holds nothing back."""

    def rollback(self) -> None:
        """Do nothing: a mirror holds nothing back."""

    def take_over(self, other: CopyWriter) -> None:
        """Do nothing: a mirror holds nothing back."""

    def finish(self) -> None:
        """Do nothing: a mirror holds nothing back."""
