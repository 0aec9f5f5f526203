"""Requests that take many turns: others are served between them, requests keep their order, crashes are harmless."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest

from headrace.broker.consumers import consumer_set
from headrace.broker.handlers import api_dispatch
from headrace.broker.streams import purge, retention
from headrace.broker.streams.ttl import SECOND_NS
from headrace.sim import SimClock, SimDisk

from .broker_harness import Box, Client
from .store_sizes import SIZES

MESSAGES = 200


@pytest.fixture(autouse=True)
def _small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (retention, purge):
        for name in ("_SLICE", "_PREFIX_SLICE", "_MARKED_SLICE"):
            monkeypatch.setattr(module, name, 10)
    monkeypatch.setattr(retention, "_SEARCH_ROWS", 10)
    monkeypatch.setattr(purge, "_SEARCHED", 10)
    monkeypatch.setattr(consumer_set, "CLOSED_AT_ONCE", 4)


def start(disk: SimDisk | None = None) -> tuple[Box, Client]:
    box = Box(disk or SimDisk(), SimClock(), SIZES[0])
    box.run()
    return box, box.client()


def fill(box: Box, client: Client, **config: object) -> None:
    client.api("STREAM.CREATE.S", {"name": "S", "subjects": ["s.>"], **config})
    for number in range(MESSAGES):
        client.publish(b"s.%d" % (number % 20), b"x")
    box.run()


def run_turns(box: Box, count: int) -> None:
    """Run a few turns of the event loop, and the disk operations that are due."""
    for _ in range(count):
        box.step()


CHANGES = [
    ("STREAM.UPDATE.S", {"name": "S", "subjects": ["s.>"], "max_msgs": 40}, 40),
    ("STREAM.UPDATE.S", {"name": "S", "subjects": ["s.>"], "max_msgs_per_subject": 2}, 40),
    ("STREAM.UPDATE.S", {"name": "S", "subjects": ["s.>"], "max_bytes": 36 * 40}, 41),
    ("STREAM.PURGE.S", {"keep": 40}, 40),
    ("STREAM.PURGE.S", {"seq": 161}, 40),
    ("STREAM.PURGE.S", {"filter": "s.>", "keep": 40}, 40),
    ("STREAM.PURGE.S", {"filter": "s.1*"}, 200),
    ("STREAM.PURGE.S", {"filter": "s.1"}, 190),
]


@pytest.mark.parametrize(("operation", "body", "left"), CHANGES)
def test_others_are_served_between_the_slices(operation: str, body: dict[str, object], left: int) -> None:
    box, client = start()
    fill(box, client)
    stream = box.jetstream.streams["S"]
    other = box.client()
    client.api("STREAM.CREATE.T", {"name": "T", "subjects": ["t"]})
    client.ask(b"$JS.API." + operation.encode(), json.dumps(body).encode())
    sizes = {stream.log.messages}
    for _ in range(400):
        other.ask(b"t", b"x")
        run_turns(box, 3)
        sizes.add(stream.log.messages)
    box.run()
    assert stream.log.messages == left
    if left < 150:
        assert len(sizes) > 5, "it goes step by step"
    assert box.jetstream.streams["T"].log.messages == 400
    assert client.take(), "the answer comes in the end"


def test_requests_that_change_something_wait_and_those_that_read_do_not() -> None:
    box, client = start()
    fill(box, client)
    purge_reply = client.ask(b"$JS.API.STREAM.PURGE.S", b'{"filter": "s.>"}')
    delete_reply = client.ask(b"$JS.API.STREAM.DELETE.S")
    create_reply = client.ask(
        b"$JS.API.STREAM.CREATE.S", b'{"name": "S", "subjects": ["s.>"], "max_msgs": 7}'
    )
    names_reply = client.ask(b"$JS.API.STREAM.NAMES")
    box.run()
    order = [delivery.subject for delivery in client.take()]
    assert order.index(names_reply) == 0
    assert order.index(purge_reply) < order.index(delete_reply) < order.index(create_reply)
    assert box.jetstream.streams["S"].config.max_msgs == 7


@pytest.mark.parametrize(("limit", "value"), [("WAITING_MAX", 2), ("WAITING_BYTES_MAX", 120)])
def test_requests_beyond_the_limit_are_rejected(
    limit: str, value: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api_dispatch, limit, value)
    box, client = start()
    fill(box, client)
    client.ask(b"$JS.API.STREAM.PURGE.S", b'{"filter": "s.>"}')
    replies = [
        client.ask(
            b"$JS.API.STREAM.CREATE.T%d" % n, b'{"name": "T%d", "subjects": ["t%d"], "max_msgs": 10}' % (n, n)
        )
        for n in range(4)
    ]
    box.run()
    answers = {delivery.subject: json.loads(delivery.payload) for delivery in client.take()}
    assert ["error" in answers[reply] for reply in replies] == [False, False, True, True]
    assert answers[replies[-1]]["error"]["err_code"] == 10023
    assert "error" not in client.api("STREAM.CREATE.T9", {"name": "T9", "subjects": ["t9"]})


@pytest.mark.parametrize("turns", range(0, 60, 3))
def test_a_crash_while_a_stream_is_deleted_keeps_all_of_it_or_nothing(turns: int) -> None:
    disk = SimDisk()
    box, client = start(disk)
    fill(box, client)
    for number in range(20):
        config = {"durable_name": f"c{number}", "ack_policy": "explicit"}
        client.api(f"CONSUMER.DURABLE.CREATE.S.c{number}", {"stream_name": "S", "config": config})
    client.ask(b"$JS.API.STREAM.DELETE.S")
    run_turns(box, turns)
    again, _ = start(disk.kill())
    streams = again.jetstream.streams
    if "S" in streams:
        assert len(streams["S"].consumers) == 20
        assert streams["S"].log.messages == MESSAGES
    else:
        metadata = again.store.metadata
        assert not [*metadata.keys(b"consumer/"), *metadata.keys(b"progress/")]


def test_copies_with_many_transforms_are_stored_in_short_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each copy names all transforms in its header, so that few copies cost as much as many messages."""
    box, client = start()
    fill(box, client)
    off_loop = []
    run_off_loop = box.jetstream.run_off_loop
    monkeypatch.setattr(
        box.jetstream, "run_off_loop", lambda call, done: (off_loop.append(call), run_off_loop(call, done))
    )
    transforms = [{"src": f"s.{n}", "dest": f"copy.of.a.long.subject.{n}"} for n in range(1_000)]
    sources = [{"name": "S", "subject_transforms": transforms}]
    client.ask(b"$JS.API.STREAM.CREATE.COPY", json.dumps({"name": "COPY", "sources": sources}).encode())
    sizes: list[int] = [0]
    step = Box.step

    def observe(box: Box) -> bool:
        if "COPY" in box.jetstream.streams:
            sizes.append(box.jetstream.streams["COPY"].log.messages)
        return step(box)

    monkeypatch.setattr(Box, "step", observe)
    box.advance(SECOND_NS)
    assert sizes[-1] == MESSAGES
    assert max(after - before for before, after in pairwise(sizes)) <= 64
    assert off_loop, "so many transforms are validated off the event loop"
