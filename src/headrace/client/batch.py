"""Atomic batches: several messages of one stream, stored together with consecutive sequences or not at all.

A message is held back until the next one or the commit arrives, because the last one carries the commit. The first
message requests a reply, and so does every `ack_every`-th: that finds errors early and bounds the number in flight.
Knows the headers of the protocol; must not know key-value buckets.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, Unpack, cast

from nats.js.api import PubAck

from headrace.client import outgoing_message as m
from headrace.client.codecs import Codec, encode_payload
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
from headrace.client.outgoing_message import Message, MessageOptions
from headrace.client.response_mux import PendingAck

if TYPE_CHECKING:
    from headrace.client.context import JetStream

#: Maximum number of messages in a batch, unless the server is configured otherwise.
MAX_MESSAGES = 1000
#: The API level of servers that support atomic batches (nats-server 2.12).
API_LEVEL = 2
_ACK_EVERY = 100
_WAIT_FOR_FIRST_FROM_BYTES = 64 * 1024

#: Headers that can cause an error which a server reports for the batch as a whole.
_HEADERS_BY_ERR_CODE: dict[int, frozenset[str]] = {
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
_CHECKED_HEADERS = frozenset().union(*_HEADERS_BY_ERR_CODE.values())
#: Errors of the acknowledged message itself, whatever the batch: too large, stream sealed, stream without batches.
_SINGLE_MESSAGE_ERRORS = {10054, 10109, 10174}
#: Errors after which the server keeps an open batch: too large a message, stream sealed, no resources left.
_BATCH_STAYS_ERRORS = {10002, 10023, 10054, 10109}


@dataclass
class BatchAck(PubAck):
    """The acknowledgement of a batch: `seq` is the sequence of its last message, `count` the number of messages stored."""

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
class _PendingMessage:
    subject: str
    payload: bytes
    headers: dict[str, str]


class _BatchState(Enum):
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
        codec: Codec | None = None,
    ) -> None:
        if ack_every < 1:
            raise ValueError(f"ack_every={ack_every}: must be at least 1")
        self.id = js.connection.new_inbox().rpartition(".")[2]
        self.ack: BatchAck | None = None
        self._js = js
        self._ack_every = ack_every
        self._timeout_s = js.timeout if timeout is None else timeout
        self._limit = limit
        self._codec = codec
        self._lock = asyncio.Lock()
        self._state = _BatchState.OPEN
        self._pending: _PendingMessage | None = None
        self._sent = 0
        self._first_subject = ""
        self._is_open_on_server = True  # until the server rejects it; irrelevant before the first message
        self._pending_acks: dict[Member, PendingAck] = {}
        self._checked_members: list[tuple[Member, dict[str, str]]] = []

    def __len__(self) -> int:
        """Return the number of messages so far."""
        return self._sent + (self._pending is not None)

    async def publish(
        self,
        /,
        subject: str,
        payload: Any = b"",
        headers: Mapping[str, str] | None = None,
        **options: Unpack[MessageOptions],
    ) -> int:
        """Add a message; return its position in the batch, from 1. The options are those of `Message`."""
        return await self.add(Message(subject, payload, headers, **options))

    async def add(self, message: Message) -> int:
        """Add a `Message` object."""
        async with self._lock:
            self._check_open()
            try:
                if len(self) >= self._limit:
                    raise make_too_large_error(self._limit)
                return await self._replace_pending(self._encode(message))
            except BaseException:
                # Continuing without this message would store only a part of the batch.
                self._state = _BatchState.FAILED
                raise

    def _encode(self, message: Message) -> _PendingMessage:
        payload, headers = encode_payload(message.payload, message.encode_headers(), self._codec)
        return _PendingMessage(message.subject, payload, dict(headers or {}))

    async def commit(self) -> BatchAck | None:
        """Store everything; return None if the batch is empty."""
        async with self._lock:
            self._check_open()
            self._state = _BatchState.FAILED
            try:
                self.ack = await self._commit()
            except BaseException:
                await self._abandon_on_server()
                raise
            self._state = _BatchState.DONE
            return self.ack

    async def abandon(self) -> None:
        """Store nothing. The server is notified, so that it does not keep the batch for its 10 s."""
        if self._state is not _BatchState.DONE:
            self._state = _BatchState.DONE
            await self._abandon_on_server()

    async def send_all(self, messages: list[Message]) -> BatchAck:
        """Send all messages and commit, with one round trip if the batch is small."""
        if not messages:
            raise ValueError("a batch needs at least one message")
        if len(messages) > self._limit:
            raise make_too_large_error(self._limit)
        pending = [self._encode(message) for message in messages]
        is_large = sum(len(message.payload) for message in pending) > _WAIT_FOR_FIRST_FROM_BYTES
        try:
            for message in pending:
                await self._replace_pending(message, wait_for_first=is_large)
        except BaseException:
            await self.abandon()
            raise
        ack = await self.commit()
        assert ack is not None, "only an empty batch gets no acknowledgement"
        return ack

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            await self.abandon()
        elif self._state is _BatchState.FAILED:
            await self.abandon()
            raise BatchClosed("a message of the batch was rejected, so nothing was stored")
        elif self._state is _BatchState.OPEN:
            await self.commit()

    def _check_open(self) -> None:
        if self._state is not _BatchState.OPEN:
            raise BatchClosed(
                "the batch was committed, rejected or abandoned: start a new one with js.batch()"
            )

    async def _replace_pending(self, message: _PendingMessage, *, wait_for_first: bool = True) -> int:
        if self._pending is not None:
            await self._send_pending(self._pending, wait_for_first=wait_for_first)
        self._pending = message
        return len(self)

    async def _send_pending(self, pending: _PendingMessage, *, wait_for_first: bool) -> None:
        """Send the message that was held back, as one that others follow."""
        await self._require_support()
        self._pending = None
        member = Member(self._sent + 1, pending.subject)
        if member.position != 1 and member.position % self._ack_every:
            headers = self._with_batch_headers(member.position, pending.headers)
            await self._js.connection.publish(pending.subject, pending.payload, headers=headers)
            self._record_sent(member, pending)
            return
        earlier = tuple(self._pending_acks)
        self._pending_acks[member] = await self._send_for_ack(member, pending)
        if member.position == 1:
            self._first_subject = pending.subject
            earlier = (member,) if wait_for_first else ()
        await self._check_acks(*earlier)

    async def _require_support(self) -> None:
        """Raise LevelTooLow for an older server, which would store the first message like any other."""
        if self._sent == 0 and (level := await self._js.api_level()) is not None and level < API_LEVEL:
            raise LevelTooLow.refuse(f"atomic batches need API level {API_LEVEL}, the server has {level}")

    async def _send_for_ack(
        self, member: Member, pending: _PendingMessage, *, commit: bool = False
    ) -> PendingAck:
        """Send a message that requests a reply."""
        headers = self._with_batch_headers(member.position, pending.headers)
        if commit:
            headers[m.BATCH_COMMIT] = "1"
        pending_ack = await self._js.reply_inbox.send(pending.subject, pending.payload, headers)
        self._record_sent(member, pending)
        return pending_ack

    def _record_sent(self, member: Member, pending: _PendingMessage) -> None:
        self._sent = member.position
        if not _CHECKED_HEADERS.isdisjoint(pending.headers):
            self._checked_members.append((member, pending.headers))

    def _with_batch_headers(self, position: int, headers: Mapping[str, str]) -> dict[str, str]:
        return {**headers, m.BATCH_ID: self.id, m.BATCH_SEQUENCE: str(position)}

    async def _check_acks(self, *members: Member) -> None:
        """Check replies to members: they are empty, or contain an error."""
        for member in members:
            pending_ack = self._pending_acks.pop(member)
            try:
                stored = await pending_ack.wait(self._timeout_s)
            except JetStreamError as error:
                self._on_rejected(error, member)
                raise
            finally:
                self._js.reply_inbox.discard(pending_ack)
            if stored is not None:
                raise LevelTooLow.refuse(
                    f"the server does not support batches and stored the message on {member.subject!r} immediately"
                )

    async def _commit(self) -> BatchAck | None:
        if self._pending is None:
            return None
        await self._require_support()
        member = Member(self._sent + 1, self._pending.subject)
        commit_ack = await self._send_for_ack(member, self._pending, commit=True)
        self._pending = None
        try:
            ack = await commit_ack.wait(self._timeout_s)
        except NoAnswer as error:
            text = f"no reply to the commit of batch {self.id} within {self._timeout_s:g} s"
            raise OutcomeUnknown(text) from error
        except JetStreamError as error:
            # An error of an earlier message is the cause of this one.
            await self._check_acks(
                *[early_member for early_member, early_ack in self._pending_acks.items() if early_ack.done]
            )
            self._on_rejected(error, member)
            raise
        finally:
            self._js.reply_inbox.discard(commit_ack, *self._pending_acks.values())
        return cast("BatchAck", BatchAck.from_response(ack or {}))

    async def _abandon_on_server(self) -> None:
        self._js.reply_inbox.discard(*self._pending_acks.values())
        if self._is_open_on_server and self._first_subject and not self._js.connection.is_closed:
            # A commit that is neither "1" nor "eob" makes servers drop the batch at once.
            headers = self._with_batch_headers(self._sent + 1, {m.BATCH_COMMIT: "abandon"})
            await self._js.connection.publish(self._first_subject, b"", headers=headers)

    def _on_rejected(self, error: JetStreamError, member: Member) -> None:
        """Handle an error that the server sent for a member."""
        if error.err_code and (member.position == 1 or error.err_code not in _BATCH_STAYS_ERRORS):
            self._is_open_on_server = False
        self._attribute_error(error, member)

    def _attribute_error(self, error: JetStreamError, acked_member: Member) -> None:
        """Name the member that was rejected, or the candidates."""
        if error.err_code in _SINGLE_MESSAGE_ERRORS or acked_member.position == 1:
            error.member = acked_member
            return
        reasons = _HEADERS_BY_ERR_CODE.get(error.err_code or 0, frozenset())
        # A member that expected the actual sequence cannot be the cause.
        matching_value = str(error.actual) if isinstance(error, WrongLastSequence) else None
        error.candidates = tuple(
            member
            for member, headers in self._checked_members
            if any(headers.get(name, matching_value) != matching_value for name in reasons)
        )
        if len(error.candidates) == 1:
            error.member = error.candidates[0]


def make_too_large_error(limit: int = MAX_MESSAGES) -> BatchTooLarge:
    return BatchTooLarge.refuse(f"a batch has at most {limit} messages")
