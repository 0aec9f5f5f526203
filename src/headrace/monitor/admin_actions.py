"""Changes made on the web page: some JetStream API requests and messages, sent as any client would send them.

Owns the list of these requests. Rules and responses are the API's own, so the page can do nothing that a client could
not.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from base64 import b64decode
from typing import Any, NamedTuple

from headrace.broker.accounts import Account
from headrace.broker.consumers.dead_letter_target import find_capturing
from headrace.protocol import headers, subjects

API_PREFIX = b"$JS.API."
ALLOWED_REQUESTS = (
    "STREAM.CREATE.",
    "STREAM.UPDATE.",
    "STREAM.PURGE.",
    "STREAM.DELETE.",
    "STREAM.MSG.DELETE.",
    "STREAM.MSG.REDRIVE.",
    "CONSUMER.CREATE.",
    "CONSUMER.DELETE.",
    "CONSUMER.PAUSE.",
    "CONSUMER.RESET.",
)
REPLY_TIMEOUT_S = 10.0
#: Requests have their own list, and replies belong to clients.
_RESERVED_SUBJECTS = (b"$JS.", b"$SYS.", b"_INBOX.", b"_R_.")


class _ReplyFuture:
    """Receives one reply from the router."""

    def __init__(self) -> None:
        self.future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def on_message(self, session: Any, subject: bytes, reply: bytes, header: bytes, payload: bytes) -> None:
        if not self.future.done():
            self.future.set_result(payload)


def parse_action(body: bytes) -> tuple[str, bytes, bytes]:
    """Parse a request of the page; return account, subject and body, or raise ValueError."""
    try:
        request = json.loads(body)
        account, subject = str(request.get("account", "$G")), str(request["subject"])
    except (ValueError, KeyError, AttributeError, RecursionError) as error:
        raise ValueError('expected {"account": ..., "subject": ..., "body": ...}') from error
    if not subject.startswith(ALLOWED_REQUESTS):
        raise ValueError(f"the request {subject!r} is not allowed on this page")
    full_subject = API_PREFIX + subject.encode()
    if not (subjects.is_valid(full_subject) and subjects.is_literal(full_subject)):
        raise ValueError(f"invalid subject {subject!r}")
    request_body = request.get("body")
    return account, full_subject, b"" if request_body is None else json.dumps(request_body).encode()


async def run_action(account: Account, subject: bytes, body: bytes) -> bytes:
    """Send the request; return the API's response, which comes when the change is durable."""
    return await _send_request(account, subject, b"", body)


class OutgoingMessage(NamedTuple):
    """A message that a viewer publishes."""

    account: str
    subject: bytes
    header: bytes
    payload: bytes


def parse_message(body: bytes) -> OutgoingMessage:
    """Parse a message to publish; raise ValueError if it is not valid."""
    try:
        request = json.loads(body)
        account, subject = str(request.get("account", "$G")), str(request["subject"]).encode()
        pairs = [(str(name).strip(), str(value).strip()) for name, value in request.get("headers") or []]
        encoded = request.get("base64")
        payload = (
            b64decode(encoded, validate=True)
            if encoded is not None
            else str(request.get("text", "")).encode()
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(
            'expected {"account": ..., "subject": ..., "headers": [...], "text": ...}'
        ) from error
    if not subjects.is_valid_publish(subject) or subject.startswith(_RESERVED_SUBJECTS):
        raise ValueError(f"cannot publish to {subject.decode(errors='replace')!r} on this page")
    for name, value in pairs:
        if not name or any(each in name + value for each in "\r\n") or ":" in name:
            raise ValueError(f"invalid header {name!r}")
    header = headers.build([(name.encode(), value.encode()) for name, value in pairs]) if pairs else b""
    return OutgoingMessage(account, subject, header, payload)


async def publish_message(account: Account, message: OutgoingMessage) -> bytes:
    """Publish a message; return the PubAck, which comes when the message is durable, or how many received it."""
    subject, header, payload = message.subject, message.header, message.payload
    if find_capturing(account.router, subject) is not None:
        return await _send_request(account, subject, header, payload)
    return json.dumps({"receivers": account.router.publish(subject, b"", header, payload)}).encode()


async def _send_request(account: Account, subject: bytes, header: bytes, body: bytes) -> bytes:
    reply, reply_future = b"_INBOX.monitor.%b" % secrets.token_hex(12).encode(), _ReplyFuture()
    account.router.subscribe_internal(reply, reply_future)
    try:
        account.router.publish(subject, reply, header, body)
        async with asyncio.timeout(REPLY_TIMEOUT_S):
            return await reply_future.future
    finally:
        account.router.unsubscribe_internal(reply, reply_future)
