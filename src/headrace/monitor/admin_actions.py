"""Changes made on the web page: a few JetStream API requests, sent as any client would send them.

Owns the list of these requests. Rules and responses are the API's own, so the page can do nothing that a client could
not.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from typing import Any

from headrace.broker.accounts import Account
from headrace.protocol import subjects

API_PREFIX = b"$JS.API."
ALLOWED_REQUESTS = (
    "STREAM.PURGE.",
    "STREAM.DELETE.",
    "STREAM.MSG.DELETE.",
    "CONSUMER.DELETE.",
    "CONSUMER.PAUSE.",
    "CONSUMER.RESET.",
)
REPLY_TIMEOUT_S = 10.0


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
    reply, reply_future = b"_INBOX.monitor.%b" % secrets.token_hex(12).encode(), _ReplyFuture()
    account.router.subscribe_internal(reply, reply_future)
    try:
        account.router.publish(subject, reply, b"", body)
        async with asyncio.timeout(REPLY_TIMEOUT_S):
            return await reply_future.future
    finally:
        account.router.unsubscribe_internal(reply, reply_future)
