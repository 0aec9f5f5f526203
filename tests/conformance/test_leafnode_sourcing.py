"""Mirrors and sources across a leafnode connection, for every pairing, direction, retention and kind of consumer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from conformance.consumer_client import eventually
from conformance.leafnode_pair import Across, Joined, across
from headrace.client import StreamConfig, connect, source_through

RETENTIONS = {"L": "limits", "W": "workqueue", "I": "interest"}
KINDS = {"M": "mirror", "S": "sources"}


@pytest.fixture(params=[True, False], ids=["up", "down"])
def streams(request: pytest.FixtureRequest, pair: Joined, name: str) -> Iterator[Across]:
    with across(pair, name, up=request.param) as both:
        yield both


@pytest.fixture
def copier_is_ours(request: pytest.FixtureRequest, pair: Joined) -> bool:
    up = request.node.callspec.params["streams"]
    return pair.ways(up)[1].server.is_ours


def consumer_of(streams: Across, tail: str, way: str) -> dict[str, Any]:
    """Return the `consumer` of the entry; create it first if the user manages it."""
    if way == "ephemeral":
        return {}
    if way == "server-managed":
        return {"consumer": {"name": f"D{tail}", "server_managed": True}}
    deliver = f"D.{streams.origin.name}.{tail}"
    streams.origin.consumer(tail, "D", deliver_subject=deliver)
    return {"consumer": {"name": "D", "deliver_subject": deliver}}


@pytest.mark.parametrize("way", ["ephemeral", "user-managed", "server-managed"])
def test_every_origin_is_copied(streams: Across, way: str, copier_is_ours: bool) -> None:
    """Existing and new messages are copied; afterwards a work queue and an interest stream are empty."""
    if way == "server-managed" and not copier_is_ours:
        pytest.skip("nats-server does not know server_managed")
    tails = [retention + kind for retention in RETENTIONS for kind in KINDS]
    for tail in tails:
        streams.origin.made(tail, retention=RETENTIONS[tail[0]])
    entries = {tail: streams.entry(tail, **consumer_of(streams, tail, way)) for tail in tails}
    for tail in tails:
        if tail[0] != "I":  # there is no interest yet
            streams.origin.put(tail, "a", "b", "c")
    for tail, entry in entries.items():
        kind = KINDS[tail[1]]
        streams.copy.made("C" + tail, **{kind: entry if kind == "mirror" else [entry]})
    for tail in tails:
        if tail[0] == "I":
            eventually(lambda tail=tail: streams.origin.consumers(tail), 40.0)
            streams.origin.put(tail, "a", "b", "c")
        streams.copy.until("C" + tail, 3, 40.0)
        streams.origin.put(tail, "d", "e")
    for tail in tails:
        streams.copy.until("C" + tail, 5, 40.0)
        assert streams.copy.data("C" + tail) == ["a", "b", "c", "d", "e"], tail
        kept = 5 if tail[0] == "L" else 0
        eventually(lambda tail=tail, kept=kept: streams.origin.state(tail)[0] == kept, 40.0)


def test_a_mirror_keeps_sequences_times_and_gaps(streams: Across) -> None:
    streams.origin.made("O")
    streams.origin.put("O", *"abcdef", A="b")
    for seq in (2, 3):
        streams.origin.client.api(f"STREAM.MSG.DELETE.{streams.origin.name}O", {"seq": seq})
    streams.copy.made("M", mirror=streams.entry("O"))
    streams.copy.until_last("M", 6, 40.0)
    assert streams.copy.all("M") == streams.origin.all("O")
    assert streams.copy.state("M") == (4, 1, 6, 2)


def test_a_source_says_where_a_message_came_from(streams: Across) -> None:
    streams.origin.made("O")
    streams.origin.put("O", "a", "b")
    streams.copy.made("S", sources=[streams.entry("O", filter_subject=f"{streams.origin.name}O.x")])
    streams.copy.until("S", 2, 40.0)
    place, seq, filters, dests, subject, *_ = streams.copy.all("S")[1].origin.split(" ")
    assert place.startswith(f"{streams.origin.name}O:")
    assert (seq, dests, subject) == ("2", ">", f"{streams.origin.name}O.x")
    assert filters == f"{streams.origin.name}O.x"


def test_start_filter_and_transforms(streams: Across) -> None:
    name = streams.origin.name
    streams.origin.made("O")
    for number in range(1, 7):
        streams.origin.put("O", str(number), token="odd" if number % 2 else "even")
    transforms = [{"src": f"{name}O.odd", "dest": f"{name}.renamed"}]
    streams.copy.made("S", sources=[streams.entry("O", opt_start_seq=3, subject_transforms=transforms)])
    streams.copy.until("S", 2, 40.0)
    assert [(m.subject, m.data) for m in streams.copy.all("S")] == [(f"{name}.renamed", n) for n in "35"]


def test_several_sources_and_a_chain(streams: Across, pair: Joined) -> None:
    """Two upstreams on the other server are copied into one stream, which another stream mirrors."""
    for tail in ("A", "B"):
        streams.origin.made(tail)
        streams.origin.put(tail, *(f"{tail}{n}" for n in range(20)))
    streams.copy.made("ALL", sources=[streams.entry("A"), streams.entry("B")])
    streams.copy.made("NEXT", mirror={"name": f"{streams.copy.name}ALL"})
    streams.copy.until("NEXT", 40, 40.0)
    found = streams.copy.data("NEXT")
    for tail in ("A", "B"):
        assert [each for each in found if each[0] == tail] == [f"{tail}{n}" for n in range(20)]


def test_copies_continue_beyond_a_flow_control_window(streams: Across) -> None:
    """More than a flow-control window, so that replies must cross the connection."""
    streams.origin.made("O")
    client, subject = streams.origin.client, f"{streams.origin.name}O.x"
    payload = b"p" * 8192
    for _ in range(700):
        client.publish(subject, payload)
    client.flush()
    streams.origin.until("O", 700, 40.0)
    streams.copy.made("M", mirror=streams.entry("O"))
    streams.copy.made("S", sources=[streams.entry("O")])
    for tail in ("M", "S"):
        streams.copy.until(tail, 700, 60.0)
    assert streams.copy.info("M")["mirror"]["lag"] == 0


def test_a_prefix_for_what_is_delivered(streams: Across) -> None:
    """`external.deliver` is the prefix of the subjects on which messages are delivered."""
    streams.origin.made("O")
    streams.origin.put("O", "a", "b")
    prefix = f"{streams.origin.name}.travel"
    entry = streams.entry("O") | {"external": {"api": streams.api, "deliver": prefix}}
    streams.copy.made("S", sources=[entry])
    streams.copy.until("S", 2, 40.0)
    sid = streams.copy.client.subscribe(f"{prefix}.S.*")
    streams.copy.client.flush()
    message = streams.copy.client.next(sid)  # heartbeats come every second
    assert message.status == "100 Idle Heartbeat"


def test_info_tells_how_it_fares(streams: Across) -> None:
    streams.origin.made("O")
    streams.origin.put("O", "a")
    streams.copy.made("S", sources=[streams.entry("O")])
    streams.copy.until("S", 1, 40.0)
    shown = streams.copy.info("S")["sources"][0]
    assert shown["external"]["api"] == streams.api
    assert shown["lag"] == 0
    assert 0 <= shown["active"] < 60 * 10**9


def test_an_origin_that_is_missing_is_told(streams: Across) -> None:
    streams.copy.made("S", sources=[streams.entry("NOT")])
    eventually(lambda: streams.copy.info("S")["sources"][0].get("error"), 40.0)
    assert streams.copy.info("S")["sources"][0]["error"]["err_code"] == 10059


async def test_what_an_application_does(streams: Across, pair: Joined) -> None:
    """One connection, to the copy's server: the consumer is created in the upstream's domain, and the copy uses it."""
    origin, copy = (pair.leaf, pair.hub) if streams.api.startswith("$JS.LEAF.") else (pair.hub, pair.leaf)
    streams.origin.made("O", retention="workqueue")
    streams.origin.put("O", "a", "b", "c")
    name = f"{streams.origin.name}O"
    async with await connect(copy.server.url) as connection:
        there = connection.jetstream(domain=origin.domain)
        consumer = await there.create_sourcing_consumer(name, "copy", f"deliver.{name}")
        source = source_through(consumer, domain=origin.domain)
        js = connection.jetstream()
        await js.add_stream(StreamConfig(name=f"{streams.copy.name}C", sources=[source]))
        try:
            streams.copy.until("C", 3, 40.0)
            assert streams.copy.data("C") == ["a", "b", "c"]
            eventually(lambda: streams.origin.state("O")[0] == 0, 40.0)
        finally:
            await js.delete_stream(f"{streams.copy.name}C")
