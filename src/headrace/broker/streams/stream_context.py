"""What the parts of a stream may use of it: configuration, log, and the operations that store and remove messages.

Owns no behaviour. `Stream` implements it; parts name this protocol instead, so that none of them depends on the module
that puts all of them together. See ADR 18.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from headrace._native import AccountClock, PublishFastPath
from headrace.broker.commit.account_quota import AccountQuota
from headrace.broker.commit.group_commit import GroupCommit
from headrace.broker.commit.jetstream_context import JetStreamContext
from headrace.broker.streams.dedup import StreamDedupWindow
from headrace.jetstream_api.configs import StreamConfig
from headrace.storage import StreamLog


class RemovalContext(Protocol):
    """Removes messages: limits, ages, purges, interest."""

    def has_interest(self, subject: bytes) -> bool:
        """Return whether a message would be kept."""

    def enforce(self) -> None:
        """Apply limits and ages that are due."""

    def after_append(self, subject: bytes, seq: int, time_ns: int, ttl_s: int) -> None:
        """Apply the limits that each stored message may exceed."""

    def apply_limits(self) -> None:
        """Apply limits, but no ages: never stores a marker."""

    def expire_slice(self, now_ns: int) -> None:
        """Remove some of the messages whose time is over; the sweep removes the rest."""

    def remove(self, seqs: np.ndarray | Sequence[int]) -> int:
        """Remove messages; return how many existed."""

    def remove_below(self, seq: int) -> int:
        """Remove everything older than `seq`; return how many messages that were."""

    def remove_one(self, seq: int) -> bool:
        """Remove a message; return whether it was there."""

    def iter_purge(self, pattern: bytes, seq: int, keep: int) -> Generator[None, None, int]:
        """Remove messages by subject, sequence or number, in slices; return how many."""

    def purge(self, pattern: bytes, seq: int, keep: int) -> int:
        """Remove messages by subject, sequence or number; return how many."""


class InterestContext(Protocol):
    """The consumers of the stream, as far as removing messages is concerned."""

    suppress_advisories: bool

    @property
    def has_keyed(self) -> bool:
        """Return whether a consumer keeps order per key."""

    def before_removal(self, seqs: np.ndarray | Sequence[int]) -> None:
        """Notify consumers that keep order per key of messages that are about to leave the stream."""

    def before_trim(self, seq: int) -> None:
        """Notify them that all messages before `seq` are about to leave the stream."""

    def on_trimmed(self, seq: int) -> None:
        """Notify consumers that all messages before `seq` left the stream."""

    def has_interest(self, subject: bytes) -> bool:
        """Return whether the filter of any consumer matches a subject."""

    def remove_acked(self) -> bool:
        """Remove messages that no consumer needs; return whether there are more to look at."""

    def on_purge(self) -> None:
        """Move consumers past messages that were purged."""


class CopyContext(Protocol):
    """The mirror and sources of the stream, as far as they are shown."""

    def make_mirror_info(self, now_ns: int) -> Any:
        """Return the state of the mirror, None if the stream is none."""

    def make_source_infos(self, now_ns: int) -> Any:
        """Return the states of the sources."""


class StreamContext(Protocol):
    """One stream, seen from its parts."""

    config: StreamConfig
    log: StreamLog
    name: str
    name_bytes: bytes
    pub_ack_prefix: bytes
    created_ns: int
    closed: bool
    fast_path: PublishFastPath
    group_commit: GroupCommit
    clock: AccountClock
    quota: AccountQuota
    dedup: StreamDedupWindow | None

    @property
    def jetstream(self) -> JetStreamContext:
        """Return the account's JetStream."""

    @property
    def retention(self) -> RemovalContext:
        """Return what removes messages."""

    @property
    def consumers(self) -> Mapping[str, Any]:
        """Return the consumers by name."""

    @property
    def consumer_set(self) -> InterestContext:
        """Return the consumers together."""

    @property
    def sourcing(self) -> CopyContext:
        """Return mirror and sources."""

    def get_subjects(self) -> list[bytes]:
        """Return the subjects of the configuration."""

    def transform_subject(self, subject: bytes) -> bytes:
        """Return the subject that a message is stored under."""

    def find_last_seq(self, subject: bytes) -> int:
        """Return the newest sequence of a subject; 0 if there is none."""

    def compute_stored_size(self, subject: bytes, header: bytes, payload: bytes) -> int:
        """Return how many bytes a message would count."""

    def get_stored_size(self, seq: int) -> int:
        """Return how many bytes a stored message counts."""

    def reserve_frame_space(self, size: int, count: int) -> None:
        """Raise if this many bytes do not fit into the open frame."""

    def store(
        self,
        subject: bytes,
        header: bytes,
        payload: bytes,
        time_ns: int,
        ttl_s: int = 0,
        message_id: bytes = b"",
        rollup: bytes = b"",
        *,
        forced: bool = False,
    ) -> int:
        """Store a message; return its sequence."""

    def skip(
        self, subject: bytes, message_id: bytes, now_ns: int, rollup: bytes, header_map: Mapping[bytes, bytes]
    ) -> int:
        """Use up a sequence for a message that is not stored, with its side effects."""

    def apply_side_effects(self, subject: bytes, rollup: bytes, header_map: Mapping[bytes, bytes]) -> None:
        """Apply rollup and schedule headers of a message that is not stored."""

    def prepare_commit(self) -> None:
        """Enforce limits before the frame is closed."""

    def on_committed(self) -> None:
        """Deliver: the newest changes are durable."""

    def record_event(self, kind: str, text: str, count: int = 1) -> None:
        """Record an event for the web page and the metrics."""

    def mark_dirty(self) -> None:
        """Take part in the next commit."""

    def on_messages_removed(self, seqs: np.ndarray | Sequence[int]) -> None:
        """Tell consumers and schedules that messages are gone."""
