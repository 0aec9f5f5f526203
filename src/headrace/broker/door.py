"""The API's door: requests on `$JS.API.>` find their handler in a table; answers, errors and the audit leave here.

A handler takes a `Request` and returns its answer, encoded, or raises a RequestError. The answer waits for everything
admitted so far, so it never speaks of something a crash could undo.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from headrace.api import errors, responses
from headrace.broker.levels import level_too_high
from headrace.errors import RequestError, StoreError

if TYPE_CHECKING:
    from headrace.broker.jetstream import JetStream
    from headrace.broker.router import Hub

PREFIX = b"$JS.API."


@dataclass(slots=True)
class Request:
    """One API call."""

    names: list[str]  # what follows the endpoint in the subject: stream, consumer, ...
    header: bytes
    body: bytes
    reply: bytes
    answer_header: bytes = b""  # what a handler wants the answer to carry
    session: Any = None  # who asks; None for the server itself


Handler = Callable[["JetStream", Request], bytes]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A row of the table."""

    kind: str  # of answer, such as stream_create_response
    handler: Handler
    names: int = 0  # how many names follow in the subject
    names_more: int = 0  # how many more may follow; the last one may itself contain dots (a filter subject)
    audit: Literal["always", "errors", "never"] = "always"
    private: bool = False  # not counted, and without a reply subject nothing happens
    levelled: bool = True  # asks first whether the client needs a higher API level


class ApiDoor:
    """Takes every request of the account and answers it."""

    __slots__ = ("_endpoints", "_jetstream")

    def __init__(self, jetstream: JetStream, endpoints: dict[tuple[str, ...], Endpoint]) -> None:
        self._jetstream = jetstream
        self._endpoints = endpoints

    def patterns(self) -> list[bytes]:
        """What to subscribe to."""
        return patterns(self._endpoints)

    def offer(self, session: Any, subject: bytes, reply: bytes, header: bytes, payload: bytes) -> None:
        """One request; unknown ones meet silence, as with the reference."""
        words = subject[len(PREFIX) :].decode("utf-8", "replace").split(".")
        endpoint, names = find(self._endpoints, words)
        if endpoint is None or (endpoint.private and not reply):
            return
        jetstream = self._jetstream
        request = Request(names, header, payload, reply, session=session)
        refused = False
        try:
            if jetstream.store.poisoned is not None:
                raise jetstream.store.poisoned
            if header and endpoint.levelled and level_too_high(header):
                raise errors.error(10185)
            answer = endpoint.handler(jetstream, request)
        except (RequestError, StoreError) as failure:
            refused = True
            jetstream.api_errors += not endpoint.private
            request.answer_header = b""
            refusal = failure if isinstance(failure, RequestError) else jetstream.store_refusal(failure)
            answer = responses.failure(endpoint.kind, refusal)
        jetstream.api_total += not endpoint.private  # an answer does not count its own request
        if jetstream.store.dirty:
            jetstream.ticker.arm()  # also what was done before something failed has to become durable
        if reply:
            jetstream.ticker.send_settled(reply, b"", request.answer_header, answer)
        if endpoint.audit == "always" or (refused and endpoint.audit == "errors"):
            jetstream.advisories.audit(session, subject, payload, answer)


class ClosedDoor:
    """Takes the requests of an account that has no streams, and says so."""

    __slots__ = ("_endpoints", "_hub")

    def __init__(self, hub: Hub, endpoints: dict[tuple[str, ...], Endpoint]) -> None:
        self._hub = hub
        self._endpoints = endpoints

    def open(self) -> None:
        for pattern in patterns(self._endpoints):
            self._hub.subscribe_internal(pattern, self)

    def close(self) -> None:
        for pattern in patterns(self._endpoints):
            self._hub.unsubscribe_internal(pattern, self)

    def offer(self, session: Any, subject: bytes, reply: bytes, header: bytes, payload: bytes) -> None:
        words = subject[len(PREFIX) :].decode("utf-8", "replace").split(".")
        endpoint, _ = find(self._endpoints, words)
        if endpoint is not None and reply:
            self._hub.publish(reply, b"", b"", responses.failure(endpoint.kind, errors.error(10039)))


def patterns(endpoints: dict[tuple[str, ...], Endpoint]) -> list[bytes]:
    """All that is a request, but not what only an existing stream or consumer answers."""
    inner = {path[1] for path in endpoints if path[0] == "CONSUMER"}
    tails = ["*", "STREAM.>", "META.>", "SERVER.>", "ACCOUNT.>", "CONSUMER.*"]
    tails += [f"CONSUMER.{verb}.>" for verb in sorted(inner)]
    return [PREFIX + tail.encode() for tail in tails]


def find(endpoints: dict[tuple[str, ...], Endpoint], words: list[str]) -> tuple[Endpoint | None, list[str]]:
    """The row of a request's words, and the names in it."""
    for depth in (3, 2, 1):
        endpoint = endpoints.get(tuple(words[:depth]))
        if endpoint is None:
            continue
        names, most = words[depth:], endpoint.names + endpoint.names_more
        if endpoint.names_more and len(names) > most:
            names = [*names[: most - 1], ".".join(names[most - 1 :])]
        if endpoint.names <= len(names) <= most:
            return endpoint, names
    return None, []
