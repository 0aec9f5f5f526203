"""A leafnode cannot store messages on subjects that it may not publish to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from headrace.broker import Permissions
from headrace.broker.leafnodes.interest_announcer import LeafnodeSet
from headrace.sim import SimDisk
from headrace.sim.network.leafnode_end import LeafnodeEnd
from headrace.sim.sim_broker import SimBroker

from .store_sizes import SIZES


def start() -> SimBroker:
    broker = SimBroker(SimDisk(), SIZES[0])
    broker.start()
    broker.run_until_idle()
    return broker


class Narrow:
    """An identity that may publish to one subject only."""

    user, account, permissions = "edge", "$G", Permissions(publish_allow=[b"allowed.>"])


class Door(LeafnodeEnd):
    def authenticate(self, fields: Mapping[str, Any]) -> Narrow:
        return Narrow()


@pytest.mark.parametrize("shown", [b"secret.x", b"bad..*", b""])
def test_a_leafnode_stores_nothing_where_it_may_not_publish(shown: bytes) -> None:
    broker = start()
    broker.call("STREAM.CREATE.S", name="S", subjects=["allowed.>"])
    end = Door(broker, LeafnodeSet(broker.router), solicited=False, should_lose=None)
    end.feed(b'CONNECT {"name":"edge","headers":true}\r\n')
    end.feed(b"LMSG allowed.x $JS.ACK.S.C.1.1.1.1.0@%b 2\r\nhi\r\n" % shown)
    broker.run_until_idle()
    log = broker.jetstream.streams["S"].log
    assert [subject for subject, _ in log.iter_subject_counts(None)] == [b"allowed.x"]


class Sink:
    """Receives the message that a pull request asked for."""

    announced = False

    def on_message(self, *message: object) -> None: ...


@pytest.mark.parametrize("reply", [b"$JS.API.STREAM.DELETE.S", b"$JS.API.STREAM.PURGE.S"])
def test_a_leafnode_sends_no_request_as_the_reply_of_its_message(reply: bytes) -> None:
    broker = start()
    broker.call("STREAM.CREATE.S", name="S", subjects=["allowed.>"])
    broker.call(
        "CONSUMER.CREATE.S.C", stream_name="S", config={"durable_name": "C", "ack_policy": "explicit"}
    )
    broker.publish("allowed.x")
    broker.router.subscribe_internal(b"pulled", Sink())
    broker.router.publish(b"$JS.API.CONSUMER.MSG.NEXT.S.C", b"pulled", b"", b"1")
    broker.run_until_idle()
    assert broker.call("CONSUMER.INFO.S.C")["num_ack_pending"] == 1
    end = Door(broker, LeafnodeSet(broker.router), solicited=False, should_lose=None)
    end.feed(b'CONNECT {"name":"edge","headers":true}\r\n')
    end.feed(b"LMSG $JS.ACK.S.C.1.1.1.1.0 %b 4\r\n+ACK\r\n" % reply)
    broker.run_until_idle()
    info = broker.call("STREAM.INFO.S")
    assert "error" not in info
    assert info["state"]["messages"] == 1
