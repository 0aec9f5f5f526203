"""Changes asked for on the web page: a few requests of the JetStream API, made as any client would make them.

Owns which requests these are. Rules and answers are the API's own, so the page can do nothing that a client could not.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from typing import Any

from headrace.broker.accounts import Account
from headrace.protocol import subjects

API = b"$JS.API."
ALLOWED = (
    "STREAM.PURGE.",
    "STREAM.DELETE.",
    "STREAM.MSG.DELETE.",
    "CONSUMER.DELETE.",
    "CONSUMER.PAUSE.",
    "CONSUMER.RESET.",
)
PATIENCE_S = 10.0


class _Answer:
    """Takes one answer from the router."""

    def __init__(self) -> None:
        self.came: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def offer(self, session: Any, subject: bytes, reply: bytes, header: bytes, payload: bytes) -> None:
        if not self.came.done():
            self.came.set_result(payload)


def checked(body: bytes) -> tuple[str, bytes, bytes]:
    """Account, subject and body of a request as the page sends it; ValueError says what is wrong."""
    try:
        wanted = json.loads(body)
        account, subject = str(wanted.get("account", "$G")), str(wanted["subject"])
    except (ValueError, KeyError, AttributeError, RecursionError) as error:
        raise ValueError('expected {"account": ..., "subject": ..., "body": ...}') from error
    if not subject.startswith(ALLOWED):
        raise ValueError(f"{subject!r} is not among the requests of this page")
    whole = API + subject.encode()
    if not (subjects.valid(whole) and subjects.literal(whole)):
        raise ValueError(f"{subject!r} is no subject")
    inner = wanted.get("body")
    return account, whole, b"" if inner is None else json.dumps(inner).encode()


async def act(account: Account, subject: bytes, body: bytes) -> bytes:
    """Make the request; the API's answer, which comes when what it speaks of is durable."""
    reply, answer = b"_INBOX.monitor.%b" % secrets.token_hex(12).encode(), _Answer()
    account.hub.subscribe_internal(reply, answer)
    try:
        account.hub.publish(subject, reply, b"", body)
        async with asyncio.timeout(PATIENCE_S):
            return await answer.came
    finally:
        account.hub.unsubscribe_internal(reply, answer)
