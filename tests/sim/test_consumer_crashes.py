"""Consumers on a server that crashes: clients that pull, ack, nak, reset, pause and disconnect.

Guarantees: every stored message is delivered at least once; none with a confirmed ack is delivered again (except after
a reset to an earlier sequence); ack floors and pending messages match the history.
"""

from __future__ import annotations

import sys
from random import Random
from typing import Any

import pytest

from headrace.sim import SimClock
from headrace.sim.disk.crash_outcomes import OUTCOMES
from headrace.sim.disk.sim_disk import SimDisk

from .broker_harness import Box, Client, Delivery
from .store_sizes import SIZES

SECOND = 1_000_000_000
SEEDS = 60
PARTS = 6


class ConsumerSimulation:
    """One seed's run."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(f"readers {seed}")
        self.options = SIZES[seed % len(SIZES)]
        self.clock = SimClock()
        self.retention = self.rng.choice(["limits", "limits", "workqueue", "interest"])
        self.push = self.rng.random() < 0.3
        self.ack_policy = "all" if self.retention == "limits" and self.rng.random() < 0.25 else "explicit"
        self.crash_share = self.rng.choice([0.0, 0.01, 0.04])
        self.stored: set[int] = set()
        self.delivered: set[int] = set()
        self.confirmed: set[int] = set()
        self.unanswered: dict[bytes, tuple[str, Any]] = {}
        self.held: list[Delivery] = []
        self.box = Box(SimDisk(seed), self.clock, self.options)
        self.client = self._connect()
        self._set_up()

    def _connect(self) -> Client:
        client = self.box.client()
        client.send(b"SUB dlv 7\r\n")
        return client

    def _set_up(self) -> None:
        answer = self.client.api(
            "STREAM.CREATE.S", {"name": "S", "subjects": ["s.>"], "retention": self.retention}
        )
        assert "error" not in answer, answer
        config: dict[str, Any] = {
            "durable_name": "C",
            "ack_policy": self.ack_policy,
            "ack_wait": 2 * SECOND,
            "max_ack_pending": self.rng.choice([3, 20, 1000]),
        }
        if self.push:
            config["deliver_subject"] = "dlv"
        answer = self.client.api("CONSUMER.CREATE.S.C", {"stream_name": "S", "config": config})
        assert "error" not in answer, answer

    # Events

    def run(self) -> None:
        for _ in range(self.rng.randrange(80, 250)):
            self.event()
        self.finish()

    def event(self) -> None:
        luck = self.rng.random()
        if luck < self.crash_share:
            self.crash()
            return
        action = self.rng.choices(
            [self.store, self.pull, self.acknowledge, self.wait, self.reset, self.pause, self.reconnect],
            [30, 25, 40, 10, 3, 2, 2],
        )[0]
        action()
        for _ in range(self.rng.randrange(12)):
            self.box.step()
        self.listen()

    def store(self) -> None:
        for _ in range(self.rng.randrange(1, 6)):
            reply = self.client.ask(b"s.%d" % self.rng.randrange(3), b"x" * self.rng.randrange(200))
            self.unanswered[reply] = ("store", None)

    def pull(self) -> None:
        if not self.push:
            body = b'{"batch":%d,"expires":1000000000}' % self.rng.randrange(1, 10)
            self.client.publish(b"$JS.API.CONSUMER.MSG.NEXT.S.C", body, b"dlv")

    def acknowledge(self) -> None:
        self.rng.shuffle(self.held)
        for _ in range(min(len(self.held), self.rng.randrange(6))):
            message = self.held.pop()
            verb = self.rng.choice([b"", b"+ACK", b"+ACK", b"-NAK", b"-NAK 500ms", b"+WPI", b"+TERM x"])
            if self.rng.random() < 0.4 and verb in (b"", b"+ACK", b"+TERM x"):
                self.unanswered[self.client.ask(message.reply, verb)] = ("ack", seq_of(message))
            else:
                self.client.publish(message.reply, verb)

    def wait(self) -> None:
        self.box.advance(self.rng.choice([10_000_000, 200_000_000, SECOND, 3 * SECOND]))

    def reset(self) -> None:
        """Reset to the ack floor, or before it; later messages may be delivered again."""
        self.settle()
        info = self.client.api("CONSUMER.INFO.S.C")
        floor = info["ack_floor"]["stream_seq"]
        seq = self.rng.randrange(1, floor + 2) if self.rng.random() < 0.5 else None
        answer = self.client.api("CONSUMER.RESET.S.C", {"seq": seq} if seq else None)
        assert answer["reset_seq"] == (seq or floor + 1), (answer, info)
        self.confirmed = {each for each in self.confirmed if each < answer["reset_seq"]}
        self.held.clear()

    def pause(self) -> None:
        self.settle()
        self.client.api("CONSUMER.PAUSE.S.C", {"pause_until": "2100-01-01T00:00:00Z"})
        self.box.advance(SECOND)
        self.client.api("CONSUMER.PAUSE.S.C")

    def reconnect(self) -> None:
        self.client.close()
        self.unanswered.clear()
        self.held.clear()
        self.client = self._connect()

    def crash(self) -> None:
        if self.rng.random() < 0.3:
            disk = self.box.disk.kill()
        else:
            disk = self.box.disk.crash(self.rng.choice(OUTCOMES), self.rng.randrange(1 << 30))
        self.unanswered.clear()
        self.held.clear()
        self.box = Box(disk, self.clock, self.options)
        self.client = self._connect()
        self.box.run()

    # Listening

    def listen(self) -> None:
        for message in self.client.take():
            if message.sid == b"7":
                if message.reply:
                    self.received(message)
            elif message.subject in self.unanswered:
                kind, what = self.unanswered.pop(message.subject)
                if kind == "store":
                    self.stored.add(int(message.payload.split(b'"seq":')[1].rstrip(b"}")))
                elif self.ack_policy == "all":
                    self.confirmed |= {seq for seq in self.delivered if seq <= what}
                else:
                    self.confirmed.add(what)

    def received(self, message: Delivery) -> None:
        seq = seq_of(message)
        assert seq not in self.confirmed, f"{seq} was confirmed and is delivered again"
        self.delivered.add(seq)
        self.held.append(message)

    def settle(self) -> None:
        self.box.run()
        self.listen()

    def finish(self) -> None:
        """Run without further crashes until everything is delivered and acknowledged."""
        for _ in range(400):
            self.box.advance(3 * SECOND)
            self.listen()
            for message in self.held:
                self.unanswered[self.client.ask(message.reply, b"+ACK")] = ("ack", seq_of(message))
            self.held.clear()
            self.pull()
            self.settle()
            info = self.client.api("CONSUMER.INFO.S.C")
            if not info["num_pending"] and not info["num_ack_pending"] and not self.held:
                break
        state = self.client.api("STREAM.INFO.S")["state"]
        assert (info["num_pending"], info["num_ack_pending"], info["num_redelivered"]) == (0, 0, 0), info
        assert info["delivered"]["stream_seq"] == info["ack_floor"]["stream_seq"] == state["last_seq"], (
            info,
            state,
        )
        assert self.stored <= self.delivered, self.stored - self.delivered
        if self.retention != "limits":
            assert state["messages"] == 0, state


def seq_of(message: Delivery) -> int:
    return int(message.reply.split(b".")[-4])


def run(seed: int) -> None:
    try:
        ConsumerSimulation(seed).run()
    except BaseException as error:
        raise AssertionError(
            f"{error!r}\nreplay: python -m tests.sim.test_consumer_crashes {seed}"
        ) from error


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_promises_to_readers_hold_for_every_seed(part: int) -> None:
    for seed in range(part, SEEDS, PARTS):
        run(seed)


if __name__ == "__main__":
    run(int(sys.argv[1]))
