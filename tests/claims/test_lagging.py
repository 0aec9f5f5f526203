"""Decisions about claims use the registry's leader, never a replica or mirror that lags."""

from __future__ import annotations

from collections.abc import AsyncIterator

import nats
import pytest

from conformance.servers import KINDS, Server
from headrace.claims.jetstream_client import JetStreamClient, NoStreamResponse
from support.behind import DOMAIN, Behind

STREAM = "REGISTRY"


@pytest.fixture(params=KINDS)
async def wire(request: pytest.FixtureRequest) -> AsyncIterator[JetStreamClient]:
    with Server(request.param) as server:
        connection = await nats.connect(server.url)
        made = JetStreamClient(connection)
        config = {"name": STREAM, "subjects": ["r.>"], "max_msgs_per_subject": 1, "allow_direct": True}
        await made.api_request(f"STREAM.CREATE.{STREAM}", config)
        yield made
        await made.close()
        await connection.close()


@pytest.mark.parametrize("as_mirror", [False, True])
async def test_the_newest_messages_are_the_leaders(wire: JetStreamClient, as_mirror: bool) -> None:
    for key in "abc":
        await wire.publish(f"r.{key}", b"old")
    url = wire.connection.connected_url
    assert url is not None
    with Behind(url.geturl(), STREAM, as_mirror=as_mirror) as behind:
        for key in "bcd":
            await wire.publish(f"r.{key}", b"new", {"A": "1"})
        lagging = JetStreamClient(wire.connection, prefix=f"$JS.{DOMAIN}.API")
        wanted = {"r.a": b"old", "r.b": b"new", "r.c": b"new", "r.d": b"new"}
        found = await lagging.get_last_per_subject(STREAM, [*wanted, "r.none"])
        assert {subject: item.data for subject, item in found.items()} == wanted
        leases = await lagging.get_all(STREAM, "r.*")
        assert [(item.subject, item.seq) for item in leases] == [
            ("r.a", 1),
            ("r.b", 4),
            ("r.c", 5),
            ("r.d", 6),
        ]
        last = await lagging.get_last(STREAM, "r.d")
        assert last is not None
        assert (last.data, last.headers["A"], last.time_ns) == (b"new", "1", leases[-1].time_ns)
        assert await lagging.get_last(STREAM, "r.none") is None
        assert behind.answers > 0, "the one that is behind was asked"
        behind.answers_max = 0
        assert await lagging.get_last_per_subject(STREAM, list(wanted)) == await wire.get_last_per_subject(
            STREAM, list(wanted)
        )
        await lagging.close()


async def test_there_may_be_no_registry(wire: JetStreamClient) -> None:
    for asked in (wire.get_last("NONE", "r.a"), wire.get_all("NONE", "r.*")):
        with pytest.raises(NoStreamResponse):
            await asked
    with pytest.raises(NoStreamResponse):
        await wire.get_last_per_subject("NONE", ["r.a"])
