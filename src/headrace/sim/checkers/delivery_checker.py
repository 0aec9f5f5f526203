"""Processes what the clients of a simulation receive: records replies in the history, checks and acknowledges
deliveries.

Owns promise C7: a message that a consumer confirmed is not delivered again, and no live message is skipped.
"""

from __future__ import annotations

import base64
import json
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING

from headrace.protocol import headers
from headrace.sim.checkers.history_checker import HistoryChecker, PurgeRecord, SentMessage, parse_ident
from headrace.sim.checkers.store_invariants import Violation
from headrace.sim.network.sim_client import ReceivedMsg, SimClient
from headrace.sim.sim_broker import SimBroker
from headrace.sim.workloads.sim_config import CONSUMERS

if TYPE_CHECKING:
    from headrace.sim.simulation import Simulation

ConsumerKey = tuple[str, str]
_ACK_PREFIX = b"$JS.ACK."
_FLOW_CONTROL_PREFIX = b"$JS.FC."
#: Variants of pull requests.
PULL_OPTIONS = (
    b'"expires":2000000000',
    b'"expires":2000000000',
    b'"expires":9000000000,"idle_heartbeat":1000000000',
    b'"no_wait":true',
    b'"no_wait":true,"expires":1000000000',
    b'"expires":2000000000,"max_bytes":300',
)
#: Consumers that get everything in the end: those that give up after `max_deliver` attempts may miss messages.
FULLY_DELIVERED_CONSUMERS = frozenset(
    name for consumers in CONSUMERS.values() for name, config in consumers if "max_deliver" not in config
)


class DeliveryChecker:
    """All consumers of a simulation. `ack_everything`: acknowledge everything, and wait for the confirmation."""

    def __init__(self, history_checker: HistoryChecker, rng: Random) -> None:
        self._history_checker = history_checker
        self._rng = rng
        self.ack_everything = False
        self.delivered: dict[ConsumerKey, set[int]] = {}
        self.confirmed_acks: dict[ConsumerKey, set[int]] = {}
        self._pending_resets: Counter[ConsumerKey] = Counter()  # resets per consumer without a reply yet
        self._abandoned_resets: set[ConsumerKey] = (
            set()
        )  # of clients that are gone; the server may run them later

    # Replies

    def make_publish_handler(self, message: SentMessage, sim: Simulation) -> Callable[[ReceivedMsg], None]:
        """Return a handler for the reply to a publish."""

        def on_reply(msg: ReceivedMsg) -> None:
            if msg.header.startswith(b"NATS/1.0 503"):
                return
            response = json.loads(msg.payload)
            if "error" in response:
                message.refused = True
            else:
                is_duplicate = response.get("duplicate", False)
                self._history_checker.record_ack(message, response["seq"], sim.now_ns, duplicate=is_duplicate)

        return on_reply

    def make_batch_handler(
        self, members: list[SentMessage], sim: Simulation
    ) -> Callable[[ReceivedMsg], None]:
        """Return a handler for the reply to a batch."""

        def on_reply(msg: ReceivedMsg) -> None:
            if msg.header.startswith(b"NATS/1.0 503"):
                return
            response = json.loads(msg.payload)
            if "error" in response:
                for member in members:
                    member.refused = True
                return
            if response["count"] != len(members):
                raise Violation(f"C5: the commit acknowledges {response['count']} of {len(members)} members")
            for index, member in enumerate(members):
                self._history_checker.record_ack(
                    member, response["seq"] - len(members) + 1 + index, sim.now_ns
                )

        return on_reply

    def make_removal_handler(
        self, stream: str, seqs: set[int], purge: PurgeRecord | None = None
    ) -> Callable[[ReceivedMsg], None]:
        """Return a handler for the reply to a deletion or a purge."""

        def on_reply(msg: ReceivedMsg) -> None:
            if purge is not None:
                purge.until_order = self._history_checker.last_order
            if msg.payload and "error" not in json.loads(msg.payload):
                self._history_checker.removals[stream].confirmed_deletes |= seqs

        return on_reply

    def make_info_handler(self, stream: str) -> Callable[[ReceivedMsg], None]:
        """Return a handler for a stream's info: it must include everything acknowledged before the request."""
        known = max((m.seq for m in self._history_checker.by_stream[stream]), default=0)

        def on_reply(msg: ReceivedMsg) -> None:
            if not msg.payload:
                return
            state = json.loads(msg.payload).get("state")
            if state is not None and state["last_seq"] < known:
                raise Violation(f"C1: info of {stream} ends at {state['last_seq']}, {known} was acknowledged")

        return on_reply

    def make_direct_get_handler(self, stream: str) -> Callable[[ReceivedMsg], None]:
        """Return a handler for the reply to a direct get: a message that was sent, with the sequence it always had."""

        def on_reply(msg: ReceivedMsg) -> None:
            seq = headers.get(msg.header, b"Nats-Sequence")
            if seq is not None:
                self._check_message(stream, int(seq), msg.payload, "read")

        return on_reply

    def make_get_handler(self, stream: str, seq: int) -> Callable[[ReceivedMsg], None]:
        """The same for a get through the API; a message removed for certain before the request must not be returned."""
        was_removed = seq in self._history_checker.removals[stream].confirmed_deletes

        def on_reply(msg: ReceivedMsg) -> None:
            response = json.loads(msg.payload) if msg.payload else {}
            if "message" in response:
                if was_removed:
                    raise Violation(f"C8: {stream} {seq} was removed, but was read")
                self._check_message(stream, seq, base64.b64decode(response["message"]["data"]), "read")

        return on_reply

    def _check_message(self, stream: str, seq: int, payload: bytes, observed_as: str) -> None:
        ident = parse_ident(payload)
        message = self._history_checker.sent.get(ident)
        if message is None or message.payload != payload:
            raise Violation(f"C2: {payload[:40]!r} was {observed_as}, but never sent")
        self._history_checker.record_seq_owner(stream, seq, ident, observed_as)

    # Consumers

    def pull(
        self, client: SimClient, stream: str, consumer: str, batch: int, *, vary_options: bool = False
    ) -> None:
        """Pull some messages from a consumer; `vary_options`: with random options."""
        inbox = client.subscribe(lambda msg: self.on_delivery(client, consumer, msg))
        pull_options = self._rng.choice(PULL_OPTIONS) if vary_options else PULL_OPTIONS[0]
        body = b'{"batch":%d,%b}' % (batch, pull_options)
        client.publish(f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}", body, None, inbox)

    def on_delivery(self, client: SimClient, consumer: str, msg: ReceivedMsg) -> None:
        """Check a delivery, and respond to it."""
        if not msg.reply.startswith(_ACK_PREFIX):
            flow_subject = msg.reply or headers.get(msg.header, b"Nats-Consumer-Stalled") or b""
            if flow_subject.startswith(_FLOW_CONTROL_PREFIX) and (
                self.ack_everything or self._rng.random() < 0.7
            ):
                client.publish(flow_subject.decode())
            return
        tokens = msg.reply.decode().split(".")
        stream, seq = (tokens[4], int(tokens[7])) if len(tokens) >= 11 else (tokens[2], int(tokens[5]))
        key = (stream, consumer)
        if b"Nats-Marker-Reason" not in msg.header:
            self._check_message(stream, seq, msg.payload, f"delivered to {consumer}")
        if seq in self.confirmed_acks.get(key, ()):
            raise Violation(f"C7: {consumer} received {stream} {seq} again after its ack was confirmed")
        self.delivered.setdefault(key, set()).add(seq)
        self._respond(client, key, seq, msg.reply)

    def _respond(self, client: SimClient, key: ConsumerKey, seq: int, reply: bytes) -> None:
        roll = 0.0 if self.ack_everything else self._rng.random()
        if roll < 0.5:
            self._history_checker.record_consumer_ack(*key, seq)

            def on_ack_confirmed(msg: ReceivedMsg) -> None:
                if msg.header:
                    return
                self._history_checker.removals[key[0]].confirmed_acks.add(seq)
                if not self._pending_resets[key] and key not in self._abandoned_resets:
                    self.confirmed_acks.setdefault(key, set()).add(seq)

            client.request(reply.decode(), b"+ACK", on_ack_confirmed)
        elif roll < 0.7:
            self._history_checker.record_consumer_ack(*key, seq)
            client.publish(reply.decode(), b"+ACK")
        elif roll < 0.8:
            client.publish(reply.decode(), self._rng.choice((b"-NAK", b'-NAK {"delay":1500000000}')))
        elif roll < 0.85:
            client.publish(reply.decode(), b"+WPI")
        elif roll < 0.9:
            self._history_checker.record_consumer_ack(*key, seq)
            if roll < 0.87:
                client.publish(reply.decode(), b"+TERM tired of it")
            else:
                inbox = client.subscribe(lambda msg: self.on_delivery(client, key[1], msg))
                client.publish(reply.decode(), b"+NXT 2", None, inbox)

    def reset(self, client: SimClient, stream: str, consumer: str, body: bytes) -> None:
        """Reset a consumer: messages confirmed before the reply may be delivered again."""
        key = (stream, consumer)
        self.confirmed_acks.pop(key, None)
        self._pending_resets[key] += 1

        def on_reply(msg: ReceivedMsg) -> None:
            self._pending_resets.subtract((key,))

        client.request(f"$JS.API.CONSUMER.RESET.{stream}.{consumer}", body, on_reply)

    def on_disconnect(self) -> None:
        """Expect no more replies: the client is gone. The server may run its resets later, if it has read them."""
        self._abandoned_resets |= set(+self._pending_resets)
        self._pending_resets.clear()

    def on_server_idle(self) -> None:
        """Forget resets of clients that are gone: they have happened by now, or never will."""
        self._abandoned_resets.clear()

    def check(self, broker: SimBroker) -> None:
        """Check that no live message was skipped."""
        for name, stream in broker.jetstream.streams.items():
            for consumer in stream.consumers.values():
                if consumer.name not in FULLY_DELIVERED_CONSUMERS:
                    continue
                seqs = stream.log.find_seqs(
                    consumer.filter, stream.log.first_seq, stream.log.last_seq
                ).tolist()
                missed = set(seqs) - self.delivered.get((name, consumer.name), set())
                if missed:
                    raise Violation(f"C7: {consumer.name} of {name} never received {sorted(missed)[:9]}")
