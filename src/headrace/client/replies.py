"""Answers to numbered messages, over one subscription.

nats-py's `request` waits for its answer; a batch sends on and looks at answers later, in the order of its choice. A
message is sent before `sent` returns, so the order of calls is the order on the wire.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Mapping
from typing import Any

import nats.errors
from nats.aio.client import Client as NATS
from nats.aio.msg import Msg

from headrace.client.errors import NoAnswer, NoStream, error_of

_NO_RESPONDERS = "503"


class Answer:
    """The answer to one message, when it comes."""

    def __init__(self, number: str, subject: str) -> None:
        self.number = number
        self._subject = subject
        self._message: asyncio.Future[Msg] = asyncio.get_running_loop().create_future()

    @property
    def done(self) -> bool:
        return self._message.done()

    def arrive(self, message: Msg) -> None:
        if not self._message.done():
            self._message.set_result(message)

    async def read(self, timeout_s: float) -> dict[str, Any] | None:
        """The JSON of the answer, None for an empty one; raises the error that the server answered."""
        try:
            message = await asyncio.wait_for(asyncio.shield(self._message), timeout_s)
        except TimeoutError as error:
            raise NoAnswer(f"no answer to a message on {self._subject!r} within {timeout_s:g} s") from error
        if message.headers and message.headers.get("Status") == _NO_RESPONDERS:
            raise NoStream(self._subject)
        if not message.data:
            return None
        answer: dict[str, Any] = json.loads(message.data)
        if "error" in answer:
            raise error_of(answer["error"])
        return answer


class Replies:
    """The reply subjects of one connection."""

    def __init__(self, connection: NATS) -> None:
        self._connection = connection
        self._prefix = f"{connection.new_inbox()}."
        self._numbers = itertools.count(1)
        self._open: dict[str, Answer] = {}
        self._subscribing: asyncio.Task[Any] | None = None

    async def send(self, subject: str, payload: bytes, headers: Mapping[str, str]) -> Answer:
        """Publish a message that asks for an answer."""
        await self._subscribed()
        number = str(next(self._numbers))
        answer = self._open[number] = Answer(number, subject)
        try:
            await self._connection.publish(
                subject, payload, reply=self._prefix + number, headers=dict(headers)
            )
        except BaseException:
            self.forget(answer)
            raise
        return answer

    def forget(self, *answers: Answer) -> None:
        """Nobody reads these any more."""
        for answer in answers:
            self._open.pop(answer.number, None)

    async def _subscribed(self) -> None:
        if self._connection.is_closed:
            raise nats.errors.ConnectionClosedError
        if self._subscribing is None:
            subscribing = self._connection.subscribe(f"{self._prefix}*", cb=self._arrived)
            self._subscribing = asyncio.ensure_future(subscribing)
        await self._subscribing

    async def _arrived(self, message: Msg) -> None:
        answer = self._open.pop(message.subject.removeprefix(self._prefix), None)
        if answer:
            answer.arrive(message)
