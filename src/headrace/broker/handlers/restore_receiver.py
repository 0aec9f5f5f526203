"""Restores a backup: receives chunks and acknowledges them; with the last one the stream exists.

Owns the exchange with the client, its limits and its end; the contents of a backup are handled by `RestoreWriter`. A
restore does a part of its work in each turn of the event loop, so that it does not block others. A restore that fails or
times out leaves nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any

from headrace.broker.handlers.api_dispatch import ApiEndpoint, ApiRequest, ApiSteps
from headrace.broker.handlers.restore_writer import ENTRY_MAX, RestoreWriter
from headrace.broker.handlers.stream_handlers import is_expensive_config, iter_validate
from headrace.broker.streams.stream_info import make_stream_info
from headrace.errors import HeadraceError, RequestError
from headrace.jetstream_api import advisories as events
from headrace.jetstream_api import responses
from headrace.jetstream_api.configs import StreamConfig, copy_config
from headrace.jetstream_api.decode import decode, is_empty
from headrace.jetstream_api.errors import ApiError
from headrace.jetstream_api.requests import RestoreRequest
from headrace.jetstream_api.validation import streams
from headrace.protocol.backup_archive import ArchiveReader
from headrace.protocol.nuid import nuid

if TYPE_CHECKING:
    from headrace.broker.handlers.api_context import ApiContext
    from headrace.broker.timers import TimerHandle

_IDLE_NS = 5_000_000_000
_BACKPRESSURE_RETRY_NS = 10_000_000
#: The maximum queued for decompression; a client that exceeds it does not wait for acks.
_QUEUE_MAX = 64 * 1024 * 1024
#: The maximum that all restores of an account buffer in memory: the largest possible entry, and what follows it.
BUFFERED_MAX = 2 * _QUEUE_MAX
_ENTRIES_PER_SLICE = 128
_BYTES_PER_SLICE = 1024 * 1024
CONCURRENT_MAX = 16

ValidationSteps = Generator[Callable[[], Any] | None, Any, StreamConfig]


def start_restore(jetstream: ApiContext, request: ApiRequest) -> ApiSteps:
    """Handle STREAM.RESTORE: return the subject for the chunks."""
    if is_empty(request.body):
        raise ApiError.BAD_REQUEST()
    wanted = decode(RestoreRequest, request.body, strict=jetstream.reject_unknown_fields)
    name = request.names[0]
    wanted.config.name = wanted.config.name or name
    config = yield from _iter_validate(jetstream, wanted.config, name, None)
    if len(jetstream.restores) >= CONCURRENT_MAX:
        raise ApiError.STREAM_RESTORE(err="too many restores in progress")
    running = BackupRestore(jetstream, config, request.session)
    jetstream.restores[name] = running
    return responses.encode_restore_started(running.subject.decode())


ENDPOINTS: dict[tuple[str, ...], ApiEndpoint] = {
    ("STREAM", "RESTORE"): ApiEndpoint("stream_restore_response", start_restore, 1),
}


def _iter_validate(
    jetstream: ApiContext, config: StreamConfig, name: str, running: BackupRestore | None
) -> ValidationSteps:
    """Validate the configuration of a stream to restore, off the event loop if that takes long.

    Unlike a new stream it may be sealed. `running` is the restore of this name that is in progress.
    """
    sealed, config = config.sealed, copy_config(config)
    config.sealed = False
    if name in jetstream.registry.configs and config.name == name:
        raise ApiError.STREAM_NAME_EXIST_RESTORE_FAILED()
    validate = partial(streams.validate_create, config, name, limits=jetstream.quota.limits)
    new_config = yield from iter_validate(jetstream, name, validate, is_expensive_config(jetstream, config))
    if jetstream.restores.get(name) is not running:
        raise ApiError.STREAM_NAME_EXIST_RESTORE_FAILED()
    new_config.sealed = sealed
    return new_config


class BackupRestore:
    """One restore in progress."""

    def __init__(self, jetstream: ApiContext, config: StreamConfig, session: Any) -> None:
        self._jetstream = jetstream
        self._restores = jetstream.restores
        self._router = jetstream.router
        self._timers = jetstream.timers
        self._group_commit = jetstream.group_commit
        self._advisories = jetstream.advisories
        self._config = config
        self._client = self._advisories.client_info(session)
        self._clock = jetstream.clock
        self._start_ns = self._clock.wall_ns()
        self._archive = ArchiveReader(ENTRY_MAX)
        self._queue: deque[tuple[bytes, bytes]] = deque()
        self._queued_bytes = self._received_bytes = 0
        self._writer = RestoreWriter(jetstream, config)
        self._error: RequestError | None = None
        self._scheduled = self._closed = self._chunk_fed = False
        self._idle_timer: TimerHandle | None = None
        self.subject = f"$JS.SNAPSHOT.RESTORE.{config.name}.{nuid()}".encode()
        self._router.subscribe_internal(self.subject, self)
        self._advisories.publish(events.make_restore_created, config.name, self._client)
        self._restart_idle_timer()

    @property
    def buffered_bytes(self) -> int:
        """Bytes in memory: queued chunks, and decompressed bytes of an incomplete entry."""
        return self._queued_bytes + self._archive.buffered_bytes

    # Life

    def on_message(self, session: Any, subject: bytes, reply: bytes, header: bytes, payload: bytes) -> None:
        """Handle a chunk; an empty one is the last."""
        if self._closed:
            return
        if self._error is not None:
            self._reply_error(reply)
            return
        self._queue.append((reply, payload))
        self._queued_bytes += len(payload)
        self._received_bytes += len(payload)
        if not reply:
            self.fail("chunks need a reply subject")
        elif self._queued_bytes > _QUEUE_MAX:
            self.fail("too many unacknowledged chunks")
        else:
            self._schedule()
            self._limit_memory()
        self._restart_idle_timer()

    def _limit_memory(self) -> None:
        """If the restores of an account buffer too much together, fail the one that buffers most."""
        running = self._restores.values()
        if sum(each.buffered_bytes for each in running) > BUFFERED_MAX:
            max(running, key=lambda each: each.buffered_bytes).fail(
                "the restores of this account buffer too much data"
            )

    def _restart_idle_timer(self) -> None:
        """Restart the timeout after which the restore fails if no chunk arrives."""
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        self._idle_timer = self._timers.after(_IDLE_NS, self._on_idle_timeout)

    def _on_idle_timeout(self) -> None:
        self._idle_timer = None
        if self._queue:
            self._restart_idle_timer()
            return
        if self._error is None:
            self.fail("timeout: no chunk received")
        self.close()

    def close(self) -> None:
        """Stop receiving. What was stored stays marked as unfinished and is removed at the next start."""
        if not self._closed:
            self._closed = True
            self._router.unsubscribe_internal(self.subject, self)
        if self._idle_timer is not None:
            self._idle_timer.cancel()

    def fail(self, problem: str) -> None:
        """Remove everything restored so far, and send the error to the client."""
        self._error = ApiError.STREAM_RESTORE(err=problem)
        if self._restores.get(self._config.name) is self:
            del self._restores[self._config.name]
        self._writer.discard()
        self._advise_completed()
        while self._queue:
            self._reply_error(self._queue.popleft()[0])
        self._queued_bytes, self._archive = 0, ArchiveReader(ENTRY_MAX)

    def _reply_error(self, reply: bytes) -> None:
        if reply and self._error is not None:
            answer = responses.encode_error_response("stream_create_response", self._error)
            self._group_commit.publish_when_all_durable(reply, b"", b"", answer)

    def _advise_completed(self) -> None:
        fields = (
            self._config.name,
            self._start_ns,
            self._clock.wall_ns(),
            self._received_bytes,
            self._client,
        )
        self._advisories.publish(events.make_restore_completed, *fields)

    # Work

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._jetstream.call_soon(self._run_slice)

    def _run_slice(self) -> None:
        """Decompress some; a chunk is acknowledged when all of it is in the log, the last one when the stream exists."""
        self._scheduled = False
        if self._error is not None or self._closed or not self._queue:
            return
        jetstream = self._jetstream
        if jetstream.disk_backpressure.is_high():
            self._scheduled = True
            self._timers.after(_BACKPRESSURE_RETRY_NS, self._run_slice)
            return
        self._run_guarded(self._process_chunk)

    def _run_guarded(self, work: Callable[[], None]) -> None:
        """Do some work; an error fails the restore."""
        try:
            work()
        except HeadraceError as problem:
            self.fail(str(problem))
        except (
            Exception
        ) as problem:  # a backup is restored completely or not at all, whatever is wrong with it
            self.fail(f"{type(problem).__name__}: {problem}")
        self._limit_memory()
        self._group_commit.schedule_changed()

    def _process_chunk(self) -> None:
        reply, chunk = self._queue[0]
        if not chunk:
            self._finish(reply)
            return
        if not self._chunk_fed:
            self._archive.feed(chunk)
            self._chunk_fed = True
        if self._store_entries():
            self._queue.popleft()
            self._chunk_fed = False
            self._queued_bytes -= len(chunk)
            self._group_commit.publish_when_all_durable(reply, b"", b"", b"")
        if self._queue:
            self._schedule()

    def _store_entries(self) -> bool:
        """Store some entries; return whether the chunk is used up."""
        limit = self._archive.decompressed_bytes + _BYTES_PER_SLICE
        for _ in range(_ENTRIES_PER_SLICE):
            if self._archive.decompressed_bytes >= limit:
                return False
            entry = self._archive.next()
            if entry is None:
                return True
            self._writer.write(entry)
        return False

    def _finish(self, reply: bytes) -> None:
        self._writer.check_complete()
        # Its subjects may have been taken by others meanwhile.
        steps = _iter_validate(self._jetstream, self._config, self._config.name, self)
        self._validate(steps, partial(next, steps), reply)

    def _validate(self, steps: ValidationSteps, run_step: Callable[[], Any], reply: bytes) -> None:
        """Run a step of the validation; after the last one, the stream exists."""
        try:
            call = run_step()
        except StopIteration:
            self._complete(reply)
            return
        self._scheduled = True  # nothing else is done until the call has returned
        self._jetstream.run_off_loop(call, partial(self._on_validated, steps, reply))

    def _on_validated(self, steps: ValidationSteps, reply: bytes, outcome: Future[Any]) -> None:
        if self._error is not None or self._closed:
            return
        error = outcome.exception()
        run_step = partial(steps.throw, error) if error else partial(steps.send, outcome.result())
        self._run_guarded(partial(self._validate, steps, run_step, reply))

    def _complete(self, reply: bytes) -> None:
        name = self._config.name
        del self._restores[name]
        stream = self._writer.complete()
        self.close()
        self._advisories.publish(events.make_stream_action, name, "create")
        self._advise_completed()
        answer = responses.encode_response("stream_create_response", make_stream_info(stream))
        self._group_commit.publish_when_all_durable(reply, b"", b"", answer)
