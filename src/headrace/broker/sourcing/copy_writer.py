"""Stores the messages that a stream copies: what both kinds of copies, mirrors and sources, have in common.

A copy is stored without checking whether a publisher would have been allowed to use its headers, and headers of features
that the stream lacks have no effect. Knows no gaps: messages arrive in order.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from headrace.broker.routing.apply_transform import Transform, make_first_matching
from headrace.broker.sourcing.upstream_requests import StartPosition, Upstream
from headrace.broker.streams import publish_checks
from headrace.jetstream_api.errors import ApiError
from headrace.jetstream_api.times import TTL_INVALID, TTL_NEVER, parse_ttl

if TYPE_CHECKING:
    from headrace.broker.streams.stream_context import StreamContext
    from headrace.storage.sequence_arrays import Seqs

EMPTY_HEADER = b"NATS/1.0\r\n\r\n"
NO_HEADERS: Mapping[bytes, bytes] = {}
#: What a message of a run counts besides header and payload: deliver subject and ack subject.
MESSAGE_OVERHEAD = 100
_SOURCE = b"Nats-Stream-Source"


class CopyWriter(Protocol):
    """Stores what one upstream delivers."""

    @property
    def stored_seq(self) -> int:
        """The newest upstream sequence that is done here."""

    @property
    def received_seq(self) -> int:
        """The newest upstream sequence that arrived; some of it may be held back."""

    @property
    def added_bytes(self) -> int:
        """By how much a copy is larger than the message."""

    @property
    def durable_seq(self) -> int:
        """The newest upstream sequence that is durable with the open frame."""

    @property
    def identity(self) -> str:
        """Distinguishes the upstream from a later stream with the same name; "" if it is not known."""

    def get_start_position(self) -> StartPosition:
        """Return where the upstream has to start."""

    def skip_to(self, seq: int, identity: str) -> None:
        """Skip to `seq`: the upstream will not deliver anything up to it."""

    def reset_identity(self) -> None:
        """Start over: another stream now has the upstream's name."""

    def store(self, seq: int, time_ns: int, subject: bytes, header: bytes, payload: bytes) -> None:
        """Store the next message."""

    def store_plain_run(
        self, view: memoryview, seqs: Seqs, start: int, count_max: int, size_max: int
    ) -> tuple[int, int]:
        """Store the next messages that need no decision in one step; return how many, and their size.

        They are the records of `view` that are in `seqs` from `start` on.
        """

    def flush_incomplete_batch(self, *, idle: bool) -> None:
        """Store an incomplete batch if the upstream has nothing more (`idle`) or sent nothing for long."""

    def rollback(self) -> None:
        """Drop what would not survive a crash; the upstream will deliver it again."""

    def take_over(self, other: CopyWriter) -> None:
        """Take over what the predecessor holds back."""

    def finish(self) -> None:
        """Store what is held back, because it was already acknowledged to the upstream."""


def strip_upstream_headers(header: bytes, *, is_source: bool) -> bytes:
    """Remove headers that were meant for the upstream only; return b"" if none are left."""
    dropped_prefixes: list[bytes] = [b"Nats-Expected-", b"Nats-Batch-"]
    if is_source:
        dropped_prefixes.append(_SOURCE + b":")
    if not any(each in header for each in dropped_prefixes):
        return header
    lines = [line for line in header.split(b"\r\n") if not line.startswith(tuple(dropped_prefixes))]
    block = b"\r\n".join(lines)
    return b"" if block == EMPTY_HEADER else block


class BaseCopyWriter:
    """What both kinds of writers have in common: subjects, headers that are acted on, space."""

    __slots__ = ("_log", "_quota", "_stream", "_subject_transform", "_upstream")

    @property
    def added_bytes(self) -> int:
        return 0

    def __init__(self, stream: StreamContext, upstream: Upstream) -> None:
        self._stream = stream
        self._log = stream.log
        self._quota = stream.quota
        self._upstream = upstream
        self._subject_transform: Transform | None = make_first_matching(upstream.entry.subject_transforms)

    @property
    def _stores_runs(self) -> bool:
        """Whether messages without headers need no decision: neither transforms nor limits apply to each of them."""
        fast_path = self._stream.fast_path
        return self._subject_transform is None and fast_path.enabled and not fast_path.calls_after_append

    def _on_run_stored(self) -> None:
        stream = self._stream
        stream.fast_path.last_message_id = b""
        stream.mark_dirty()

    def _transform_subject(self, subject: bytes) -> bytes:
        if self._subject_transform is not None:
            subject = self._subject_transform(subject) or subject
        return self._stream.transform_subject(subject)

    def _parse_ttl(self, header_map: Mapping[bytes, bytes]) -> int:
        """Return the seconds to live, 0 if invalid; they are stored even if TTLs are enabled only later."""
        value = header_map.get(publish_checks.TTL)
        if not value:
            return 0
        kind, seconds = parse_ttl(value)
        if kind == TTL_INVALID:
            return 0
        if kind == TTL_NEVER:
            return publish_checks.TTL_EXEMPT
        return min(seconds, publish_checks.TTL_SECONDS_MAX)

    def _get_rollup(self, header_map: Mapping[bytes, bytes]) -> bytes:
        config = self._stream.config
        value = header_map.get(publish_checks.ROLLUP, b"").lower()
        return (
            value if value in (b"sub", b"all") and config.allow_rollup_hdrs and not config.deny_purge else b""
        )

    def _check_capacity(self, subject: bytes, header: bytes, payload: bytes, rollup: bytes) -> None:
        """Raise if the stream is full and discards new messages; the copy is retried later."""
        stream = self._stream
        config = stream.config
        if self._quota.is_server_full(config.storage):
            raise ApiError.INSUFFICIENT_RESOURCES()
        if config.discard == "new":
            stream.retention.expire_slice(stream.clock.wall_ns())
            publish_checks.check_discard_new(stream, subject, header, payload, rollup)
