"""Dispatches JetStream API requests (`$JS.API.>`) to their handlers; sends responses, errors and audit advisories.

A handler takes an `ApiRequest` and returns its encoded response, or raises a RequestError. The response waits for
everything accepted so far, so it never refers to something that a crash could undo.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from headrace.errors import RequestError, StoreError
from headrace.jetstream_api import responses
from headrace.jetstream_api.errors import ApiError
from headrace.jetstream_api.required_api_level import requires_newer_api

if TYPE_CHECKING:
    from headrace.broker.handlers.api_context import ApiContext
    from headrace.broker.routing.router import SubjectRouter

PREFIX = b"$JS.API."


@dataclass(slots=True)
class ApiRequest:
    """One API request."""

    names: list[str]  # the rest of the subject: stream, consumer, ...
    header: bytes
    body: bytes
    reply: bytes
    response_header: bytes = b""  # set by a handler, for the response
    session: Any = None  # of the client; None for the server itself


ApiHandler = Callable[["ApiContext", ApiRequest], bytes]


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


class ApiDispatcher:
    """Handles every API request of the account."""

    __slots__ = ("_endpoints", "_jetstream")

    def __init__(self, jetstream: ApiContext, endpoints: dict[tuple[str, ...], ApiEndpoint]) -> None:
        self._jetstream = jetstream
        self._endpoints = endpoints

    def subscriptions(self) -> list[bytes]:
        """Return the patterns to subscribe to."""
        return subscription_patterns(self._endpoints)

    def on_message(self, session: Any, subject: bytes, reply: bytes, header: bytes, payload: bytes) -> None:
        """Handle one request; unknown ones are ignored, as in nats-server."""
        tokens = subject[len(PREFIX) :].decode("utf-8", "replace").split(".")
        endpoint, names = match_endpoint(self._endpoints, tokens)
        if endpoint is None or (endpoint.private and not reply):
            return
        jetstream = self._jetstream
        request = ApiRequest(names, header, payload, reply, session=session)
        failed = False
        try:
            if jetstream.store.poisoned is not None:
                raise jetstream.store.poisoned
            if header and endpoint.checks_api_level and requires_newer_api(header):
                raise ApiError.REQUIRED_API_LEVEL()
            response = endpoint.handler(jetstream, request)
        except (RequestError, StoreError) as failure:
            failed = True
            jetstream.api_errors += not endpoint.private
            request.response_header = b""
            error = failure if isinstance(failure, RequestError) else jetstream.to_api_error(failure)
            response = responses.encode_error_response(endpoint.response_type, error)
        jetstream.api_total += not endpoint.private  # a response does not count its own request
        if jetstream.store.dirty:
            jetstream.group_commit.schedule()  # changes made before a failure have to become durable, too
        if reply:
            jetstream.group_commit.publish_when_all_durable(reply, b"", request.response_header, response)
        if endpoint.audit == "always" or (failed and endpoint.audit == "errors"):
            jetstream.advisories.audit(session, subject, payload, response)


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
