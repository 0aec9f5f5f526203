"""What clients and the object store have seen, and what must therefore hold.

Owns the ledger of facts: a message that anybody has seen, an acknowledgment or a removal that was confirmed, with the
server that sent it. Invariant: a fact was sent to somebody, so no later server may contradict it. Must not know how a
server keeps its promises.
"""

from __future__ import annotations

import json
from copy import copy
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.archive.commit_gate import get_durable_frame
from headrace.archive.group_format import LOG_PREFIX, GroupHeader, decode_group, parse_log_key
from headrace.archive.group_log import FLOOR_KEY
from headrace.sim.checkers.store_invariants import Violation, read_log_state
from headrace.storage import Store

from .bucket import StoredObject
from .options import TwoBrokerOptions
from .server import SERVER

if TYPE_CHECKING:
    from .server import LeaderServer

PREFIX = f"{SERVER:016x}/"


class Fact(NamedTuple):
    """A message that somebody has seen, and the server that sent it."""

    payload: bytes
    server: str
    epoch: int

    def __str__(self) -> str:
        return f"{self.payload[:16]!r} by {self.server} of epoch {self.epoch}"


class LogChecker:
    """Sees each change of the log when it happens in the object store."""

    def __init__(self) -> None:
        self.headers: dict[int, GroupHeader] = {}  # of all groups that were ever created, in their turn
        self.last = 0
        self.floor = 0
        self.confirmed: dict[str, dict[int, int]] = {}  # frames in the log, by writer
        self.writers: dict[int, str] = {}
        self.strays = 0

    def on_change(self, key: str, stored: StoredObject | None, sender: str) -> None:
        """Check a change of the bucket."""
        name = key.removeprefix(PREFIX)
        if name == FLOOR_KEY and stored is not None:
            number = json.loads(stored.data)["number"]
            if number < self.floor:
                raise Violation(f"{sender} lowers the floor from {self.floor} to {number}")
            self.floor = number
        elif name.startswith(LOG_PREFIX) and (number := parse_log_key(name)):
            if stored is None:
                if number > self.floor:
                    raise Violation(f"{sender} removes group {number} above the floor {self.floor}")
            else:
                self._on_group(number, decode_group(stored.data, SERVER, number).header)

    def _on_group(self, number: int, header: GroupHeader) -> None:
        if number <= self.last:
            if number > self.floor:
                raise Violation(f"group {number} is written again by {header.writer}")
            self.strays += 1  # the number was free again: its writer must notice that
            return
        if number != self.last + 1:
            raise Violation(f"{header.writer} creates group {number} after {self.last}")
        before = self.headers.get(self.last)
        if before is not None and before.epoch > header.epoch:
            raise Violation(
                f"epoch {header.epoch} of {header.writer} follows {before.epoch} of {before.writer}"
            )
        if self.writers.setdefault(header.epoch, header.writer) != header.writer:
            raise Violation(f"{self.writers[header.epoch]} and {header.writer} write in epoch {header.epoch}")
        self.headers[number] = header
        self.last = number
        if header.is_last_part:
            frames = self.confirmed.setdefault(header.writer, {})
            frames.update({store: last for store, (_, last) in header.frames.items()})


class FactChecker:
    """The ledger."""

    def __init__(self, log: LogChecker, options: TwoBrokerOptions) -> None:
        self.log = log
        self.is_remote = options.is_remote
        self._has_order = "clock" not in options.actions  # otherwise, times may go back as on one server
        self.seen: dict[tuple[str, int], Fact] = {}
        self.sequences: dict[bytes, tuple[str, int]] = {}  # of acknowledged payloads
        self.removed: dict[tuple[str, int], tuple[int, str]] = {}  # epoch and server that confirmed it
        self.confirmed_acks: dict[tuple[str, int], int] = {}  # consumer and sequence: the epoch
        self.attempted_acks: set[tuple[str, int]] = set()
        self.attempted_removals: set[tuple[str, int]] = set()
        self.delivered: set[tuple[str, int]] = set()
        self.epochs: dict[int, str] = {}
        self.acks = self.deliveries = self.redeliveries = 0

    def copy(self) -> FactChecker:
        """Return the facts as they are now."""
        facts = copy(self)
        for name in ("seen", "removed", "confirmed_acks", "attempted_acks", "attempted_removals"):
            setattr(facts, name, copy(getattr(self, name)))
        return facts

    # What servers send

    def on_output(self, server: LeaderServer, what: str) -> None:
        """Check that a server may send something now."""
        if server.is_fenced:
            raise Violation(f"{server} sends {what} although it is fenced: {server.fence_reason}")
        if self.epochs.setdefault(server.epoch, server.name) != server.name:
            raise Violation(f"{self.epochs[server.epoch]} and {server.name} serve in epoch {server.epoch}")
        if not self.is_remote:
            return
        confirmed = self.log.confirmed.get(server.name, {}).get(server.store.store_id, 0)
        frame = get_durable_frame(server.store)
        if frame > max(confirmed, server.start_frame):
            raise Violation(f"{server} sends {what} of frame {frame}, but the log ends with {confirmed}")

    def on_reply(
        self, server: LeaderServer, subject: str, sent: bytes, header: bytes, payload: bytes
    ) -> None:
        """Record what a reply says."""
        if subject.startswith("$JS.ACK."):
            if sent:
                return
            parts = subject.split(".")
            key = parts[3], int(parts[5])
            self.confirmed_acks.setdefault(key, server.epoch)
            return
        if not payload.startswith(b"{"):
            return
        reply = json.loads(payload)
        if subject.startswith("$JS.API.STREAM.MSG.DELETE.") and reply.get("success"):
            stream = subject.rpartition(".")[2]
            self.removed[stream, json.loads(sent)["seq"]] = server.epoch, repr(server)
        elif "seq" in reply and "error" not in reply and not subject.startswith("$JS."):
            self._on_ack(server, reply, sent)

    def _on_ack(self, server: LeaderServer, reply: dict[str, Any], payload: bytes) -> None:
        self.acks += 1
        key = reply["stream"], reply["seq"]
        earlier = self.sequences.setdefault(payload, key)
        if earlier != key:
            raise Violation(f"{server} acknowledges {payload[:16]!r} as {key}, it was {earlier}")
        self.on_seen(server, key, payload)

    def on_seen(self, server: LeaderServer, key: tuple[str, int], payload: bytes) -> None:
        """Record a message that somebody has seen."""
        fact = self.seen.setdefault(key, Fact(payload, server.name, server.epoch))
        if fact.payload != payload:
            raise Violation(f"{key} was {fact}, {server} says {payload[:16]!r}")

    def on_delivery(self, server: LeaderServer, consumer: str, key: tuple[str, int], payload: bytes) -> None:
        """Record a delivery to a consumer."""
        self.deliveries += 1
        self.on_seen(server, key, payload)
        entry = consumer, key[1]
        epoch = self.confirmed_acks.get(entry)
        if epoch is not None and server.epoch >= epoch:
            raise Violation(
                f"{server} delivers {key} to {consumer} again: it was acknowledged in epoch {epoch}"
            )
        if key in self.removed and server.epoch >= self.removed[key][0]:
            raise Violation(f"{server} delivers {key} although it was removed by {self.removed[key][1]}")
        self.redeliveries += entry in self.delivered
        self.delivered.add(entry)

    # What a store must have

    def check_store(self, store: Store, name: str, consumers: dict[str, str], epoch: int) -> None:
        """Check a store that is about to serve in an epoch, or at the end, against the facts up to that epoch."""
        for stream, log in store.logs.items():
            _, last_seq, listed = read_log_state(log)
            messages = dict(listed)
            self._check_messages(name, stream, last_seq, messages, consumers.get(stream, ""), epoch)
            times = [message[0] for _, message in sorted(messages.items())]
            if self._has_order and times != sorted(times):
                raise Violation(f"{name}: the times of {stream} go back")
            payloads = [bytes(message[3]) for message in messages.values()]
            if len(set(payloads)) != len(payloads):
                double = sorted({each for each in payloads if payloads.count(each) > 1})
                raise Violation(f"{name}: {stream} has {[each[:16] for each in double[:3]]} twice")
        for (stream, seq), fact in self.seen.items():
            if stream not in store.logs and fact.epoch <= epoch:
                raise Violation(f"{name} has no stream {stream}: {seq} was {fact}")

    def _check_messages(
        self, name: str, stream: str, last_seq: int, messages: dict[int, Any], work_consumer: str, epoch: int
    ) -> None:
        for (owner, seq), fact in self.seen.items():
            if owner != stream or fact.epoch > epoch:
                continue
            found = messages.get(seq)
            if found is None:
                is_acked = bool(work_consumer) and (work_consumer, seq) in self.attempted_acks
                if seq > last_seq or not (is_acked or (stream, seq) in self.attempted_removals):
                    raise Violation(f"{name}: {stream} {seq} is missing, it was {fact}")
            elif bytes(found[3]) != fact.payload:
                raise Violation(f"{name}: {stream} {seq} is {bytes(found[3])[:16]!r}, it was {fact}")
            elif (stream, seq) in self.removed and self.removed[stream, seq][0] <= epoch:
                raise Violation(
                    f"{name}: {stream} {seq} is back, {self.removed[stream, seq][1]} had removed it"
                )
