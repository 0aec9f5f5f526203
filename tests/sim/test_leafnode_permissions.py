"""A leafnode cannot store messages on subjects that it may not publish to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from headrace.broker import Permissions
from headrace.broker.leafnodes.interest_announcer import LeafnodeSet
from headrace.sim import SimDisk
from headrace.sim.network.two_servers import LeafnodeEnd
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
