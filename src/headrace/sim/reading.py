"""What the clients of a world do with what they hear: answers go into the ledger, deliveries are judged and acknowledged.

Owns promise C7: what a consumer confirmed does not come again, and nothing that lives is passed over.
"""

from __future__ import annotations

import base64
import json
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING

from headrace.protocol import headers
from headrace.sim.broker import SimBroker
from headrace.sim.checks import Violation
from headrace.sim.clients import Arrival, SimClient
from headrace.sim.ledger import Ledger, Purge, Sent, ident_of
from headrace.sim.setting import CONSUMERS

if TYPE_CHECKING:
    from headrace.sim.world import World

Key = tuple[str, str]
_ACK = b"$JS.ACK."
_FLOW = b"$JS.FC."
#: How a pull request can ask.
WAYS = (
    b'"expires":2000000000',
    b'"expires":2000000000',
    b'"expires":9000000000,"idle_heartbeat":1000000000',
    b'"no_wait":true',
    b'"no_wait":true,"expires":1000000000',
    b'"expires":2000000000,"max_bytes":300',
)
#: Who gets everything in the end: what may be given up after so many attempts is not missed.
CONSUMED = frozenset(
    name for consumers in CONSUMERS.values() for name, config in consumers if "max_deliver" not in config
)


class Reader:
    """All consumers of a world. `diligent`: acknowledge everything, and wait for the confirmation."""

    def __init__(self, ledger: Ledger, rng: Random) -> None:
        self._ledger = ledger
        self._rng = rng
        self.diligent = False
        self.delivered: dict[Key, set[int]] = {}
        self.confirmed: dict[Key, set[int]] = {}
        self._resets: Counter[Key] = (
            Counter()
        )  # how often a consumer is being sent back, without an answer yet

    # Answers

    def published(self, message: Sent, world: World) -> Callable[[Arrival], None]:
        """What to do with the answer to a publish."""

        def answered(arrival: Arrival) -> None:
            if arrival.header.startswith(b"NATS/1.0 503"):
                return
            answer = json.loads(arrival.payload)
            if "error" in answer:
                message.refused = True
            else:
                twin = answer.get("duplicate", False)
                self._ledger.stored(message, answer["seq"], world.now_ns, duplicate=twin)

        return answered

    def committed(self, members: list[Sent], world: World) -> Callable[[Arrival], None]:
        """What to do with the answer to a batch."""

        def answered(arrival: Arrival) -> None:
            if arrival.header.startswith(b"NATS/1.0 503"):
                return
            answer = json.loads(arrival.payload)
            if "error" in answer:
                for member in members:
                    member.refused = True
                return
            if answer["count"] != len(members):
                raise Violation(f"C5: {answer['count']} of {len(members)} members are acknowledged")
            for place, member in enumerate(members):
                self._ledger.stored(member, answer["seq"] - len(members) + 1 + place, world.now_ns)

        return answered

    def removed(self, stream: str, seqs: set[int], purge: Purge | None = None) -> Callable[[Arrival], None]:
        """What to do with the answer to a deletion or a purge."""

        def answered(arrival: Arrival) -> None:
            if purge is not None:
                purge.until = self._ledger.order
            if arrival.payload and "error" not in json.loads(arrival.payload):
                self._ledger.removals[stream].deleted_surely |= seqs

        return answered

    def informed(self, stream: str) -> Callable[[Arrival], None]:
        """What to do with a stream's info: it may not speak of less than was acknowledged before it was asked."""
        known = max((m.seq for m in self._ledger.by_stream[stream]), default=0)

        def answered(arrival: Arrival) -> None:
            if not arrival.payload:
                return
            state = json.loads(arrival.payload).get("state")
            if state is not None and state["last_seq"] < known:
                raise Violation(f"C1: info of {stream} ends at {state['last_seq']}, {known} was acknowledged")

        return answered

    def got(self, stream: str) -> Callable[[Arrival], None]:
        """What to do with the answer to a direct get: a message that was sent, with the sequence it always had."""

        def answered(arrival: Arrival) -> None:
            seq = headers.get(arrival.header, b"Nats-Sequence")
            if seq is not None:
                self._seen(stream, int(seq), arrival.payload, "read")

        return answered

    def fetched(self, stream: str, seq: int) -> Callable[[Arrival], None]:
        """The same of a get through the API; what was surely removed before it was asked for is not there."""
        gone = seq in self._ledger.removals[stream].deleted_surely

        def answered(arrival: Arrival) -> None:
            answer = json.loads(arrival.payload) if arrival.payload else {}
            if "message" in answer:
                if gone:
                    raise Violation(f"C8: {stream} {seq} was removed and is read")
                self._seen(stream, seq, base64.b64decode(answer["message"]["data"]), "read")

        return answered

    def _seen(self, stream: str, seq: int, payload: bytes, how: str) -> None:
        ident = ident_of(payload)
        message = self._ledger.sent.get(ident)
        if message is None or message.payload != payload:
            raise Violation(f"C2: {payload[:40]!r} was {how}, which nobody sent")
        self._ledger.give(stream, seq, ident, how)

    # Consumers

    def pull(self, client: SimClient, stream: str, consumer: str, batch: int, *, picky: bool = False) -> None:
        """Ask a consumer for some messages; `picky`: in one of the ways that there are."""
        inbox = client.listen(lambda arrival: self.heard(client, consumer, arrival))
        more = self._rng.choice(WAYS) if picky else WAYS[0]
        body = b'{"batch":%d,%b}' % (batch, more)
        client.publish(f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}", body, None, inbox)

    def heard(self, client: SimClient, consumer: str, arrival: Arrival) -> None:
        """A consumer delivered something: judge it, and do something about it."""
        if not arrival.reply.startswith(_ACK):
            asked = arrival.reply or headers.get(arrival.header, b"Nats-Consumer-Stalled") or b""
            if asked.startswith(_FLOW) and (self.diligent or self._rng.random() < 0.7):
                client.publish(asked.decode())
            return
        words = arrival.reply.decode().split(".")
        stream, seq = (words[4], int(words[7])) if len(words) >= 11 else (words[2], int(words[5]))
        key = (stream, consumer)
        if b"Nats-Marker-Reason" not in arrival.header:
            self._seen(stream, seq, arrival.payload, f"delivered to {consumer}")
        if seq in self.confirmed.get(key, ()):
            raise Violation(f"C7: {consumer} got {stream} {seq} again, which it had confirmed")
        self.delivered.setdefault(key, set()).add(seq)
        self._respond(client, key, seq, arrival.reply)

    def _respond(self, client: SimClient, key: Key, seq: int, reply: bytes) -> None:
        luck = 0.0 if self.diligent else self._rng.random()
        if luck < 0.5:
            self._ledger.acknowledge(*key, seq)

            def confirmed(arrival: Arrival) -> None:
                if arrival.header:
                    return
                self._ledger.removals[key[0]].acked_surely.add(seq)
                if not self._resets[key]:
                    self.confirmed.setdefault(key, set()).add(seq)

            client.request(reply.decode(), b"+ACK", confirmed)
        elif luck < 0.7:
            self._ledger.acknowledge(*key, seq)
            client.publish(reply.decode(), b"+ACK")
        elif luck < 0.8:
            client.publish(reply.decode(), self._rng.choice((b"-NAK", b'-NAK {"delay":1500000000}')))
        elif luck < 0.85:
            client.publish(reply.decode(), b"+WPI")
        elif luck < 0.9:
            self._ledger.acknowledge(*key, seq)
            if luck < 0.87:
                client.publish(reply.decode(), b"+TERM tired of it")
            else:
                inbox = client.listen(lambda arrival: self.heard(client, key[1], arrival))
                client.publish(reply.decode(), b"+NXT 2", None, inbox)

    def reset(self, client: SimClient, stream: str, consumer: str, body: bytes) -> None:
        """Send a consumer back: what it confirmed until this is answered may come again."""
        key = (stream, consumer)
        self.confirmed.pop(key, None)
        self._resets[key] += 1
        answered: Callable[[Arrival], None] = lambda _: self._resets.subtract((key,))  # noqa: E731
        client.request(f"$JS.API.CONSUMER.RESET.{stream}.{consumer}", body, answered)

    def gone(self) -> None:
        """Whoever was sending a consumer back is gone: it happened by now, or never will."""
        self._resets.clear()

    def judge(self, broker: SimBroker) -> None:
        """Nothing that lives was passed over."""
        for name, stream in broker.jetstream.streams.items():
            for consumer in stream.consumers.values():
                if consumer.name not in CONSUMED:
                    continue
                seqs = stream.log.seqs(consumer.filter, stream.log.first_seq, stream.log.last_seq).tolist()
                missed = set(seqs) - self.delivered.get((name, consumer.name), set())
                if missed:
                    raise Violation(f"C7: {consumer.name} of {name} never got {sorted(missed)[:9]}")
