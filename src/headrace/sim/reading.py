"""What the clients of a world do with what they hear: answers go into the ledger, deliveries are judged and acknowledged.

Owns promise C7: what a consumer confirmed does not come again, and nothing that lives is passed over.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING

from headrace.sim.broker import SimBroker
from headrace.sim.checks import Violation
from headrace.sim.clients import Arrival, SimClient
from headrace.sim.ledger import Ledger, Purge, Sent, ident_of

if TYPE_CHECKING:
    from headrace.sim.world import World

Key = tuple[str, str]
_ACK = b"$JS.ACK."


class Reader:
    """All consumers of a world. `diligent`: acknowledge everything, and wait for the confirmation."""

    def __init__(self, ledger: Ledger, rng: Random) -> None:
        self._ledger = ledger
        self._rng = rng
        self.diligent = False
        self.delivered: dict[Key, set[int]] = {}
        self.confirmed: dict[Key, set[int]] = {}
        self._resetting: set[Key] = set()  # somebody sends the consumer back, and has no answer yet

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

    # Consumers

    def pull(self, client: SimClient, stream: str, consumer: str, batch: int) -> None:
        """Ask a consumer for some messages."""
        inbox = client.listen(lambda arrival: self.heard(client, consumer, arrival))
        body = b'{"batch":%d,"expires":2000000000}' % batch
        client.publish(f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}", body, None, inbox)

    def heard(self, client: SimClient, consumer: str, arrival: Arrival) -> None:
        """A consumer delivered something: judge it, and do something about it."""
        if not arrival.reply.startswith(_ACK):
            return
        words = arrival.reply.decode().split(".")
        stream, seq = (words[4], int(words[7])) if len(words) >= 11 else (words[2], int(words[5]))
        key = (stream, consumer)
        if b"Nats-Marker-Reason" not in arrival.header:
            ident = ident_of(arrival.payload)
            message = self._ledger.sent.get(ident)
            if message is None or message.payload != arrival.payload:
                raise Violation(f"C2: {consumer} got {arrival.payload[:40]!r}, which nobody sent")
            self._ledger.give(stream, seq, ident, f"delivered to {consumer}")
        if seq in self.confirmed.get(key, ()):
            raise Violation(f"C7: {consumer} got {stream} {seq} again, which it had confirmed")
        self.delivered.setdefault(key, set()).add(seq)
        self._respond(client, key, seq, arrival.reply)

    def _respond(self, client: SimClient, key: Key, seq: int, reply: bytes) -> None:
        luck = 0.0 if self.diligent else self._rng.random()
        if luck < 0.5:
            self._ledger.removals[key[0]].acked.add(seq)

            def confirmed(arrival: Arrival) -> None:
                if arrival.header:
                    return
                self._ledger.removals[key[0]].acked_surely.add(seq)
                if key not in self._resetting:
                    self.confirmed.setdefault(key, set()).add(seq)

            client.request(reply.decode(), b"+ACK", confirmed)
        elif luck < 0.7:
            self._ledger.removals[key[0]].acked.add(seq)
            client.publish(reply.decode(), b"+ACK")
        elif luck < 0.8:
            client.publish(reply.decode(), b"-NAK")
        elif luck < 0.85:
            client.publish(reply.decode(), b"+WPI")

    def reset(self, client: SimClient, stream: str, consumer: str) -> None:
        """Send a consumer back: what it confirmed until this is answered may come again."""
        key = (stream, consumer)
        self.confirmed.pop(key, None)
        self._resetting.add(key)
        answered: Callable[[Arrival], None] = lambda _: self._resetting.discard(key)  # noqa: E731
        client.request(f"$JS.API.CONSUMER.RESET.{stream}.{consumer}", b'{"seq":1}', answered)

    def gone(self) -> None:
        """Whoever was sending a consumer back is gone: it happened by now, or never will."""
        self._resetting.clear()

    def judge(self, broker: SimBroker) -> None:
        """Nothing that lives was passed over."""
        for name, stream in broker.jetstream.streams.items():
            for consumer in stream.consumers.values():
                if consumer.name not in ("pull", "push", "some", "worker"):
                    continue
                seqs = stream.log.seqs(consumer.filter, stream.log.first_seq, stream.log.last_seq).tolist()
                missed = set(seqs) - self.delivered.get((name, consumer.name), set())
                if missed:
                    raise Violation(f"C7: {consumer.name} of {name} never got {sorted(missed)[:9]}")
