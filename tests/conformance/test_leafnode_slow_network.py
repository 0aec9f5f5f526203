"""A leafnode connection over a network with 50 kbit/s and a round trip of 600 ms: streams are copied, also a backlog.

Such a connection is compressed, which takes another round trip before CONNECT. With these networks nats-server does not
connect as a leafnode, to either server, so only the hub varies.
"""

from __future__ import annotations

import random

import pytest

from conformance.client import Client
from conformance.consumer_client import eventually
from conformance.leafnode_pair import across, joined
from conformance.servers import KINDS, OURS
from support.ports import free_port
from support.slow_network import SlowNetworks

MESSAGES = 300
PAYLOAD_BYTES = 150


@pytest.mark.parametrize("consumer", ["ephemeral", "durable"])
@pytest.mark.parametrize("hub_kind", KINDS)
def test_a_backlog_is_copied(hub_kind: str, consumer: str, name: str) -> None:
    """It takes the network 15 s; heartbeats and replies must not wait for all of it."""
    port, rng = free_port(), random.Random(name)
    with SlowNetworks() as networks:
        network = networks.add([port], bits_per_s=50_000, round_trip_s=0.6)
        with (
            joined(hub_kind, OURS, proxy_port=network.ports[0], leaf_port=port) as pair,
            across(pair, name, up=True) as streams,
        ):
            # A slow start may need several connections.
            connections, joining_bytes = network.connections, network.up.bytes
            streams.origin.made("")
            with Client(pair.leaf.server.port) as client:
                for _ in range(MESSAGES):
                    client.store(f"{name}.x", rng.randbytes(PAYLOAD_BYTES // 2).hex())
            more = {}
            if consumer == "durable":
                streams.origin.consumer("", "D", deliver_subject=f"D.{name}")
                more["consumer"] = {"name": "D", "deliver_subject": f"D.{name}"}
            streams.copy.made("M", mirror=streams.entry("", **more))
            eventually(lambda: streams.copy.state("M")[0] == MESSAGES, 150.0)
            assert streams.copy.all("M") == streams.origin.all("")
        assert network.connections == connections, "a server gave up too early"
        assert network.up.bytes - joining_bytes < 2 * MESSAGES * (PAYLOAD_BYTES + 150), (
            "messages were sent again"
        )
