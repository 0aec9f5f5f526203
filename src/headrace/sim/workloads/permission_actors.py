"""Actors with restricted permissions, and a stream that is deleted and created again.

Owns what is expected of both: denied messages are neither delivered nor stored, allowed ones still work, a queue group
gets a message once, and nothing from a deleted stream is in the next one of the same name.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING

from headrace.sim.checkers.store_invariants import Violation
from headrace.sim.network.sim_client import ReceivedMsg, SimClient
from headrace.sim.workloads.sim_config import CHURNING_STREAM, SUBJECTS
from headrace.sim.workloads.workload_actions import send_message

if TYPE_CHECKING:
    from headrace.sim.simulation import Simulation
    from headrace.storage import StreamLog


class PermissionActors:
    """All clients that publish and subscribe on `g.>`."""

    def __init__(self) -> None:
        self._published_count = 0
        self._forbidden: set[bytes] = set()
        self._queue_received: set[bytes] = set()

    def add_client(self, client: SimClient) -> None:
        """Subscribe a client to everything it may receive and, if it is restricted, to what it may not."""
        client.subscribe(self._make_handler(client), b"g.>")
        client.subscribe(self._make_handler(client, self._queue_received), b"g.>", b"crew")
        if client.is_restricted:
            for subject, queue in ((b"g.3", b""), (b"g.>", b"spies"), (b"d.push", b""), (b"k.>", b"crew")):
                client.subscribe(_on_forbidden_msg, subject, queue)

    def publish(self, client: SimClient, number: int) -> bytes:
        """Publish a message; return its payload."""
        self._published_count += 1
        payload, subject = b"said %d" % self._published_count, f"g.{number}"
        if client.identity.is_publish_denied(subject):
            self._forbidden.add(payload)
        client.publish(subject, payload)
        return payload

    def _make_handler(
        self, client: SimClient, once: set[bytes] | None = None
    ) -> Callable[[ReceivedMsg], None]:
        def on_msg(msg: ReceivedMsg) -> None:
            payload = msg.payload
            if payload in self._forbidden:
                raise Violation(f"permissions: {payload!r} on {msg.subject!r} was denied, but was delivered")
            if client.is_restricted and msg.subject == b"g.3":
                raise Violation("permissions: a restricted user received a denied message")
            if once is None:
                client.received.append(payload)
            elif payload in once:
                raise Violation(f"a queue group received {payload!r} twice")
            else:
                once.add(payload)

        return on_msg

    def check(self, sim: Simulation) -> None:
        """Check without faults: every client receives exactly what it should, and gets an error for what it may not do."""
        unrestricted, restricted = sim.connect(restricted=False), sim.connect(restricted=True)
        sim.clients += [unrestricted, restricted]
        sim.run_until_idle()
        published = {
            (client, number): self.publish(client, number)
            for client in (unrestricted, restricted)
            for number in range(SUBJECTS)
        }
        stored = send_message(sim, restricted, "P", "p.0", {})
        send_message(sim, restricted, "P", "p.3", {})
        sim.run_until_idle()
        for client in (unrestricted, restricted):
            expected = [
                payload
                for (publisher, number), payload in published.items()
                if number < 3 or publisher is unrestricted is client
            ]
            if client.received != expected and sorted(client.received) != sorted(expected):
                raise Violation(f"permissions: received {client.received} instead of {expected}")
        if len(restricted.errors) != 6:
            raise Violation(f"permissions: expected 6 errors, got {restricted.errors}")
        if not (stored.seq or stored.refused):
            raise Violation("permissions: an allowed publish of a restricted user got no reply")


def _on_forbidden_msg(msg: ReceivedMsg) -> None:
    raise Violation(f"permissions: a restricted user received {msg.payload[:40]!r} on {msg.subject!r}")


class ChurningStream:
    """A stream that is deleted and created again. Its payloads begin with the sender and an increasing number."""

    def __init__(self) -> None:
        self._number = 0
        #: Per client, the number up to which no message may exist any more.
        self._deleted_up_to: dict[int, int] = {}

    def next_payload(self, client: SimClient) -> bytes:
        """Return the beginning of the next payload."""
        self._number += 1
        return b"%d#%d#" % (client.cid, self._number)

    def on_create_reply(self, msg: ReceivedMsg) -> None:
        """Handle the reply to its creation; it may exist already, or exceed a limit."""
        if msg.payload:
            error = json.loads(msg.payload).get("error", {})
            if error.get("err_code", 0) not in (0, 10023, 10027, 10047, 10058):
                raise Violation(f"{CHURNING_STREAM} was rejected: {error}")

    def make_delete_handler(self, client: SimClient) -> Callable[[ReceivedMsg], None]:
        """Record a deletion that is about to be sent; return a handler for the reply."""
        sent = self._number

        def on_reply(msg: ReceivedMsg) -> None:
            if msg.payload and json.loads(msg.payload).get("success"):
                self._deleted_up_to[client.cid] = max(self._deleted_up_to.get(client.cid, 0), sent)

        return on_reply

    def check(self, log: StreamLog) -> None:
        """C8: messages sent before a stream was deleted are not in its successor."""
        for seq in log.find_seqs(None, log.first_seq, log.last_seq).tolist():
            found = log.get(seq)
            if found is None:
                raise Violation(f"C9: {CHURNING_STREAM} {seq} is listed, but cannot be read")
            cid, number = map(int, found[3].split(b"#")[:2])
            if number <= self._deleted_up_to.get(cid, 0):
                raise Violation(f"C8: {CHURNING_STREAM} {seq} belongs to a deleted stream")
