"""Dispatches JetStream API requests (`$JS.API.>`) to their handlers; sends responses, errors and audit advisories.

A handler takes an `ApiRequest` and returns its encoded response, or raises a RequestError. The response waits for
everything accepted so far, so it never refers to something that a crash could undo.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from headrace.errors import RequestError, StoreError
from headrace.jetstream_api import errors, responses
from headrace.jetstream_api.required_api_level import requires_newer_api

if TYPE_CHECKING:
    from headrace.broker.jetstream import AccountJetStream
    from headrace.broker.routing.router import SubjectRouter

PREFIX = b"$JS.API."


@dataclass(slots=True)
class ApiRequest:
    """One API call."""

    names: list[str]  # what follows the endpoint in the subject: stream, consumer, ...
    header: bytes
    body: bytes
    reply: bytes
    response_header: bytes = b""  # what a handler wants the answer to carry
    session: Any = None  # who asks; None for the server itself


ApiHandler = Callable[["AccountJetStream", ApiRequest], bytes]


@dataclass(frozen=True, slots=True)
class ApiEndpoint:
    """A row of the table."""

    response_type: str  # of answer, such as stream_create_response
    handler: ApiHandler
    names: int = 0  # how many names follow in the subject
    optional_names: int = (
        0  # how many more may follow; the last one may itself contain dots (a filter subject)
    )
    audit: Literal["always", "errors", "never"] = "always"
    private: bool = False  # not counted, and without a reply subject nothing happens
    checks_api_level: bool = True  # asks first whether the client needs a higher API level


class ApiDispatcher:
    """Takes every request of the account and answers it."""

    __slots__ = ("_endpoints", "_jetstream")

    def __init__(self, jetstream: AccountJetStream, endpoints: dict[tuple[str, ...], ApiEndpoint]) -> None:
        self._jetstream = jetstream
        self._endpoints = endpoints

    def subscriptions(self) -> list[bytes]:
        """What to subscribe to."""
        return subscription_patterns(self._endpoints)

    def on_message(self, session: Any, subject: bytes, reply: bytes, header: bytes, payload: bytes) -> None:
        """One request; unknown ones meet silence, as with the reference."""
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
                raise errors.error(10185)
            response = endpoint.handler(jetstream, request)
        except (RequestError, StoreError) as failure:
            failed = True
            jetstream.api_errors += not endpoint.private
            request.response_header = b""
            error = failure if isinstance(failure, RequestError) else jetstream.to_api_error(failure)
            response = responses.encode_error_response(endpoint.response_type, error)
        jetstream.api_total += not endpoint.private  # an answer does not count its own request
        if jetstream.store.dirty:
            jetstream.group_commit.schedule()  # also what was done before something failed has to become durable
        if reply:
            jetstream.group_commit.publish_when_all_durable(reply, b"", request.response_header, response)
        if endpoint.audit == "always" or (failed and endpoint.audit == "errors"):
            jetstream.advisories.audit(session, subject, payload, response)


class DisabledApi:
    """Takes the requests of an account that has no streams, and says so."""

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
                reply, b"", b"", responses.encode_error_response(endpoint.response_type, errors.error(10039))
            )


def subscription_patterns(endpoints: dict[tuple[str, ...], ApiEndpoint]) -> list[bytes]:
    """All that is a request, but not what only an existing stream or consumer answers."""
    inner = {path[1] for path in endpoints if path[0] == "CONSUMER"}
    tails = ["*", "STREAM.>", "META.>", "SERVER.>", "ACCOUNT.>", "CONSUMER.*"]
    tails += [f"CONSUMER.{verb}.>" for verb in sorted(inner)]
    return [PREFIX + tail.encode() for tail in tails]


def match_endpoint(
    endpoints: dict[tuple[str, ...], ApiEndpoint], tokens: list[str]
) -> tuple[ApiEndpoint | None, list[str]]:
    """The row of a request's words, and the names in it."""
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
