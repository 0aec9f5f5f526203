"""Atomic batches: several messages of one stream, stored together with consecutive sequences or not at all.

A message is held back until the next one or the commit comes, because the last one carries the commit. The first one
asks for an answer, and so does every `ack_every`-th: that finds errors early and bounds what is under way. Knows the
headers of the protocol; must not know key-value buckets.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, cast

from nats.js.api import PubAck

from headrace.client import messages as m
from headrace.client.durations import Duration
from headrace.client.errors import (
    BatchClosed,
    BatchTooLarge,
    JetStreamError,
    LevelTooLow,
    Member,
    NoAnswer,
    OutcomeUnknown,
    WrongLastSequence,
)
from headrace.client.messages import Message
from headrace.client.replies import Answer

if TYPE_CHECKING:
    from headrace.client.context import JetStream

#: What a server takes in one batch, unless it is configured otherwise.
MAX_MESSAGES = 1000
#: The API level of servers that know atomic batches (nats-server 2.12).
API_LEVEL = 2
_ACK_EVERY = 100
_EARLY_ERRORS_FROM_BYTES = 64 * 1024

#: The headers that may be the reason of an error which a server reports for the batch as a whole.
_REASONS: dict[int, frozenset[str]] = {
    10060: frozenset({m.EXPECTED_STREAM}),
    10071: frozenset({m.EXPECTED_SEQUENCE, m.EXPECTED_SUBJECT_SEQUENCE}),
    10111: frozenset({m.ROLLUP}),
    10164: frozenset({m.EXPECTED_SEQUENCE, m.EXPECTED_SUBJECT_SEQUENCE}),
    10165: frozenset({m.TTL}),
    10166: frozenset({m.TTL}),
    10177: frozenset({m.EXPECTED_MSG_ID}),
    10193: frozenset({m.EXPECTED_SUBJECT}),
    10201: frozenset({m.MSG_ID}),
}
_TELLING = frozenset().union(*_REASONS.values())
#: Errors of the message that is answered, whatever the batch: too large, stream sealed, stream without batches.
_OWN_ERRORS = {10054, 10109, 10174}


@dataclass
class BatchAck(PubAck):
    """The acknowledgement of a batch: `seq` is the sequence of its last message, `count` how many were stored."""

    @property
    def batch(self) -> str:
        return self.batch_id or ""

    @property
    def count(self) -> int:
        return self.batch_size or 0

    @property
    def first_seq(self) -> int:
        """The sequence of the first message; the others follow without a gap."""
        return self.seq - self.count + 1


@dataclass(frozen=True, slots=True)
class _Held:
    subject: str
    payload: bytes
    headers: dict[str, str]


class _State(Enum):
    OPEN = auto()
    FAILED = auto()
    DONE = auto()


class Batch:
    """One atomic batch, as an asynchronous context: committed at its end, abandoned on an exception.

    ::

        async with js.batch() as batch:
            await batch.publish("orders.1.line", b"3 pears", expect_last_subject_sequence=0)
            await batch.publish("orders.1.total", b"4.20")
        print(batch.ack.seq, batch.ack.count)
    """

    def __init__(
        self,
        js: JetStream,
        *,
        ack_every: int = _ACK_EVERY,
        timeout: float | None = None,
        limit: int = MAX_MESSAGES,
    ) -> None:
        if ack_every < 1:
            raise ValueError(f"ack_every={ack_every}: at least 1")
        self.id = js.connection.new_inbox().rpartition(".")[2]
        self.ack: BatchAck | None = None
        self._js = js
        self._ack_every = ack_every
        self._timeout_s = js.timeout if timeout is None else timeout
        self._limit = limit
        self._turn = asyncio.Lock()
        self._state = _State.OPEN
        self._held: _Held | None = None
        self._sent = 0
        self._first_subject = ""
        self._unread: dict[Member, Answer] = {}
        self._telling: list[tuple[Member, dict[str, str]]] = []

    def __len__(self) -> int:
        """How many messages it has so far."""
        return self._sent + (self._held is not None)

    async def publish(
        self,
        subject: str,
        payload: bytes = b"",
        headers: Mapping[str, str] | None = None,
        *,
        expect_last_sequence: int | None = None,
        expect_last_subject_sequence: int | None = None,
        expect_last_subject: str | None = None,
        ttl: Duration | None = None,
        msg_id: str | None = None,
        stream: str | None = None,
    ) -> int:
        """Add a message; its position in the batch, from 1. The options are those of `Message`."""
        message = Message(
            subject,
            payload,
            headers,
            expect_last_sequence=expect_last_sequence,
            expect_last_subject_sequence=expect_last_subject_sequence,
            expect_last_subject=expect_last_subject,
            ttl=ttl,
            msg_id=msg_id,
            stream=stream,
        )
        return await self.add(message)

    async def add(self, message: Message) -> int:
        """Add a message that was made before."""
        async with self._turn:
            self._check_open()
            try:
                if len(self) >= self._limit:
                    raise too_large(self._limit)
                return await self._hold(_Held(message.subject, message.payload, message.wire_headers()))
            except BaseException:
                # Going on without this message would store a part of what was meant to be whole.
                self._state = _State.FAILED
                raise

    async def commit(self) -> BatchAck | None:
        """Store everything; None if the batch is empty."""
        async with self._turn:
            self._check_open()
            self._state = _State.FAILED
            try:
                self.ack = await self._commit()
            except BaseException:
                await self._drop()
                raise
            self._state = _State.DONE
            return self.ack

    async def abandon(self) -> None:
        """Store nothing. The server is told, so that it does not keep the batch for its 10 s."""
        if self._state is not _State.DONE:
            self._state = _State.DONE
            await self._drop()

    async def send_all(self, messages: list[Message]) -> BatchAck:
        """Everything in one go, with one round trip where little is at stake."""
        if not messages:
            raise ValueError("a batch needs at least one message")
        if len(messages) > self._limit:
            raise too_large(self._limit)
        held = [_Held(message.subject, message.payload, message.wire_headers()) for message in messages]
        big = sum(len(message.payload) for message in messages) > _EARLY_ERRORS_FROM_BYTES
        try:
            for message in held:
                await self._hold(message, wait_for_first=big)
        except BaseException:
            await self.abandon()
            raise
        ack = await self.commit()
        assert ack is not None, "only an empty batch has no acknowledgement"
        return ack

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            await self.abandon()
        elif self._state is _State.FAILED:
            await self.abandon()
            raise BatchClosed("a message of the batch was refused, so nothing was stored")
        elif self._state is _State.OPEN:
            await self.commit()

    def _check_open(self) -> None:
        if self._state is not _State.OPEN:
            raise BatchClosed(
                "the batch is committed, refused or abandoned: begin another one with js.batch()"
            )

    async def _hold(self, message: _Held, *, wait_for_first: bool = True) -> int:
        if self._held is not None:
            await self._release(self._held, wait_for_first=wait_for_first)
        self._held = message
        return len(self)

    async def _release(self, held: _Held, *, wait_for_first: bool) -> None:
        """Send the message that was held back, as one that others follow."""
        await self._require_support()
        self._held = None
        member = Member(self._sent + 1, held.subject)
        if member.position != 1 and member.position % self._ack_every:
            headers = self._numbered(member.position, held.headers)
            await self._js.connection.publish(held.subject, held.payload, headers=headers)
            self._note(member, held)
            return
        earlier = tuple(self._unread)
        self._unread[member] = await self._ask(member, held)
        if member.position == 1:
            self._first_subject = held.subject
            earlier = (member,) if wait_for_first else ()
        await self._read(*earlier)

    async def _require_support(self) -> None:
        """An older server would store the first message like any other."""
        if self._sent == 0 and (level := await self._js.api_level()) is not None and level < API_LEVEL:
            raise LevelTooLow.refuse(f"atomic batches need API level {API_LEVEL}, the server has {level}")

    async def _ask(self, member: Member, held: _Held, *, commit: bool = False) -> Answer:
        """Send a message that wants an answer."""
        headers = self._numbered(member.position, held.headers)
        if commit:
            headers[m.BATCH_COMMIT] = "1"
        answer = await self._js.replies.send(held.subject, held.payload, headers)
        self._note(member, held)
        return answer

    def _note(self, member: Member, held: _Held) -> None:
        self._sent = member.position
        if not _TELLING.isdisjoint(held.headers):
            self._telling.append((member, held.headers))

    def _numbered(self, position: int, headers: Mapping[str, str]) -> dict[str, str]:
        return {**headers, m.BATCH_ID: self.id, m.BATCH_SEQUENCE: str(position)}

    async def _read(self, *members: Member) -> None:
        """Answers to members are empty, or say what is wrong with them."""
        for member in members:
            answer = self._unread.pop(member)
            try:
                stored = await answer.read(self._timeout_s)
            except JetStreamError as error:
                self._blame(error, member)
                raise
            finally:
                self._js.replies.forget(answer)
            if stored is not None:
                raise LevelTooLow.refuse(f"the server knows no batches and stored {member.subject!r} at once")

    async def _commit(self) -> BatchAck | None:
        if self._held is None:
            return None
        await self._require_support()
        member = Member(self._sent + 1, self._held.subject)
        answer = await self._ask(member, self._held, commit=True)
        self._held = None
        try:
            ack = await answer.read(self._timeout_s)
        except NoAnswer as error:
            text = f"no answer to the commit of batch {self.id} within {self._timeout_s:g} s"
            raise OutcomeUnknown(text) from error
        except JetStreamError as error:
            # An error of an earlier message is the cause of this one.
            await self._read(*[early for early, told in self._unread.items() if told.done])
            self._blame(error, member)
            raise
        finally:
            self._js.replies.forget(answer, *self._unread.values())
        return cast("BatchAck", BatchAck.from_response(ack or {}))

    async def _drop(self) -> None:
        self._js.replies.forget(*self._unread.values())
        if self._first_subject and not self._js.connection.is_closed:
            # A commit that is neither "1" nor "eob" makes servers drop the batch at once.
            headers = self._numbered(self._sent + 1, {m.BATCH_COMMIT: "abandon"})
            await self._js.connection.publish(self._first_subject, b"", headers=headers)

    def _blame(self, error: JetStreamError, answered: Member) -> None:
        """Name the member that was refused, or those that it may have been."""
        if error.err_code in _OWN_ERRORS or answered.position == 1:
            error.member = answered
            return
        reasons = _REASONS.get(error.err_code or 0, frozenset())
        # Who expected the sequence that the server has is not the one who expected another.
        innocent = str(error.actual) if isinstance(error, WrongLastSequence) else None
        error.candidates = tuple(
            member
            for member, headers in self._telling
            if any(headers.get(name, innocent) != innocent for name in reasons)
        )
        if len(error.candidates) == 1:
            error.member = error.candidates[0]


def too_large(limit: int = MAX_MESSAGES) -> BatchTooLarge:
    return BatchTooLarge.refuse(f"a batch has at most {limit} messages")


def as_messages(messages: Iterable[Message | tuple[Any, ...]]) -> list[Message]:
    """Messages, or tuples (subject, payload) or (subject, payload, headers), as messages."""
    return [each if isinstance(each, Message) else Message(*each) for each in messages]
