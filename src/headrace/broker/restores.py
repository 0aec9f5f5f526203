"""Restoring a backup: chunks come in and are answered as they are taken in; with the last one the stream is there.

Owns the conversation, its limits and its end; what a backup holds is the matter of `Contents`. Some of it is done in
each turn, so that nobody waits for a restore. What fails, or falls silent, leaves nothing.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from headrace.api import advisories as events
from headrace.api import errors, responses, streams
from headrace.api.configs import StreamConfig, copy
from headrace.api.decode import decode, is_empty
from headrace.api.requests import RestoreRequest
from headrace.broker.advisories import nuid
from headrace.broker.contents import ENTRY_MAX, Contents
from headrace.broker.door import Endpoint, Request
from headrace.broker.info import stream_info
from headrace.errors import HeadraceError, RequestError
from headrace.protocol.archives import Unpacker

if TYPE_CHECKING:
    from headrace.broker.jetstream import JetStream
    from headrace.broker.timers import Handle

_IDLE_NS = 5_000_000_000
_PRESSED_NS = 10_000_000
#: What may wait to be unpacked; whoever sends more does not wait for its answers.
_QUEUE_MAX = 64 * 1024 * 1024
#: What all restores of an account may hold in memory together: the largest entry there can be, and what follows it.
HELD_MAX = 2 * _QUEUE_MAX
_TURN = 512
_EXPANDED_TURN = 4 * 1024 * 1024
AT_ONCE_MAX = 16


def restore(jetstream: JetStream, request: Request) -> bytes:
    """STREAM.RESTORE: where to send the chunks."""
    if is_empty(request.body):
        raise errors.error(10003)
    wanted = decode(RestoreRequest, request.body, strict=jetstream.strict)
    name = request.names[0]
    wanted.config.name = wanted.config.name or name
    config = checked(jetstream, wanted.config, name)
    if len(jetstream.restores) >= AT_ONCE_MAX:
        raise errors.error(10062, err="too many restores at once")
    under_way = Restore(jetstream, config, request.session)
    jetstream.restores[name] = under_way
    return responses.restore_started(under_way.subject.decode())


ENDPOINTS: dict[tuple[str, ...], Endpoint] = {
    ("STREAM", "RESTORE"): Endpoint("stream_restore_response", restore, 1),
}


def checked(jetstream: JetStream, config: StreamConfig, name: str) -> StreamConfig:
    """The configuration of a stream to be restored; unlike a new one it may be sealed."""
    existing, sealed, config = jetstream.configs(), config.sealed, copy(config)
    config.sealed = False
    if name in existing and config.name == name:
        raise errors.error(10130)
    usage = jetstream.usage_beside(name)
    made = streams.create(config, name, existing, limits=jetstream.limits, usage=usage)
    if name in jetstream.restores:
        raise errors.error(10130)
    made.sealed = sealed
    return made


class Restore:
    """One restore under way."""

    def __init__(self, jetstream: JetStream, config: StreamConfig, session: Any) -> None:
        self._jetstream = jetstream
        self._config = config
        self._client = jetstream.advisories.client(session)
        self._start_ns = jetstream.clock_ns()
        self._unpacker = Unpacker(ENTRY_MAX)
        self._queue: deque[tuple[bytes, bytes]] = deque()
        self._queued = self._received = 0
        self._contents = Contents(jetstream, config)
        self._refusal: RequestError | None = None
        self._busy = self._closed = self._fed = False
        self._idle: Handle | None = None
        self.subject = f"$JS.SNAPSHOT.RESTORE.{config.name}.{nuid()}".encode()
        jetstream.hub.subscribe_internal(self.subject, self)
        jetstream.advisories.send(events.restore_created, config.name, self._client)
        self._rest()

    @property
    def held(self) -> int:
        """Bytes in memory: what waits to be unpacked, and what was unpacked and waits for the rest of its entry."""
        return self._queued + self._unpacker.held

    # Life

    def offer(self, session: Any, subject: bytes, reply: bytes, header: bytes, payload: bytes) -> None:
        """A chunk; an empty one is the last."""
        if self._closed:
            return
        if self._refusal is not None:
            self._refuse(reply)
            return
        self._queue.append((reply, payload))
        self._queued += len(payload)
        self._received += len(payload)
        if not reply:
            self.fail("chunks need a reply subject")
        elif self._queued > _QUEUE_MAX:
            self.fail("too many chunks at once")
        else:
            self._go_on()
            self._bound()
        self._rest()

    def _bound(self) -> None:
        """Where the restores of an account hold too much together, the one that holds most ends."""
        under_way = self._jetstream.restores.values()
        if sum(each.held for each in under_way) > HELD_MAX:
            max(under_way, key=lambda each: each.held).fail("the account's restores hold too much at once")

    def _rest(self) -> None:
        """Nothing more for some time means that nothing more will come."""
        if self._idle is not None:
            self._idle.cancel()
        self._idle = self._jetstream.timers.after(_IDLE_NS, self._silent)

    def _silent(self) -> None:
        self._idle = None
        if self._queue:
            self._rest()
            return
        if self._refusal is None:
            self.fail("no more chunks came")
        self.close()

    def close(self) -> None:
        """Take nothing more. What has come stays marked as unfinished, for the next start to remove."""
        if not self._closed:
            self._closed = True
            self._jetstream.hub.unsubscribe_internal(self.subject, self)
        if self._idle is not None:
            self._idle.cancel()

    def fail(self, problem: str) -> None:
        """Nothing of it stays; whoever still sends is told why."""
        jetstream = self._jetstream
        self._refusal = errors.error(10062, err=problem)
        if jetstream.restores.get(self._config.name) is self:
            del jetstream.restores[self._config.name]
        self._contents.discard()
        self._tell_end()
        while self._queue:
            self._refuse(self._queue.popleft()[0])
        self._queued, self._unpacker = 0, Unpacker(ENTRY_MAX)

    def _refuse(self, reply: bytes) -> None:
        if reply and self._refusal is not None:
            answer = responses.failure("stream_create_response", self._refusal)
            self._jetstream.ticker.send_settled(reply, b"", b"", answer)

    def _tell_end(self) -> None:
        facts = (self._config.name, self._start_ns, self._jetstream.clock_ns(), self._received, self._client)
        self._jetstream.advisories.send(events.restore_completed, *facts)

    # Work

    def _go_on(self) -> None:
        if not self._busy:
            self._busy = True
            self._jetstream.later(self._turn)

    def _turn(self) -> None:
        """Unpack some; a chunk is answered when all of it is in the log, the last one when the stream is there."""
        self._busy = False
        if self._refusal is not None or self._closed or not self._queue:
            return
        jetstream = self._jetstream
        if jetstream.pressure.high():
            self._busy = True
            jetstream.timers.after(_PRESSED_NS, self._turn)
            return
        try:
            self._advance()
        except HeadraceError as problem:
            self.fail(str(problem))
        except Exception as problem:  # whatever a backup holds: all of it is restored or nothing
            self.fail(f"{type(problem).__name__}: {problem}")
        self._bound()
        if jetstream.store.dirty:
            jetstream.ticker.arm()

    def _advance(self) -> None:
        reply, chunk = self._queue[0]
        if not chunk:
            self._finish(reply)
            return
        if not self._fed:
            self._unpacker.feed(chunk)
            self._fed = True
        if self._unpack():
            self._queue.popleft()
            self._fed = False
            self._queued -= len(chunk)
            self._jetstream.ticker.send_settled(reply, b"", b"", b"")
        if self._queue:
            self._go_on()

    def _unpack(self) -> bool:
        """Take some entries; whether there is nothing more in what came."""
        limit = self._unpacker.expanded + _EXPANDED_TURN
        for _ in range(_TURN):
            if self._unpacker.expanded >= limit:
                return False
            entry = self._unpacker.next()
            if entry is None:
                return True
            self._contents.take(entry)
        return False

    def _finish(self, reply: bytes) -> None:
        jetstream, name = self._jetstream, self._config.name
        self._contents.check_whole()
        # Others may have taken its subjects meanwhile.
        del jetstream.restores[name]
        checked(jetstream, self._config, name)
        stream = self._contents.complete()
        self.close()
        jetstream.advisories.send(events.stream_action, name, "create")
        self._tell_end()
        answer = responses.answer("stream_create_response", stream_info(stream))
        jetstream.ticker.send_settled(reply, b"", b"", answer)
