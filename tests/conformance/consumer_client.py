"""Helpers for tests of consumers: a stream with messages, its consumers, and parsed ack subjects."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

from conformance.client import API, Client, Message, encode

MS = 1_000_000
SECOND = 1_000_000_000


class Ack(NamedTuple):
    """The numbers in an ack subject."""

    delivered: int
    seq: int
    cseq: int
    time_ns: int
    pending: int


def ack_of(message: Message) -> Ack:
    assert message.reply.startswith("$JS.ACK."), message
    return Ack(*(int(token) for token in message.reply.split(".")[-5:]))


def seqs_of(messages: list[Message]) -> list[int]:
    return [ack_of(message).seq for message in messages if message.reply]


class Reading:
    """One stream, called `name`, and its consumers."""

    def __init__(self, client: Client, name: str) -> None:
        self.client = client
        self.name = name

    def fill(self, count: int, *subjects: str) -> None:
        """Store messages `m1`, `m2`, ... on the subjects in turn."""
        for number in range(1, count + 1):
            subject = subjects[(number - 1) % len(subjects)] if subjects else "s"
            assert "error" not in self.client.store(f"{self.name}.{subject}", f"m{number}")

    def subject(self, tail: str) -> str:
        return f"{self.name}.{tail}"

    def create(self, consumer: str, action: str = "", **config: Any) -> dict[str, Any]:
        """Create or update a durable consumer; its ack policy is explicit unless the keywords say otherwise."""
        full = {"durable_name": consumer, "ack_policy": "explicit", **config}
        full = {key: value for key, value in full.items() if value is not None}
        body = {"stream_name": self.name, "config": full, "action": action}
        return self.client.api(f"CONSUMER.CREATE.{self.name}.{consumer}", body)

    def made(self, consumer: str, **config: Any) -> dict[str, Any]:
        info = self.create(consumer, **config)
        assert "error" not in info, info
        return info

    def info(self, consumer: str) -> dict[str, Any]:
        return self.client.api(f"CONSUMER.INFO.{self.name}.{consumer}")

    def state(self) -> dict[str, Any]:
        state: dict[str, Any] = self.client.api(f"STREAM.INFO.{self.name}")["state"]
        return state

    def next_subject(self, consumer: str) -> str:
        return f"{API}CONSUMER.MSG.NEXT.{self.name}.{consumer}"

    def fetch(self, consumer: str, count: int, timeout_s: float = 60.0) -> list[Message]:
        """Pull exactly `count` messages."""
        inbox = f"{self.client.inbox}-fetch-{time.monotonic_ns()}"
        sid = self.client.subscribe(inbox)
        body = encode({"batch": count, "expires": int(timeout_s * SECOND)})
        self.client.publish(self.next_subject(consumer), body, reply=inbox)
        messages = [self.client.next(sid, timeout_s) for _ in range(count)]
        self.client.unsubscribe(sid)
        return messages

    def available(self, consumer: str, **request: Any) -> list[Message]:
        """Pull the available messages, including the final status."""
        return self.client.collect(self.next_subject(consumer), {"batch": 100, "no_wait": True, **request})

    def ask(self, consumer: str, body: Any) -> str:
        """Send a pull request; return the subscription for its replies."""
        inbox = f"{self.client.inbox}-pull-{time.monotonic_ns()}"
        sid = self.client.subscribe(inbox)
        self.client.publish(self.next_subject(consumer), encode(body), reply=inbox)
        return sid

    def beyond_heartbeats(self, sid: str, count: int) -> list[Message]:
        """Return the next messages that are not heartbeats; a slow machine may receive heartbeats in between."""
        found: list[Message] = []
        while len(found) < count:
            message = self.client.next(sid)
            if message.status != "100 Idle Heartbeat":
                found.append(message)
        return found

    def reply(self, message: Message, payload: bytes = b"") -> None:
        """Send an ack of any kind, without waiting for a confirmation."""
        self.client.publish(message.reply, payload)

    def confirm(self, message: Message, payload: bytes = b"+ACK") -> Message:
        """Send an ack of any kind, and wait until the server confirms it."""
        return self.client.request(message.reply, payload)

    def reset(self, consumer: str, body: Any = None, headers: dict[str, str] | None = None) -> dict[str, Any]:
        return self.client.api(f"CONSUMER.RESET.{self.name}.{consumer}", body, headers)

    def silent(self, subject: str, payload: bytes = b"", timeout_s: float = 0.3) -> bool:
        """Return whether a request gets no reply."""
        try:
            self.client.request(subject, payload, timeout_s=timeout_s)
        except TimeoutError:
            return True
        return False


def position(info: dict[str, Any], which: str) -> tuple[int, int]:
    return info[which]["consumer_seq"], info[which]["stream_seq"]


def eventually(check: Any, timeout_s: float = 90.0) -> Any:
    """Wait for a true value of `check()` and return it."""
    deadline = time.monotonic() + timeout_s
    while True:
        value = check()
        if value:
            return value
        assert time.monotonic() < deadline, f"not within {timeout_s} s: last value {value!r}"
        time.sleep(0.02)
