"""JetStream client for claims, on a nats-py connection: requests, pipelined publishes, batches of messages.

nats-py's own calls wait for each reply and have no batched gets, which is too slow for a collector that handles
thousands of claims a second. Only public parts of nats-py are used. It knows subjects and JSON, but nothing of claims;
`RequestMux` sends its requests.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Any

import msgspec
from nats.aio.client import Client as Connection
from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from headrace.claims.clock import parse_rfc3339_ns
from headrace.claims.request_mux import RequestMux
from headrace.claims.stream_messages import StreamMessage, get_status, is_readable, parse_direct, parse_stored
from headrace.errors import ClaimError, RequestError

_LOG = logging.getLogger("headrace.claims")
_NO_RESPONDERS = "503"
_CONFLICT = "409"
#: Statuses that end the replies to a batched get successfully: no more messages, or none at all.
_END_STATUSES = ("204", "404")
_MULTI_LAST_MAX = 500
_NO_RESPONDERS_RESPONSE = {
    "error": {
        "code": 503,
        "err_code": 0,
        "description": "no stream has this subject, or JetStream is disabled",
    }
}
STREAM_NOT_FOUND = 10059
MESSAGE_NOT_FOUND = 10037
#: The second one comes from a cluster that is still replicating another message on the subject.
WRONG_LAST_SEQUENCE = frozenset({10071, 10164})
CONSUMER_NOT_FOUND = 10014
STREAM_NAME_IN_USE = 10058


class RequestTimeout(ClaimError):
    """There was no reply in time, or the connection was lost: the outcome is unknown."""


class RequestRejected(RequestError, ClaimError):
    """The server rejected a request."""


class NoStreamResponse(RequestRejected):
    """No stream has this subject: certainly nothing was stored."""

    def __init__(self, subject: str) -> None:
        super().__init__(503, 0, f"no stream has subject {subject!r}, or JetStream is disabled")


class ConsumerUnavailable(RequestRejected):
    """The consumer does not exist, or changed while it was queried."""

    def __init__(self, stream: str, consumer: str) -> None:
        super().__init__(
            404, CONSUMER_NOT_FOUND, f"consumer {consumer!r} of {stream!r} was deleted or changed"
        )


class JetStreamClient:
    """JetStream operations on one connection."""

    def __init__(self, connection: Connection, *, timeout_s: float = 5.0, prefix: str = "$JS.API") -> None:
        self.connection = connection
        self.timeout_s = timeout_s
        #: Streams whose info was requested in vain: this program may lack the permission.
        self.streams_without_info: set[str] = set()
        self._prefix = prefix
        self._mux = RequestMux(connection)

    async def close(self) -> None:
        await self._mux.close()

    async def api_request(self, call: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Send an API request and return the response; raise `RequestError` if it is an error."""
        response = await self._request(f"{self._prefix}.{call}", _encode_body(body))
        return raise_on_error(decode_json(response.data))

    async def api_request_nowait(self, call: str, body: Mapping[str, Any] | None = None) -> None:
        """Send an API request whose response is not needed."""
        await self.publish_nowait(f"{self._prefix}.{call}", _encode_body(body))

    async def publish_nowait(self, subject: str, data: bytes, headers: dict[str, str] | None = None) -> None:
        """Publish without waiting; never raises. Callers use it only where a lost message does no harm."""
        try:
            await self.connection.publish(subject, data, headers=headers)
        except NatsError as error:
            _LOG.debug("%s was not sent: %r", subject, error)

    async def publish(
        self, subject: str, data: bytes, headers: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        """Store a message; raise `RequestError` if it was rejected, `RequestTimeout` if the outcome is unknown."""
        return raise_on_error(decode_json((await self._request(subject, data, headers)).data))

    async def publish_all(
        self, messages: Iterable[tuple[str, bytes, dict[str, str]]]
    ) -> list[dict[str, Any] | None]:
        """Store many messages; return a response for each, None if there was none. Errors are in the responses."""
        await self._mux.open()
        replies = await self._mux.request_all(messages, self.timeout_s)
        return [_decode_ack(reply) if reply is not None else None for reply in replies]

    async def get_last(self, stream: str, subject: str) -> StreamMessage | None:
        """Return the newest message of a subject from the stream's leader; None if there is none."""
        try:
            response = await self._ask_leader(f"STREAM.MSG.GET.{stream}", {"last_by_subj": subject})
        except RequestError as error:
            if error.err_code == MESSAGE_NOT_FOUND:
                return None
            raise
        return parse_stored(response["message"])

    async def get_last_per_subject(self, stream: str, subjects: Sequence[str]) -> dict[str, StreamMessage]:
        """Return the newest message of each subject, by subject; subjects without one are omitted.

        Decisions made from it must not depend on a replica or mirror that lags: direct gets count only if the server
        that replies has everything that the leader had before; otherwise the leader is asked for each subject. So no
        message is missing. One that the leader has deleted or purged a moment ago may still be found: this changes no
        last sequence, so a replica that has not applied it cannot be recognized. Callers that remove something because of
        a message must therefore do so by compare-and-set, which the leader decides.
        """
        found: dict[str, StreamMessage] = {}
        for start in range(0, len(subjects), _MULTI_LAST_MAX):
            some = list(subjects[start : start + _MULTI_LAST_MAX])
            messages = await self._last_direct(stream, some)
            if messages is None:
                asked = await asyncio.gather(*(self.get_last(stream, subject) for subject in some))
                messages = [message for message in asked if message is not None]
            found.update((message.subject, message) for message in messages)
        return found

    async def _last_direct(self, stream: str, subjects: list[str]) -> list[StreamMessage] | None:
        """Return the newest messages by one direct get; None if the server that replied may lag behind the leader.

        Without an upper bound in the request, the end of the reply has the last sequence of the server that sent it.
        """
        leader_seq = (await self._ask_leader(f"STREAM.INFO.{stream}"))["state"]["last_seq"]
        body = _encode_body({"multi_last": subjects})
        messages, end = await self._direct_get_batch(f"{self._prefix}.DIRECT.GET.{stream}", body)
        is_whole = not int(end.get("Nats-Num-Pending", 0))
        is_current = int(end.get("Nats-UpTo-Sequence", 0)) >= leader_seq
        is_own = all(message.headers.get("Nats-Stream") == stream for message in messages)
        return messages if is_whole and is_current and is_own else None

    async def get_all(self, stream: str, subject: str) -> list[StreamMessage]:
        """Return the newest message of each subject that matches a wildcard, however many there are, in sequence order."""
        subjects: set[str] = set()
        total = 1
        while len(subjects) < total:
            # Pages overlap by one: if not, subjects were removed meanwhile, and others may have been skipped.
            wanted = {"subjects_filter": subject, "offset": max(len(subjects) - 1, 0)}
            response = await self._ask_leader(f"STREAM.INFO.{stream}", wanted)
            page, total = set(response["state"].get("subjects") or ()), response.get("total", 0)
            if subjects and (subjects.isdisjoint(page) or subjects >= page):
                raise RequestTimeout(f"the subjects of {stream!r} changed while they were listed")
            subjects |= page
        found = await self.get_last_per_subject(stream, sorted(subjects))
        return sorted(found.values(), key=lambda message: message.seq)

    async def _ask_leader(self, verb: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Send a request that only a stream's leader answers; raise `NoStreamResponse` if there is none."""
        try:
            return await self.api_request(verb, body)
        except RequestError as error:
            if error.err_code == STREAM_NOT_FOUND:
                raise NoStreamResponse(f"{self._prefix}.{verb}") from error
            raise

    async def pages(self, stream: str, subject: str, size: int) -> AsyncIterator[list[StreamMessage]]:
        """Yield pages of messages under a subject, which may have wildcards, in sequence order.

        A replica that lags has a prefix of the leader's messages, so only the end of its pages needs the leader's
        confirmation. Besides, it may have older versions of messages, and those that were removed, as in
        `get_last_per_subject`. A mirror may lack messages: its pages are ignored.
        """
        seq = 1
        while True:
            body = _encode_body({"seq": seq, "next_by_subj": subject, "batch": size})
            messages, end = await self._direct_get_batch(f"{self._prefix}.DIRECT.GET.{stream}", body)
            if any(message.headers.get("Nats-Stream") != stream for message in messages):
                messages = []
            if messages:
                yield messages
                seq = messages[-1].seq + 1
            if not messages or not int(end.get("Nats-Num-Pending", 0)):
                following = await self._next_at_leader(stream, subject, seq)
                if following is None:
                    return
                yield [following]
                seq = following.seq + 1

    async def _next_at_leader(self, stream: str, subject: str, seq: int) -> StreamMessage | None:
        """Return the leader's first message under a subject from a sequence on."""
        try:
            response = await self._ask_leader(
                f"STREAM.MSG.GET.{stream}", {"seq": seq, "next_by_subj": subject}
            )
        except RequestError as error:
            if error.err_code == MESSAGE_NOT_FOUND:
                return None
            raise
        return parse_stored(response["message"])

    async def get_message(self, stream: str, seq: int) -> dict[str, Any] | None:
        """Return a message of any stream by its sequence; None if it, or the stream, is gone."""
        try:
            response = await self.api_request(f"STREAM.MSG.GET.{stream}", {"seq": seq})
        except RequestError as error:
            if error.err_code in (MESSAGE_NOT_FOUND, STREAM_NOT_FOUND):
                return None
            raise
        found: dict[str, Any] = response["message"]
        return found

    async def pull(self, stream: str, consumer: str, count: int, expires_s: float = 0) -> list[Msg]:
        """Return up to `count` messages of a pull consumer: those that are waiting, or the first to arrive.

        Raises `ConsumerUnavailable` if there is no consumer, or the server ended the request because the consumer
        changed.
        """
        request: dict[str, Any] = {"batch": count, "no_wait": True}
        if expires_s:
            request = {"batch": count, "expires": round(expires_s * 1e9)}
        received: list[Msg] = []
        end_status = ""
        finished = asyncio.Event()

        async def on_reply(message: Msg) -> None:
            nonlocal end_status
            if status := get_status(message):
                end_status = status
                finished.set()
                return
            received.append(message)
            if len(received) >= count:
                finished.set()

        inbox = self.connection.new_inbox()
        subscription: Any = None
        try:
            subscription = await self.connection.subscribe(inbox, cb=on_reply)
            subject = f"{self._prefix}.CONSUMER.MSG.NEXT.{stream}.{consumer}"
            await self.connection.publish(subject, _encode_body(request), reply=inbox)
            await asyncio.wait_for(finished.wait(), self.timeout_s + expires_s)
        except TimeoutError:
            if not received:
                raise RequestTimeout(f"consumer {consumer!r} of {stream!r} did not reply") from None
        except NatsError as error:
            raise RequestTimeout(
                f"consumer {consumer!r} of {stream!r} could not be reached: {error}"
            ) from error
        finally:
            if subscription is not None and not self.connection.is_closed:
                await subscription.unsubscribe()
        if not received and end_status in (_NO_RESPONDERS, _CONFLICT):
            raise ConsumerUnavailable(stream, consumer)
        return received

    async def get_server_time_ns(self, stream: str) -> int:
        """Return the server's clock, as in a stream's info."""
        return parse_rfc3339_ns((await self.api_request(f"STREAM.INFO.{stream}"))["ts"])

    async def _direct_get_batch(
        self, subject: str, body: bytes
    ) -> tuple[list[StreamMessage], Mapping[str, str]]:
        """Return the replies to a batched get, and the headers of the message that ended them."""
        await self._mux.open()
        try:
            replies, end = await self._mux.request_until(subject, body, get_status, self.timeout_s)
        except (TimeoutError, NatsError) as error:
            raise RequestTimeout(f"incomplete replies to {subject!r}") from error
        return [parse_direct(reply) for reply in replies if is_readable(reply)], _parse_end(end, subject)

    async def _request(self, subject: str, data: bytes, headers: Mapping[str, str] | None = None) -> Msg:
        await self._mux.open()
        try:
            reply = await self._mux.request(subject, data, headers)
        except NatsError as error:
            raise RequestTimeout(f"{subject!r} could not be sent: {error}") from error
        try:
            message = await asyncio.wait_for(reply, self.timeout_s)
        except TimeoutError as error:
            raise RequestTimeout(f"no reply on {subject!r} within {self.timeout_s:g} s") from error
        if get_status(message) == _NO_RESPONDERS:
            raise NoStreamResponse(subject)
        return message


def encode_json(document: Any) -> bytes:
    """Encode a document as JSON."""
    return msgspec.json.encode(document)


def decode_json(data: bytes) -> Any:
    """Decode a JSON document."""
    return msgspec.json.decode(data)


def _encode_body(body: Mapping[str, Any] | None) -> bytes:
    return encode_json(body) if body is not None else b""


def raise_on_error(response: dict[str, Any]) -> dict[str, Any]:
    """Return a response, or raise the error in it."""
    if "error" in response:
        error = response["error"]
        raise RequestRejected(error.get("code", 0), error.get("err_code", 0), error.get("description", ""))
    return response


def _decode_ack(reply: Msg) -> dict[str, Any]:
    """Return the response to a publish; a reply without data means no responders."""
    return decode_json(reply.data) if reply.data else _NO_RESPONDERS_RESPONSE


def _parse_end(end: Msg, subject: str) -> Mapping[str, str]:
    """Return the headers of the message that ended some replies; raise if it is an error."""
    status, headers = get_status(end), end.headers or {}
    if status == _NO_RESPONDERS:
        raise NoStreamResponse(subject)
    if status not in _END_STATUSES:
        raise RequestRejected(int(status), 0, headers.get("Description", ""))
    return headers
