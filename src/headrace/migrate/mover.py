"""Moves streams together from an old to a new server: the order of the steps, and why nothing is lost.

    copy      the new server mirrors each stream (over a leafnode connection) until it has almost everything
    close     each old stream gets a reserved subject instead of its own, and its consumers are paused
    complete  the new streams have every message of the closed ones, then they stop being mirrors; their only subject
              is a reserved one, too. A work queue or an interest stream is restored from a backup instead
    consumers durable consumers are created after their ack floors
    open      each new stream gets the subjects of the old one
    finish    each old stream is marked as moved

A step is done for all streams before the next one starts: programs that use several streams find all of them on one
server. Clients of the old server get "no responders" between close and open; from then on the leafnode connection carries
their publishes to the new server (except those of buckets, whose subjects do not cross).

**No acknowledged publish is missing on the new server.** A server acknowledges a publish after it assigned a sequence in
the stream. (1) `close` replaces the subjects in one update. After its reply no publish gets a sequence, except those that
the server had received before. (2) `settle` sends a message to the reserved subject that the server must reject because
of the last sequence that it expects. It passes the queue of publishes behind all that were received before, and the
rejection contains the last assigned sequence; when that one is also the last stored one, the closed stream is final.
Only the server itself can still write: delete markers, which are copied after `open`. (3) `complete` compares the sets of
sequences of both streams. A mirror keeps sequences and never copies anything else, so a stream with all sequences has
all messages. (4) The comparison is made again after the mirror was turned into a stream (`verify`). At this time neither
stream can change: both have a reserved subject only, and nothing follows the old one any more. Only then comes `open`,
the first moment in which the new server can acknowledge a publish. So there is no moment in which both accept publishes,
and what one acknowledged is in the other before that one accepts the first.

**No consumer skips a message.** Ack floors are read after `close` and the pause: at or below its floor a consumer has
acknowledged everything, and it starts on the new server right above it. Sequences are equal on both sides, and
the last sequence of the new stream is not below that of the old one, though its last messages may be gone: a message that
is published later has a higher sequence than everything a consumer has passed. Acks that reach the old server after the
floors were read are lost; these messages are delivered again.

**Interrupted anywhere, a move continues or can be undone.** The state is in the metadata of the streams, written by the same
update as the step itself, with the old subjects. `undo` removes the copy first, which nobody could publish to, and then
opens the old stream; it is refused as soon as one new stream is open. `open` may be repeated. A process that was killed
leaves both streams in one of the states of `stream_config`, and each pair of states has one continuation (`_plan`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from typing import Any, Protocol

from headrace.migrate import stream_config as configs
from headrace.migrate.jetstream_server import JetStreamServer
from headrace.migrate.stream_move import MoveFailed, StreamMove
from headrace.protocol.nuid import nuid

#: Maximum number of streams that are copied at a time. A server sends up to 32 MB of a stream before it waits for the
#: mirror, and replies to publishers share the leafnode connection: with more copies they would wait longer.
_COPIES_AT_ONCE = 2


class MoveObserver(Protocol):
    """Shows a move to its user."""

    def on_step(self, step: str) -> None: ...

    def show_copying(self, total: int) -> AbstractContextManager[Callable[[int], None]]: ...


class Mover:
    """A move of several streams."""

    def __init__(
        self,
        streams: Sequence[StreamMove],
        observer: MoveObserver,
        record: configs.Move,
        *,
        ack_wait_s: float,
    ) -> None:
        self._streams = list(streams)
        self._observer = observer
        self._record = record
        self._ack_wait_s = ack_wait_s
        self._is_open: dict[str, bool] = {}
        self._has_copy: dict[str, bool] = {}
        self._copies = asyncio.Semaphore(_COPIES_AT_ONCE)

    async def move(self) -> list[configs.Move]:
        """Move the streams, or continue a move; return the receipts."""
        await self._gather(lambda each: each.check_movable())
        await self._gather(lambda each: each.discard_retired())
        states = await self._gather(lambda each: each.read_states())
        await self._plan(states)
        self._observer.on_step("copy")
        with self._observer.show_copying(sum(each.messages for each in self._streams)) as on_progress:
            await self._gather(lambda each: self._copy(each, on_progress))
        pending = [each for each in self._streams if not self._is_open[each.name]]
        await self._switch(pending)
        self._observer.on_step("finish")
        await self._gather(lambda each: each.finish())
        return [each.record for each in self._streams]

    async def _plan(self, states: Sequence[tuple[str, str]]) -> None:
        """Decide for each stream how it continues."""
        known = next((each.record for each in self._streams if each.record), None)
        if known:
            self._record = {**self._record, **{key: known[key] for key in ("id", "started") if key in known}}
        is_any_open = any(new == configs.OPEN for _, new in states)
        for stream, (old_state, new_state) in zip(self._streams, states, strict=True):
            if old_state == configs.MOVED and new_state != configs.OPEN:
                raise MoveFailed(f"{stream.name} was moved before, but is not open on the new server")
            if new_state == configs.MOVED:
                raise MoveFailed(f"the new server has {stream.name} from another move; remove it there")
            if new_state == configs.OPEN and old_state not in (configs.CLOSED, configs.MOVED):
                raise MoveFailed(
                    f"both servers accept publishes to {stream.name}; remove one of the two streams"
                )
            self._is_open[stream.name] = new_state == configs.OPEN
            self._has_copy[stream.name] = bool(new_state)
            is_stale = new_state == configs.READY and old_state != configs.CLOSED
            if is_stale or (old_state == configs.CLOSED and not new_state and not is_any_open):
                # The copy is not one of the stream as it is now, or there is none: publishers need not wait for it.
                await stream.discard_copy()
                await stream.reopen()
                await stream.read_states()
                self._has_copy[stream.name] = False
            stream.begin(self._record)

    async def _copy(self, stream: StreamMove, on_progress: Callable[[int], None]) -> None:
        if self._is_open[stream.name]:
            return
        async with self._copies:
            if not self._has_copy[stream.name]:
                await stream.start_copy()
            await stream.await_near(on_progress)

    async def _switch(self, streams: Sequence[StreamMove]) -> None:
        """Close the old streams and open the new ones; publishers wait in between."""
        steps: list[tuple[str, Callable[[StreamMove], Coroutine[Any, Any, None]]]] = [
            ("close", lambda each: each.close()),
            ("settle", lambda each: each.settle(self._ack_wait_s)),
            ("complete", lambda each: each.complete_copy()),
            ("consumers", lambda each: each.create_consumers()),
            ("verify", lambda each: each.verify()),
            ("open", lambda each: each.open()),
        ]
        started_s = time.monotonic()
        for name, step in steps:
            if streams:
                self._observer.on_step(name)
            if name == "open":
                end = {"finished": make_time(), "closed_s": round(time.monotonic() - started_s, 3)}
                for each in streams:
                    each.record = {**each.record, **end}
            await asyncio.gather(*(step(each) for each in streams))

    async def undo(self) -> None:
        """Remove the copies and open the old streams again."""
        states = await self._gather(lambda each: each.read_states())
        opened = [
            each.name for each, (_, new) in zip(self._streams, states, strict=True) if new == configs.OPEN
        ]
        if opened:
            raise MoveFailed(
                f"{', '.join(opened)}: the new server accepts publishes already; continue with 'headrace migrate move', "
                "then use --back"
            )
        self._observer.on_step("discard")
        await self._gather(lambda each: each.discard_copy())
        self._observer.on_step("reopen")
        await self._gather(lambda each: each.reopen())

    async def _gather(self, work: Callable[[StreamMove], Coroutine[Any, Any, Any]]) -> list[Any]:
        return await asyncio.gather(*(work(each) for each in self._streams))


def make_record(old: JetStreamServer, new: JetStreamServer, names: Sequence[str]) -> configs.Move:
    """Return the record of a new move; its names are those of all streams that move together."""
    return {"id": nuid(), "from": old.name, "to": new.name, "streams": list(names), "started": make_time()}


def make_time() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
