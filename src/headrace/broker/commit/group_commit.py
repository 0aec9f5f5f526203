"""Group commit: puts accepted changes into a frame and publishes what refers to them when the frame is durable.

Invariant: nothing that depends on a change in frame N is sent before frame N is durable. All output - acks, replies,
republished copies, advisories - waits in one list per frame and is published in the order in which it was created.
File streams and memory streams have separate frames. It knows neither the rules of streams nor sockets. See ADR 5.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

from headrace._native import PendingReplies
from headrace.code_probes import sometimes
from headrace.errors import StoreError
from headrace.storage import Store, StoreObserver, StreamLog

#: A message to publish: subject, reply, header block, payload.
OutboundMsg = tuple[bytes, bytes, bytes, bytes]


class CommitOutput(Protocol):
    """The part of the router that group commit needs."""

    def publish(self, subject: bytes, reply: bytes, header: bytes, payload: bytes) -> int: ...
    def publish_many(self, messages: list[OutboundMsg]) -> None: ...


class Frames(Protocol):
    """The part of a store that group commit needs: the file frames of a store, or its memory frames."""

    @property
    def frame_number(self) -> int: ...
    @property
    def dirty(self) -> bool: ...
    @property
    def poisoned(self) -> StoreError | None: ...
    @property
    def in_flight(self) -> bool: ...
    @property
    def waiting_for_space(self) -> bool: ...
    @property
    def committed_frame(self) -> int: ...
    def set_observer(self, observer: StoreObserver) -> None: ...
    def commit(self) -> int: ...


class CommitParticipant(Protocol):
    """A stream, as group commit sees it."""

    def prepare_commit(self) -> None:
        """Enforce limits before the frame is closed."""

    def on_committed(self) -> None:
        """Called when the frame with this stream's newest changes is durable."""


class RunAll:
    """Runs several calls; an error does not prevent the rest, and the first one is raised at the end."""

    __slots__ = ("_first_error",)

    def __init__(self) -> None:
        self._first_error: Exception | None = None

    def __call__(self, call: Callable[[], object]) -> None:
        try:
            call()
        except Exception as failure:
            self._first_error = self._first_error or failure

    def __enter__(self) -> RunAll:
        return self

    def __exit__(self, *_: object) -> None:
        if self._first_error is not None:
            raise self._first_error


class GroupCommit:
    """Collects changes while a frame is being written, and commits the next frame as soon as that one is durable.

    `pending_replies` and `_dirty_streams` belong to the open frame, `_replies_in_flight` and `_streams_in_flight` to the
    frame that is being written. Replies include everything that waits for a frame: PubAcks, copies, advisories.
    """

    __slots__ = (
        "_call_soon",
        "_dirty_streams",
        "_on_idle",
        "_publisher",
        "_replies_in_flight",
        "_scheduled",
        "_store",
        "_streams_in_flight",
        "memory",
        "pending_replies",
    )

    def __init__(
        self,
        store: Frames,
        publisher: CommitOutput,
        call_soon: Callable[[Callable[[], None]], object],
        on_idle: Callable[[], None],
    ) -> None:
        """`call_soon(fn)` must call fn at the end of the turn of the event loop; `on_idle` is called after a commit, and
        when the disk becomes full."""
        self._store = store
        self._publisher = publisher
        self._call_soon = call_soon
        self._on_idle = on_idle
        self._scheduled = False
        #: The group commit of the streams in memory, which do not wait for the disk.
        self.memory = self
        self.pending_replies = PendingReplies()
        self._replies_in_flight: list[OutboundMsg] = []
        self._dirty_streams: list[CommitParticipant] = []
        self._streams_in_flight: list[CommitParticipant] = []
        store.set_observer(self)

    @property
    def frame(self) -> int:
        """The number of the open frame."""
        return self._store.frame_number

    def mark_dirty(self, stream: CommitParticipant) -> None:
        """Register a stream with its first change in the open frame."""
        self._dirty_streams.append(stream)
        self.schedule()

    def schedule(self) -> None:
        """Schedule the commit of the open frame."""
        if not self._scheduled and not self._store.in_flight:
            self._scheduled = True
            self._call_soon(self.commit)

    def schedule_changed(self) -> None:
        """Schedule the commits of file streams and of streams in memory, if there is anything to commit."""
        if self._store.dirty:
            self.schedule()
        if self.memory is not self:
            self.memory.schedule_changed()

    def reply_after_commit(self, subject: bytes, reply: bytes, header: bytes, payload: bytes) -> None:
        """Publish once the open frame is durable."""
        self._wait_for_open_frame((subject, reply, header, payload))

    def reply_error(self, reply: bytes, answer: bytes) -> None:
        """Send an error in order with other replies; at once if the store is poisoned or the disk is full."""
        if self._store.poisoned is not None:
            sometimes("error sent while the store is poisoned")
            self._publisher.publish(reply, b"", b"", answer)
        elif self._store.waiting_for_space:
            self._publisher.publish(reply, b"", b"", answer)
        else:
            self._wait_for_open_frame((reply, b"", b"", answer))
            self.schedule()

    def _wait_for_open_frame(self, message: OutboundMsg) -> None:
        replies = self.pending_replies
        replies.messages.append(message)

    def publish_when_durable(
        self, log: StreamLog, subject: bytes, reply: bytes, header: bytes, payload: bytes
    ) -> None:
        """Publish a message that refers to `log` as soon as all its changes so far are durable."""
        changed = log.changed_frame
        if changed <= self._store.committed_frame:
            self._publisher.publish(subject, reply, header, payload)
        elif changed == self._store.frame_number:
            self._wait_for_open_frame((subject, reply, header, payload))
        else:
            self._replies_in_flight.append((subject, reply, header, payload))

    def publish_message(
        self, log: StreamLog, seq: int, subject: bytes, header: bytes, payload: bytes
    ) -> None:
        """Publish a stored message: at once if it is committed, whatever else of its stream is not yet."""
        if seq <= log.committed_seq:
            self._publisher.publish(subject, b"", header, payload)
        else:
            self.publish_when_durable(log, subject, b"", header, payload)

    def publish_many_when_durable(self, log: StreamLog, messages: list[OutboundMsg]) -> None:
        """Like `publish_when_durable`, for many messages."""
        changed = log.changed_frame
        if changed <= self._store.committed_frame:
            self._publisher.publish_many(messages)
        elif changed == self._store.frame_number:
            self.pending_replies.messages += messages
        else:
            self._replies_in_flight += messages

    def publish_when_all_durable(self, subject: bytes, reply: bytes, header: bytes, payload: bytes) -> None:
        """Publish once everything accepted so far is durable."""
        store = self._store
        if store.poisoned is not None:
            self._publisher.publish(subject, reply, header, payload)
        elif store.dirty:
            self._wait_for_open_frame((subject, reply, header, payload))
        elif store.in_flight:
            self._replies_in_flight.append((subject, reply, header, payload))
        elif self.memory is not self:
            self.memory.publish_when_all_durable(subject, reply, header, payload)
        else:
            self._publisher.publish(subject, reply, header, payload)

    def send_after_commit(self, subject: bytes, reply: bytes, header: bytes, payload: bytes) -> None:
        """Publish once everything accepted so far is durable, in the order of these calls; never if that fails."""
        self._wait_for_open_frame((subject, reply, header, payload))
        self.schedule()

    def commit(self) -> None:
        """Close the open frame, unless the previous one is still being written (its completion calls this again)."""
        self._scheduled = False
        store = self._store
        if store.poisoned is not None:
            self._drop_all()
            return
        if store.in_flight:
            return
        with RunAll() as run_all:
            for stream in self._dirty_streams:
                run_all(stream.prepare_commit)
            if store.dirty:
                self._replies_in_flight, self.pending_replies.messages = self.pending_replies.messages, []
                self._streams_in_flight, self._dirty_streams = self._dirty_streams, []
                run_all(store.commit)
            else:
                messages, self.pending_replies.messages = self.pending_replies.messages, []
                dirty, self._dirty_streams = self._dirty_streams, []
                self._publish_committed(run_all, messages, dirty)

    def commit_all(self) -> None:
        """Commit the open frames of file streams and of streams in memory."""
        self.commit()
        if self.memory is not self:
            self.memory.commit()

    def on_frame_durable(self, frame: int) -> None:
        """Send what waited for this frame, and commit the next one."""
        messages, self._replies_in_flight = self._replies_in_flight, []
        dirty, self._streams_in_flight = self._streams_in_flight, []
        with RunAll() as run_all:
            self._publish_committed(run_all, messages, dirty)
            if self._store.dirty or self._dirty_streams or self.pending_replies.messages:
                # A frame of streams in memory is durable within `commit`: its successor waits for the next turn.
                run_all(self.commit if self.memory is not self else self.schedule)
            run_all(self._on_idle)

    def on_full(self) -> None:
        """Let the store retry what waits for space."""
        self._on_idle()

    def _publish_committed(
        self, run_all: RunAll, messages: list[OutboundMsg], streams: list[CommitParticipant]
    ) -> None:
        run_all(partial(self._publisher.publish_many, messages))
        for stream in streams:
            run_all(stream.on_committed)

    def _drop_all(self) -> None:
        """Drop everything that waits for the disk after a failed sync: it must never be sent."""
        sometimes("pending replies dropped after a failed sync")
        replies = self.pending_replies
        replies.messages.clear()
        self._replies_in_flight.clear()
        self._dirty_streams.clear()


def make_group_commit(
    store: Store,
    publisher: CommitOutput,
    call_soon: Callable[[Callable[[], None]], object],
    on_idle: Callable[[], None],
) -> GroupCommit:
    """Return the group commit of a store's file streams, with that of its streams in memory."""
    group_commit = GroupCommit(store, publisher, call_soon, on_idle)
    group_commit.memory = GroupCommit(store.memory_frames, publisher, call_soon, _do_nothing)
    return group_commit


def _do_nothing() -> None:
    """Idle work of streams in memory: none."""
