"""Copies over a leafnode connection between real processes, with faults.

The connection is cut at any byte, messages are lost, either server is killed and restarted, consumers are reset and
paused, while clients publish. Afterwards the copy has the upstream's history, in order, without loss or duplicate,
and a work queue has exactly what the copy lacks. A seed replays the order of faults: `HEADRACE_FAULT_SEEDS=7 pytest
tests/conformance/test_leafnode_faults.py`.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

from conformance.client import Client
from conformance.consumer_client import eventually
from conformance.leafnode_pair import HUB, await_joined, hub_setup, leaf_setup
from conformance.servers import NATS_SERVER, OURS, Server
from conformance.sourcing import Copying
from support.leafnode_proxy import Proxy
from support.ports import free_port

SEEDS = os.environ.get("HEADRACE_FAULT_SEEDS", "1").split(",")
#: The servers of upstream and copy; the copy's server dials.
PAIRINGS = [(OURS, OURS), (OURS, NATS_SERVER), (NATS_SERVER, OURS)]
STREAMS = {"L": "limits", "W": "workqueue", "I": "interest", "P": "limits"}
PURGED = "P"


class Publisher:
    """Publishes numbers to all upstreams, one at a time, and records which were acknowledged."""

    def __init__(self, server: Server, name: str) -> None:
        self.acked: dict[str, list[str]] = {tail: [] for tail in STREAMS}
        self._server, self._name = server, name
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        number = 0
        while not self._stop.is_set():
            with contextlib.suppress(OSError, AssertionError), Client(self._server.port) as client:
                while not self._stop.is_set():
                    number += 1
                    for tail in STREAMS:
                        ack = client.store(f"{self._name}{tail}.x", str(number))
                        if "error" not in ack:
                            self.acked[tail].append(str(number))
            time.sleep(0.02)

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(60)


class Scene:
    """Two servers with a proxy in between; the copy's server dials."""

    def __init__(self, origin_kind: str, copy_kind: str, seed: str, stack: contextlib.ExitStack) -> None:
        self.rng = Random(seed)
        port = free_port()
        self.proxy = stack.enter_context(Proxy(lambda: port, seed))
        # A slow connection would be compressed by default, and the proxy could not tell messages apart.
        setup = hub_setup(port, extra="compression: off")
        self.origin = stack.enter_context(Server(origin_kind, setup))
        self.copy = stack.enter_context(
            Server(copy_kind, leaf_setup(f"nats-leaf://127.0.0.1:{self.proxy.port}"))
        )

    def streams(self, name: str, *, at_origin: bool) -> Copying:
        """Return the streams of one side, through a new connection."""
        return Copying(Client((self.origin if at_origin else self.copy).port), name)

    def joined(self) -> None:
        with Client(self.origin.port) as hub, Client(self.copy.port) as leaf:
            await_joined(leaf, hub)


def consumer_of(streams: Copying, tail: str) -> dict[str, str]:
    deliver = f"D.{streams.name}.{tail}"
    streams.consumer(tail, "D", deliver_subject=deliver, max_ack_pending=200)
    return {"name": "D", "deliver_subject": deliver}


def prepare(scene: Scene, name: str) -> None:
    """Create upstreams of every retention; the one with limits is also mirrored, the others have durable consumers."""
    origin, copy = scene.streams(name, at_origin=True), scene.streams(name, at_origin=False)
    external = {"api": f"$JS.{HUB}.API", "deliver": ""}
    for tail, retention in STREAMS.items():
        origin.made(tail, retention=retention)
        entry: dict[str, Any] = {"name": f"{name}{tail}", "external": external}
        if tail == "L":
            copy.made("ML", mirror=entry)
        elif tail != PURGED:
            entry["consumer"] = consumer_of(origin, tail)
        copy.made("S" + tail, sources=[entry])


def interfere(scene: Scene, name: str) -> None:
    """Inject one fault."""
    what = scene.rng.choice(["cut", "cut", "lose", "kill origin", "kill copy", "reset", "pause", "purge"])
    if what == "cut":
        scene.proxy.cut()
    elif what == "lose":
        scene.proxy.loss = 0.05
        time.sleep(0.5)
        scene.proxy.loss = 0.0
    elif what.startswith("kill"):
        server = scene.origin if what == "kill origin" else scene.copy
        server.restart(crash=True)
    else:
        meddle(scene, name, what)
    time.sleep(scene.rng.uniform(0.1, 0.8))


def meddle(scene: Scene, name: str, what: str) -> None:
    """Reset the consumers to the ack floor, pause and resume them, or purge an upstream, as a user would."""
    with contextlib.suppress(OSError, AssertionError), Client(scene.origin.port) as client:
        if what == "purge":
            client.api(f"STREAM.PURGE.{name}{PURGED}", timeout_s=2)
            return
        for tail in ("W", "I"):
            if what == "reset":
                client.api(f"CONSUMER.RESET.{name}{tail}.D", timeout_s=2)
            else:
                client.api(
                    f"CONSUMER.PAUSE.{name}{tail}.D", {"pause_until": "2099-01-01T00:00:00Z"}, timeout_s=2
                )
                time.sleep(0.2)
                client.api(f"CONSUMER.PAUSE.{name}{tail}.D", timeout_s=2)


def resume(scene: Scene, name: str) -> None:
    with Client(scene.origin.port) as client:
        for tail in ("W", "I"):
            client.api(f"CONSUMER.PAUSE.{name}{tail}.D")


@pytest.fixture
def scene(request: pytest.FixtureRequest) -> Iterator[Scene]:
    (origin, copy), seed = request.param
    with contextlib.ExitStack() as stack:
        made = Scene(origin, copy, f"{origin}/{copy}/{seed}", stack)
        made.joined()
        yield made


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "scene",
    [(pairing, seed) for pairing in PAIRINGS for seed in SEEDS],
    ids=lambda param: f"{param[0][0]}-to-{param[0][1]}-{param[1]}",
    indirect=True,
)
def test_the_copy_equals_the_history(scene: Scene, name: str) -> None:
    prepare(scene, name)
    publisher = Publisher(scene.origin, name)
    for _ in range(8):
        time.sleep(0.3)
        interfere(scene, name)
    eventually(
        lambda: all(len(acked) > 20 for acked in publisher.acked.values())
    )  # otherwise the run proves nothing
    publisher.stop()
    resume(scene, name)
    scene.joined()
    origin, copy = scene.streams(name, at_origin=True), scene.streams(name, at_origin=False)
    for tail, acked in publisher.acked.items():
        eventually(lambda tail=tail: whole(origin, copy, tail), 60.0)
        copied = copy.data("S" + tail)
        if tail == PURGED:
            left = origin.data(tail)
            assert copied[len(copied) - len(left) :] == left
            acked = left
        assert copied == sorted(copied, key=int), "out of order"
        assert len(set(copied)) == len(copied), "duplicates"
        assert set(acked) <= set(copied), f"{tail}: lost {sorted(set(acked) - set(copied), key=int)[:5]}"
    assert copy.data("SL") == origin.data("L")
    assert copy.all("ML") == origin.all("L")


def whole(origin: Copying, copy: Copying, tail: str) -> bool:
    """Return whether everything that must be copied is copied."""
    if tail == PURGED:
        return copy.data("SP")[-1:] == origin.data("P")[-1:] or origin.state("P")[0] == 0
    if tail == "L":
        messages = origin.state("L")[0]
        return copy.state("SL")[0] == messages and copy.state("ML")[2] == origin.state("L")[2]
    return origin.state(tail)[0] == 0
