"""Two copies that use the same consumer of one upstream, in virtual time: the first gets every message, in spite of
crashes, and the second reports an error. To replay a seed: `pytest tests/sim/test_sourcing_owners.py -k "<name>"`.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from headrace.broker.sourcing.consumer_ownership import ConsumerOwner, parse_owner
from headrace.sim.network.two_servers import TwoServers
from headrace.sim.sim_broker import SimBroker

from .store_sizes import SIZES

SECOND = 1_000_000_000
MANAGED = {"consumer": {"name": "D", "server_managed": True}}


class Clash:
    """O and the copy B are on one server, the copy A on the other; A was first."""

    def __init__(self, seed: str, retention: str) -> None:
        random.seed(seed)
        self.pair = TwoServers(seed, SIZES[1])
        self.rng = self.pair.rng
        self.pair.connect()
        self.pair.run_until_idle()
        self.call(self.near, "STREAM.CREATE.O", name="O", subjects=["o.>"], retention=retention)
        self.make_first()
        self.pair.advance(5 * SECOND)
        self.waiting: dict[int, bytes] = {}
        self.acked: list[bytes] = []
        self.number = 0

    @property
    def near(self) -> SimBroker:
        return self.pair.local

    @property
    def far(self) -> SimBroker:
        return self.pair.remote

    def call(self, broker: SimBroker, endpoint: str, **body: Any) -> Any:
        answer = self.pair.call(broker, endpoint, **body)
        assert "error" not in answer, answer
        return answer

    def make_first(self) -> None:
        external = {"api": f"$JS.{self.near.domain}.API", "deliver": ""}
        self.call(
            self.far, "STREAM.CREATE.A", name="A", sources=[{"name": "O", "external": external, **MANAGED}]
        )

    def make_second(self) -> None:
        self.call(self.near, "STREAM.CREATE.B", name="B", sources=[{"name": "O", **MANAGED}])

    def publish(self, count: int) -> None:
        for _ in range(count):
            self.number += 1
            data = b"%d" % self.number
            self.waiting[self.near.publish(f"o.{self.number % 3}", data)] = data

    def confirm(self) -> None:
        answers = self.near.replies
        self.acked += [self.waiting.pop(each) for each in list(self.waiting) if each in answers]

    def error(self, broker: SimBroker, name: str) -> dict[str, Any] | None:
        found: dict[str, Any] | None = self.call(broker, f"STREAM.INFO.{name}")["sources"][0].get("error")
        return found

    def stored(self, broker: SimBroker, name: str) -> list[bytes]:
        log = broker.jetstream.streams[name].log
        found = [log.get(seq) for seq in log.find_seqs(None, log.first_seq, log.last_seq).tolist()]
        return [message[3] for message in found if message is not None]


@pytest.fixture(params=["limits", "workqueue", "interest"])
def clash(request: pytest.FixtureRequest) -> Iterator[Clash]:
    made = Clash(f"owners/{request.node.name}", request.param)
    yield made
    made.pair.close()


@pytest.mark.parametrize("seed", range(3))
def test_crashes(seed: int, clash: Clash) -> None:
    rng = random.Random(f"{seed}/{clash.rng.random()}")
    clash.make_second()
    for _ in range(6):
        clash.publish(rng.randrange(5, 20))
        for _ in range(rng.randrange(200)):
            clash.pair.step()
        clash.pair.advance(rng.randrange(3 * SECOND))
        clash.confirm()
        choice = rng.randrange(4)
        if choice == 0:
            clash.waiting.clear()
            clash.pair.crash_local()
        elif choice == 1:
            clash.pair.crash_remote()
        elif choice == 2:
            clash.pair.disconnect()
        if not clash.pair.is_connected:
            clash.pair.connect()
    clash.pair.advance(200 * SECOND)
    clash.confirm()
    copied = clash.stored(clash.far, "A")
    assert set(clash.acked) <= set(copied)
    assert copied == sorted(set(copied), key=int)
    assert clash.stored(clash.near, "B") == []
    assert (clash.error(clash.near, "B") or {}).get("err_code") == 10013


def test_the_second_leaves_the_consumer_alone_when_it_goes(clash: Clash) -> None:
    clash.make_second()
    clash.pair.advance(5 * SECOND)
    clash.call(clash.near, "STREAM.DELETE.B")
    clash.publish(20)
    clash.pair.advance(20 * SECOND)
    assert len(clash.stored(clash.far, "A")) == 20
    assert clash.error(clash.far, "A") is None


def test_the_second_goes_on_when_the_first_is_gone(clash: Clash) -> None:
    clash.make_second()
    clash.pair.advance(5 * SECOND)
    clash.call(clash.far, "STREAM.DELETE.A")
    clash.pair.advance(200 * SECOND)
    clash.publish(20)
    clash.pair.advance(20 * SECOND)
    assert len(clash.stored(clash.near, "B")) == 20
    assert clash.error(clash.near, "B") is None


def test_a_stream_that_was_away_takes_its_consumer_over(clash: Clash) -> None:
    """It was deleted while its upstream was unreachable, so that the consumer stayed, and was created again."""
    clash.pair.disconnect()
    clash.call(clash.far, "STREAM.DELETE.A")
    clash.make_first()
    clash.pair.connect()
    clash.publish(20)
    clash.pair.advance(60 * SECOND)
    assert len(clash.stored(clash.far, "A")) == 20


@pytest.mark.parametrize("is_bound", [False, True])
def test_a_server_with_a_new_store(is_bound: bool) -> None:
    """Its consumer names a server that no longer exists; it is taken over, unless it has a subscriber."""
    pair = TwoServers(f"owners/heir/{is_bound}", SIZES[1])
    try:
        near = pair.local
        pair.call(near, "STREAM.CREATE.O", name="O", subjects=["o.>"])
        about = {"acc": near.jetstream.account, "stream": "B", "domain": near.jetstream.domain}
        metadata = {f"_nats.src.{key}": value for key, value in about.items()}
        config = {
            "durable_name": "D",
            "ack_policy": "flow_control",
            "deliver_subject": "deliver.d",
            "metadata": {**metadata, "_headrace.server": "gone"},
        }
        pair.call(near, "CONSUMER.CREATE.O.D", stream_name="O", config=config)
        if is_bound:
            near.router.subscribe_internal(b"deliver.d", _Listener())
        near.publish("o.1", b"1")
        pair.call(near, "STREAM.CREATE.B", name="B", sources=[{"name": "O", **MANAGED}])
        pair.advance(20 * SECOND)
        found = pair.call(near, "CONSUMER.INFO.O.D")["config"]["metadata"]
        messages = pair.call(near, "STREAM.INFO.B")["state"]["messages"]
        assert (found["_headrace.server"] == "gone", messages) == (is_bound, int(not is_bound))
    finally:
        pair.close()


class _Listener:
    """A subscriber of a consumer's deliveries."""

    def on_message(self, *_: object) -> None:
        """Ignore the message."""


@pytest.mark.parametrize("is_bound", [False, True])
@pytest.mark.parametrize("is_described", [False, True])
def test_a_consumer_that_names_no_server(is_bound: bool, is_described: bool) -> None:
    """Created by an earlier version, by nats-server or by hand: it gets the server's id, unless it has a subscriber."""
    pair = TwoServers(f"owners/unnamed/{is_bound}/{is_described}", SIZES[1])
    near = pair.local
    pair.call(near, "STREAM.CREATE.O", name="O", subjects=["o.>"], retention="workqueue")
    owner = ConsumerOwner(near.jetstream.account, near.jetstream.domain, "B")
    config = {
        "durable_name": "D",
        "ack_policy": "flow_control",
        "deliver_subject": "deliver.d",
        "metadata": owner.metadata(mirror=False) if is_described else {},
    }
    pair.call(near, "CONSUMER.CREATE.O.D", stream_name="O", config=config)
    if is_bound:
        near.router.subscribe_internal(b"deliver.d", _Listener())
    pair.call(near, "STREAM.CREATE.B", name="B", sources=[{"name": "O", **MANAGED}])
    pair.advance(20 * SECOND)
    near.publish("o.1", b"1")
    pair.advance(20 * SECOND)
    info = pair.call(near, "STREAM.INFO.B")
    found = parse_owner(pair.call(near, "CONSUMER.INFO.O.D")["config"]["metadata"])
    assert info["state"]["messages"] == (0 if is_bound else 1)
    assert info["sources"][0].get("error", {}).get("err_code") == (10013 if is_bound else None)
    assert bool(found and found.server) == (not is_bound)
    pair.close()
