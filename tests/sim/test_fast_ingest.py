"""Fast ingest in virtual time: what is acknowledged is durable, and abandoned batches are dropped."""

from __future__ import annotations

import json
from typing import Any

import pytest

from headrace.sim import OUTCOMES, SimClock, SimDisk
from headrace.sim.disk.crash_outcomes import Outcome

from .broker_harness import Box, Client
from .store_sizes import SIZES

SECOND = 1_000_000_000


def start(disk: SimDisk | None = None, clock: SimClock | None = None) -> Box:
    return Box(disk or SimDisk(), clock or SimClock(), SIZES[0])


def stream(box: Box) -> Client:
    client = box.client()
    answer = client.api("STREAM.CREATE.F", {"name": "F", "subjects": ["f"], "allow_batched": True})
    assert "error" not in answer
    client.send(b"SUB _F.> 2\r\n")
    return client


def member(client: Client, name: str, position: int, operation: int, payload: bytes = b"x") -> None:
    client.publish(b"f", payload, f"_F.{name}.4.fail.{position}.{operation}.$FI".encode())


def answers(client: Client) -> list[dict[str, Any]]:
    return [json.loads(delivery.payload) for delivery in client.take() if delivery.sid == b"2"]


@pytest.mark.parametrize("outcome", OUTCOMES, ids=lambda outcome: outcome.name)
def test_what_is_acknowledged_survives(outcome: Outcome) -> None:
    box = start()
    client = stream(box)
    told = steps = 0
    for position in range(1, 41):
        member(client, "b", position, min(position - 1, 1), b"m" * 300)
        for _ in range(position % 5):
            steps += box.step()
        told = max([told, *(answer["seq"] for answer in answers(client))])
    assert 0 < told < 40
    again = start(box.disk.crash(outcome, told), box.clock)
    assert again.client().api("STREAM.INFO.F")["state"]["messages"] >= told


def test_nothing_is_sent_before_it_is_durable() -> None:
    box = start()
    client = stream(box)
    for position in range(1, 6):
        member(client, "b", position, min(position - 1, 1))
    assert answers(client) == []
    box.run()
    assert [answer["seq"] for answer in answers(client)] == [0, 4]


def test_a_batch_without_traffic_is_forgotten() -> None:
    box = start()
    client = stream(box)
    member(client, "b", 1, 0)
    box.advance(9 * SECOND)
    member(client, "b", 2, 1)
    box.advance(9 * SECOND)
    member(client, "b", 3, 1)
    box.run()
    assert [answer.get("type") for answer in answers(client)] == ["ack"]
    box.advance(11 * SECOND)
    found = box.jetstream.streams["F"]
    assert (len(found.fast_ingest), box.jetstream.fast_ingest_budget.open_batches) == (0, 0)
    member(client, "b", 4, 1)
    box.run()
    assert answers(client)[0]["error"]["err_code"] == 10208


def test_a_restart_forgets_batches() -> None:
    box = start()
    client = stream(box)
    member(client, "b", 1, 0)
    box.run()
    again = start(box.disk.kill(), box.clock)
    client = again.client()
    client.send(b"SUB _F.> 2\r\n")
    member(client, "b", 2, 1)
    again.run()
    assert answers(client)[0]["error"]["err_code"] == 10208


def test_a_deleted_stream_gives_its_places_back() -> None:
    box = start()
    client = stream(box)
    member(client, "b", 1, 0)
    box.run()
    assert box.jetstream.fast_ingest_budget.open_batches == 1
    client.api("STREAM.DELETE.F")
    assert box.jetstream.fast_ingest_budget.open_batches == 0


def test_a_wrong_expected_id_ends_it() -> None:
    box = start()
    client = stream(box)
    member(client, "b", 1, 0)
    block = b"NATS/1.0\r\nNats-Expected-Last-Msg-Id: no\r\n\r\n"
    reply = b"_F.b.4.fail.2.1.$FI"
    client.send(b"HPUB f %s %d %d\r\n%s\r\n" % (reply, len(block), len(block), block))
    box.run()
    _, refused, end = answers(client)
    assert (refused["type"], refused["error"]["err_code"]) == ("err", 10070)
    assert (end["batch"], end["count"]) == ("b", 1)
