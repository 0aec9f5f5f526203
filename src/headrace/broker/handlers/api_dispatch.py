"""Dispatches JetStream API requests (`$JS.API.>`) to their handlers; sends responses, errors and audit advisories.

A handler takes an `ApiRequest` and returns its encoded response, or raises a RequestError. The response waits for
everything accepted so far, so it never refers to something that a crash could undo. See ADR 6.

A request whose work grows with the data is handled in steps: its handler is a generator that yields between them and
returns the response. One step runs per turn of the event loop, and a step may yield a call that runs off the loop. Requests
that change something wait for it, in order, so that what a handler has checked stays true; requests that only read do
not. See ADR 22.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from headrace.errors import RequestError, StoreError
from headrace.jetstream_api import responses
from headrace.jetstream_api.errors import ApiError
from headrace.jetstream_api.required_api_level import requires_newer_api
from headrace.jetstream_api.token_limit import has_too_many_tokens

if TYPE_CHECKING:
    from headrace.broker.handlers.api_context import ApiContext
    from headrace.broker.routing.router import SubjectRouter

PREFIX = b"$JS.API."
#: Number of streams or consumers described in one step of a list.
INFOS_PER_STEP = 16
#: A request with more subjects or filters than this is validated off the event loop.
MANY_PATTERNS = 256
#: Maximum number of requests that wait for one in progress, as in nats-server; more are rejected.
WAITING_MAX = 10_000
WAITING_BYTES_MAX = 64 * 1024 * 1024
#: Maximum number of read-only requests handled in one turn of the event loop; the rest wait for the next one.
READS_PER_TURN = 16
#: A request that changes something, or a step of a long one, counts as this many read-only requests.
CHANGE_COST = 4


@dataclass(slots=True)
class ApiRequest:
    """One API request."""

    names: list[str]  # the rest of the subject: stream, consumer, ...
    header: bytes
    body: bytes
    reply: bytes
    response_header: bytes = b""  # set by a handler, for the response
    session: Any = None  # of the client; None for the server itself


#: What a handler that works in steps returns; its value is the encoded response. A step may yield a call that uses
#: nothing that changes meanwhile: it runs off the event loop, and the handler gets its result.
ApiSteps = Generator[Callable[[], Any] | None, Any, bytes]
ApiHandler = Callable[["ApiContext", ApiRequest], "bytes | ApiSteps"]


@dataclass(frozen=True, slots=True)
class ApiEndpoint:
    """One endpoint of the API."""

    response_type: str  # such as stream_create_response
    handler: ApiHandler
    names: int = 0  # how many names follow in the subject
    optional_names: int = 0  # how many more may follow; the last one may contain dots (a filter subject)
    audit: Literal["always", "errors", "never"] = "always"
    private: bool = False  # not counted, and ignored without a reply subject
    checks_api_level: bool = True  # checks first whether the client needs a higher API level
    reads: bool = False  # changes nothing, so it does not wait for a request in progress


class RequestInProgress:
    """A request whose response is not known yet."""

    __slots__ = ("endpoint", "order", "outcome", "request", "steps", "subject")

    def __init__(self, endpoint: ApiEndpoint, subject: bytes, request: ApiRequest, order: int) -> None:
        self.endpoint = endpoint
        self.subject = subject
        self.request = request
        self.order = order
        self.steps: ApiSteps | None = None
        self.outcome: Future[Any] | None = None  # of the call that the last step yielded

    def run_step(self) -> Callable[[], Any] | None:
        """Run the next step."""
        assert self.steps is not None
        outcome, self.outcome = self.outcome, None
        if outcome is None:
            return next(self.steps)
        error = outcome.exception()
        return self.steps.throw(error) if error is not None else self.steps.send(outcome.result())


class ApiDispatcher:
    """Handles every API request of the account: a limited number per turn of the event loop, the rest later."""

    #: Message traces show API requests as a service of the system account.
    is_system_service = True

    __slots__ = (
        "_endpoints",
        "_handled_this_turn",
        "_in_progress",
        "_jetstream",
        "_received",
        "_waiting_bytes",
        "_waiting_changes",
        "_waiting_reads",
        "is_stopped",
    )

    def __init__(self, jetstream: ApiContext, endpoints: dict[tuple[str, ...], ApiEndpoint]) -> None:
        self._jetstream = jetstream
        self._endpoints = endpoints
        self._in_progress: RequestInProgress | None = None
        self.is_stopped = False
        self._received = 0
        self._handled_this_turn = 0
        self._waiting_changes: deque[RequestInProgress] = deque()
        self._waiting_reads: deque[RequestInProgress] = deque()
        self._waiting_bytes = 0

    def subscriptions(self) -> list[bytes]:
        """Return the patterns to subscribe to."""
        return subscription_patterns(self._endpoints)

    def on_message(self, session: Any, subject: bytes, reply: bytes, header: bytes, payload: bytes) -> None:
        """Handle one request; unknown ones are ignored, as in nats-server."""
        tokens = subject[len(PREFIX) :].decode("utf-8", "replace").split(".")
        endpoint, names = match_endpoint(self._endpoints, tokens)
        if endpoint is None or (endpoint.private and not reply):
            return
        request = ApiRequest(names, header, payload, reply, session=session)
        self._received += 1
        received = RequestInProgress(endpoint, subject, request, self._received)
        waiting = self._waiting_reads if endpoint.reads else self._waiting_changes
        if self._may_start(endpoint, waiting):
            self._run(self._start, received)
        elif len(waiting) >= WAITING_MAX or self._waiting_bytes + len(payload) > WAITING_BYTES_MAX:
            self._fail(received, ApiError.INSUFFICIENT_RESOURCES())
        else:
            waiting.append(received)
            self._waiting_bytes += len(payload)

    def stop(self) -> None:
        """Drop requests in progress: the server stops, and their clients get no response."""
        self.is_stopped = True
        self._waiting_changes.clear()
        self._waiting_reads.clear()
        self._waiting_bytes = 0

    def _may_start(self, endpoint: ApiEndpoint, waiting: deque[RequestInProgress]) -> bool:
        if waiting or self._handled_this_turn >= READS_PER_TURN:
            return False
        return endpoint.reads or self._in_progress is None

    def _run(self, call: Callable[[RequestInProgress], None], received: RequestInProgress) -> None:
        """Run a request or one step of it."""
        if not self._handled_this_turn:
            self._jetstream.call_soon(self._begin_turn)
        self._handled_this_turn += 1 if received.endpoint.reads and received.steps is None else CHANGE_COST
        self._jetstream.run_operation(received.subject, partial(call, received))

    def _begin_turn(self) -> None:
        """Start requests that had to wait, in the order in which they arrived."""
        self._handled_this_turn = 0
        while self._handled_this_turn < READS_PER_TURN and (waiting := self._find_oldest_ready()):
            received = waiting.popleft()
            self._waiting_bytes -= len(received.request.body)
            self._run(self._start, received)

    def _find_oldest_ready(self) -> deque[RequestInProgress] | None:
        """Return the queue whose first request is the oldest that may start."""
        reads, changes = self._waiting_reads, self._waiting_changes
        if not changes or self._in_progress is not None:
            return reads
        return reads if reads and reads[0].order < changes[0].order else changes

    def _start(self, received: RequestInProgress) -> None:
        jetstream, endpoint, request = self._jetstream, received.endpoint, received.request
        try:
            if jetstream.store.poisoned is not None:
                raise jetstream.store.poisoned
            if request.header and endpoint.checks_api_level and requires_newer_api(request.header):
                raise ApiError.REQUIRED_API_LEVEL()
            if has_too_many_tokens(request.body):
                raise ApiError.BAD_REQUEST()
            result = endpoint.handler(jetstream, request)
        except (RequestError, StoreError) as failure:
            self._fail(received, failure)
            return
        if isinstance(result, bytes):
            self._respond(received, result)
        else:
            received.steps = result
            self._step(received)

    def _step(self, received: RequestInProgress) -> None:
        """Run one step of a request; the next one follows after others had their turn."""
        jetstream, store = self._jetstream, self._jetstream.store
        if self.is_stopped:
            return
        try:
            if store.poisoned is not None:
                raise store.poisoned
            off_loop = received.run_step()
        except StopIteration as finished:
            self._respond(received, finished.value)
        except (RequestError, StoreError) as failure:
            self._fail(received, failure)
        except BaseException:
            self._end_progress(received)  # later requests must not wait for a defect
            raise
        else:
            if not received.endpoint.reads:
                self._in_progress = received
            if off_loop is not None:
                jetstream.run_off_loop(off_loop, partial(self._on_off_loop_done, received))
            else:
                jetstream.call_soon(partial(self._run, self._step, received))
            return
        self._end_progress(received)

    def _end_progress(self, received: RequestInProgress) -> None:
        if self._in_progress is received:
            self._in_progress = None

    def _on_off_loop_done(self, received: RequestInProgress, outcome: Future[Any]) -> None:
        received.outcome = outcome
        self._jetstream.call_soon(partial(self._run, self._step, received))

    def _fail(self, received: RequestInProgress, failure: RequestError | StoreError) -> None:
        jetstream, request = self._jetstream, received.request
        jetstream.api_errors += not received.endpoint.private
        request.response_header = b""
        error = failure if isinstance(failure, RequestError) else ApiError.INSUFFICIENT_RESOURCES()
        self._respond(
            received, responses.encode_error_response(received.endpoint.response_type, error), failed=True
        )

    def _respond(self, received: RequestInProgress, response: bytes, *, failed: bool = False) -> None:
        jetstream, endpoint, request = self._jetstream, received.endpoint, received.request
        jetstream.api_total += not endpoint.private  # a response does not count its own request
        jetstream.group_commit.schedule_changed()  # changes made before a failure have to become durable, too
        if request.reply:
            jetstream.group_commit.publish_when_all_durable(
                request.reply, b"", request.response_header, response
            )
        if endpoint.audit == "always" or (failed and endpoint.audit == "errors"):
            jetstream.advisories.audit(request.session, received.subject, request.body, response)


class DisabledApi:
    """Replies to the requests of an account without JetStream with an error."""

    __slots__ = ("_endpoints", "_router")

    def __init__(self, router: SubjectRouter, endpoints: dict[tuple[str, ...], ApiEndpoint]) -> None:
        self._router = router
        self._endpoints = endpoints

    def subscribe(self) -> None:
        for pattern in subscription_patterns(self._endpoints):
            self._router.subscribe_internal(pattern, self)

    def unsubscribe(self) -> None:
        for pattern in subscription_patterns(self._endpoints):
            self._router.unsubscribe_internal(pattern, self)

    def on_message(self, session: Any, subject: bytes, reply: bytes, header: bytes, payload: bytes) -> None:
        tokens = subject[len(PREFIX) :].decode("utf-8", "replace").split(".")
        endpoint, _ = match_endpoint(self._endpoints, tokens)
        if endpoint is not None and reply:
            self._router.publish(
                reply,
                b"",
                b"",
                responses.encode_error_response(endpoint.response_type, ApiError.NOT_ENABLED_FOR_ACCOUNT()),
            )


def subscription_patterns(endpoints: dict[tuple[str, ...], ApiEndpoint]) -> list[bytes]:
    """Return patterns for all requests, except those that only an existing stream or consumer handles."""
    inner = {path[1] for path in endpoints if path[0] == "CONSUMER"}
    tails = ["*", "STREAM.>", "META.>", "SERVER.>", "ACCOUNT.>", "CONSUMER.*"]
    tails += [f"CONSUMER.{verb}.>" for verb in sorted(inner)]
    return [PREFIX + tail.encode() for tail in tails]


def match_endpoint(
    endpoints: dict[tuple[str, ...], ApiEndpoint], tokens: list[str]
) -> tuple[ApiEndpoint | None, list[str]]:
    """Return the endpoint for the tokens of a request, and the names in them."""
    for depth in (3, 2, 1):
        endpoint = endpoints.get(tuple(tokens[:depth]))
        if endpoint is None:
            continue
        names, most = tokens[depth:], endpoint.names + endpoint.optional_names
        if endpoint.optional_names and len(names) > most:
            names = [*names[: most - 1], ".".join(names[most - 1 :])]
        if endpoint.names <= len(names) <= most:
            return endpoint, names
    return None, []
