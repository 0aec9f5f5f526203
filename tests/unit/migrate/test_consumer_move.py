"""Positions of consumers, from what servers report."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from headrace.migrate import consumer_move
from headrace.migrate.consumer_move import (
    DurablePosition,
    await_restored,
    create_consumer,
    get_pauses,
    list_durables,
    read_positions,
)


class Replies:
    """A server with fixed replies; it counts none as missing."""

    is_clustered = True

    def __init__(self, infos: dict[str, dict[str, Any]]) -> None:
        self._infos = infos

    async def list_all(self, call: str, part: str) -> list[Any]:
        assert (call, part) == ("CONSUMER.NAMES.S", "consumers"), "a listing lacks consumers without a leader"
        return [*self._infos, "gone"]

    async def find(self, call: str) -> dict[str, Any] | None:
        return self._infos.get(call.rpartition(".")[2])


def make_info(name: str, floor: int, delivered: tuple[int, int], **more: Any) -> dict[str, Any]:
    config = {"durable_name": name, "ack_policy": "explicit", "num_replicas": 3, **more.pop("config", {})}
    return {
        "name": name,
        "config": config,
        "ack_floor": {"consumer_seq": floor, "stream_seq": floor},
        "delivered": {"consumer_seq": delivered[0], "stream_seq": delivered[1]},
        "created": "2026-11-17T12:00:00Z",
        **more,
    }


async def test_consumers_are_found_by_name() -> None:
    infos = {"a": make_info("a", 1, (1, 1)), "b": make_info("b", 1, (1, 1))}
    infos["e"] = make_info("e", 1, (1, 1), config={"durable_name": ""})
    assert [each["name"] for each in await list_durables(Replies(infos), "S")] == ["a", "b"]  # type: ignore[arg-type]


async def test_a_position_is_where_everything_before_is_acknowledged() -> None:
    infos = {
        "acked": make_info("acked", 7, (7, 7)),
        "gaps": make_info("gaps", 4, (9, 9), num_ack_pending=2),
        "new": make_info("new", 0, (0, 20), config={"deliver_policy": "new"}),
        "begun": make_info("begun", 0, (3, 23), config={"deliver_policy": "new"}, num_ack_pending=3),
    }
    found = await read_positions(Replies(infos), "S", {"acked": "2030-01-01T00:00:00Z"})  # type: ignore[arg-type]
    assert [(each.name, each.ack_floor, each.pending) for each in found] == [
        ("acked", 7, frozenset()),
        ("gaps", 4, None),
        ("new", 20, frozenset()),
        ("begun", 0, None),
    ]
    assert found[0].config["pause_until"] == "2030-01-01T00:00:00Z"
    assert {each.config["num_replicas"] for each in found} == {0}
    assert found[3].config["deliver_policy"] == "by_start_time", "not from the first message of the stream"
    assert not any(each.has_known_gaps for each in found), "a cluster does not tell its acks"


def test_only_pauses_of_users_are_restored() -> None:
    own = make_info("a", 0, (0, 0), paused=True, config={"pause_until": "2030-01-01T00:00:00Z"})
    moved = make_info("b", 0, (0, 0), paused=True, config={"pause_until": "2100-01-01T00:00:00Z"})
    assert get_pauses([own, moved, make_info("c", 0, (0, 0))]) == {"a": "2030-01-01T00:00:00Z"}


class Replica:
    """A new server whose consumer counts what a lagging replica has; each request lets it have more."""

    def __init__(self, counts: list[int], first_seq: int, lost_pulls: int = 0) -> None:
        self.lost_pulls = lost_pulls
        self.acked: list[int] = []
        self.returned: list[int] = []
        self._counts, self._next = counts, first_seq
        self.connection = self
        self.prefix = "$JS.API"

    async def find(self, call: str, body: Any = None) -> dict[str, Any] | None:
        return None if call.startswith("CONSUMER.DELETE") else await self.api(call)

    async def list_all(self, call: str, part: str) -> list[str]:
        return ["w"]

    async def api(self, call: str, body: Any = None) -> dict[str, Any]:
        if not call.startswith("CONSUMER.INFO"):
            return {}
        count = self._counts.pop(0) if len(self._counts) > 1 else self._counts[0]
        return make_info("w", 0, (0, 0), num_pending=count, paused=True)

    async def pull(self, count: int) -> list[Any]:
        if self.lost_pulls:
            self.lost_pulls -= 1
            return []
        seqs = range(self._next, self._next + count)
        self._next += count
        return [Delivered(self, seq) for seq in seqs]

    async def flush(self) -> None:
        pass


class Delivered:
    """A message that the new server has delivered to the move."""

    def __init__(self, server: Replica, seq: int) -> None:
        self._server, self._seq = server, seq
        self.metadata = SimpleNamespace(sequence=SimpleNamespace(stream=seq))

    async def ack_sync(self) -> None:
        self._server.acked.append(self._seq)

    async def nak(self) -> None:
        self._server.returned.append(self._seq)


class Counting:
    """An old server on which so many messages are above the ack floor."""

    def __init__(self, count: int) -> None:
        self._count = count

    async def api(self, call: str, body: Any) -> dict[str, Any]:
        assert body["config"]["opt_start_seq"] == 5
        assert body["config"]["filter_subject"] == "a.*"
        return {"num_pending": self._count}

    async def find(self, call: str) -> None:
        assert call.startswith("CONSUMER.DELETE.S.headrace-move-")


@pytest.fixture
def pulls(monkeypatch: pytest.MonkeyPatch) -> None:
    async def pull(server: Any, stream: str, name: str, count: int) -> list[Any]:
        found: list[Any] = await server.pull(count)
        return found

    monkeypatch.setattr(consumer_move, "_pull", pull)
    monkeypatch.setattr(consumer_move, "_POLL_S", 0.0)


def make_position(undelivered: int) -> DurablePosition:
    config = {"durable_name": "w", "ack_policy": "explicit", "filter_subject": "a.*"}
    return DurablePosition(config, 4, 10, undelivered, frozenset({5, 7}))


@pytest.mark.usefixtures("pulls")
async def test_acks_above_the_floor_are_repeated_when_the_replica_has_caught_up() -> None:
    """Messages 5 to 10 were delivered; 11 to 13 were not."""
    new = Replica([0, 4, 9], first_seq=5)
    await create_consumer(Counting(9), new, "S", make_position(3))  # type: ignore[arg-type]
    assert new.acked == [6, 8, 9, 10]
    assert new.returned == [5, 7]


@pytest.mark.usefixtures("pulls")
async def test_a_pull_that_a_cluster_dropped_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    new = Replica([9], first_seq=5, lost_pulls=2)
    await create_consumer(Counting(9), new, "S", make_position(3))  # type: ignore[arg-type]
    assert new.acked == [6, 8, 9, 10]
    monkeypatch.setattr(consumer_move, "_REPLICA_WAIT_S", -1.0)
    late = Replica([9], first_seq=5, lost_pulls=1)
    await create_consumer(Counting(9), late, "S", make_position(3))  # type: ignore[arg-type]
    assert late.acked == [], "they are delivered again: publishers cannot wait for long"


@pytest.mark.usefixtures("pulls")
async def test_a_message_that_was_never_delivered_is_not_acknowledged() -> None:
    """Message 6 has expired on the old server only, after the number of undelivered messages was read."""
    new = Replica([9], first_seq=6)
    await create_consumer(Counting(8), new, "S", make_position(3))  # type: ignore[arg-type]
    assert new.acked == [6, 8, 9, 10]
    assert new.returned == [7, 11]


@pytest.mark.usefixtures("pulls")
async def test_a_consumer_is_ready_when_it_counts_what_it_has_to_deliver() -> None:
    counts = [0, 2, 5]
    position = DurablePosition({"durable_name": "w"}, 4, 4, 5, frozenset())
    await create_consumer(Counting(0), Replica(counts, 5), "S", position)  # type: ignore[arg-type]
    assert counts == [5]


@pytest.mark.usefixtures("pulls")
async def test_a_restored_consumer_is_ready_when_it_counts_what_it_has_to_deliver() -> None:
    old = Replies({"w": make_info("w", 4, (4, 4), num_pending=5)})
    counts = [0, 0, 2, 5]
    await await_restored(old, Replica(counts, 5), "S")  # type: ignore[arg-type]
    assert counts == [5]


@pytest.mark.usefixtures("pulls")
async def test_a_consumer_whose_messages_expired_is_not_awaited_for_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(consumer_move, "_REPLICA_WAIT_S", 0.0)
    assert await consumer_move.await_pending(Replica([2], 5), "S", "w", 5) == 2  # type: ignore[arg-type]
