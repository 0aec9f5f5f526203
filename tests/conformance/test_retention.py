"""What a stream keeps: limits and discard policies, age, interest, work queues; and after a restart."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from conformance.client import Client
from conformance.servers import Server

Make = Callable[..., dict[str, Any]]
MS = 1_000_000


def state_of(client: Client, name: str) -> dict[str, Any]:
    state: dict[str, Any] = client.api(f"STREAM.INFO.{name}")["state"]
    return state


def refusal(ack: dict[str, Any]) -> tuple[int, int, str]:
    error = ack["error"]
    return error["code"], error["err_code"], error["description"]


@pytest.mark.parametrize("storage", ["file", "memory"])
class TestDiscardOld:
    def test_max_msgs_refuses_the_newest(
        self, client: Client, make_stream: Make, name: str, storage: str
    ) -> None:
        make_stream(max_msgs=3, storage=storage)
        for i in range(10):
            assert client.store(f"{name}.{i}")["seq"] == i + 1
        state = state_of(client, name)
        assert (state["messages"], state["first_seq"], state["last_seq"], state["num_subjects"]) == (
            3,
            8,
            10,
            3,
        )

    def test_max_bytes_refuses_the_newest(
        self, client: Client, make_stream: Make, name: str, storage: str
    ) -> None:
        size = {"file": 30, "memory": 16}[storage] + len(name) + 2 + 100
        make_stream(max_bytes=3 * size + 1, storage=storage)
        for _ in range(10):
            client.store(f"{name}.a", "x" * 100)
        state = state_of(client, name)
        assert (state["messages"], state["bytes"], state["first_seq"]) == (3, 3 * size, 8)

    def test_messages_per_subject(self, client: Client, make_stream: Make, name: str, storage: str) -> None:
        make_stream(max_msgs_per_subject=2, storage=storage)
        for i in range(9):
            client.store(f"{name}.{i % 3}")
        client.store(f"{name}.0")
        state = client.api(f"STREAM.INFO.{name}", {"subjects_filter": ">", "deleted_details": True})["state"]
        assert state["subjects"] == {f"{name}.{i}": 2 for i in range(3)}
        assert (state["first_seq"], state["last_seq"], state.get("deleted")) == (5, 10, None)

    def test_max_msgs_and_max_msgs_per_subject_both_apply(
        self, client: Client, make_stream: Make, name: str, storage: str
    ) -> None:
        make_stream(max_msgs=4, max_msgs_per_subject=1, storage=storage)
        for i in range(12):
            client.store(f"{name}.{i % 6}")
        assert (state_of(client, name)["messages"], state_of(client, name)["first_seq"]) == (4, 9)


@pytest.mark.parametrize("storage", ["file", "memory"])
class TestDiscardNew:
    def test_max_msgs_refuses_the_newest(
        self, client: Client, make_stream: Make, name: str, storage: str
    ) -> None:
        make_stream(max_msgs=2, discard="new", storage=storage)
        client.store(f"{name}.a")
        client.store(f"{name}.a")
        ack = client.store(f"{name}.a")
        assert refusal(ack) == (503, 10077, "maximum messages exceeded")
        client.api(f"STREAM.MSG.DELETE.{name}", {"seq": 1})
        assert client.store(f"{name}.a")["seq"] == 3

    def test_max_bytes_refuses_the_newest(
        self, client: Client, make_stream: Make, name: str, storage: str
    ) -> None:
        make_stream(max_bytes=400, discard="new", storage=storage)
        assert client.store(f"{name}.a", "x" * 200)["seq"] == 1
        assert refusal(client.store(f"{name}.a", "x" * 200)) == (503, 10077, "maximum bytes exceeded")
        assert client.store(f"{name}.a", "x")["seq"] == 2

    def test_max_msgs_per_subject_refuses_the_newest(
        self, client: Client, make_stream: Make, name: str, storage: str
    ) -> None:
        make_stream(max_msgs_per_subject=1, discard="new", discard_new_per_subject=True, storage=storage)
        assert client.store(f"{name}.a")["seq"] == 1
        ack = client.store(f"{name}.a")
        assert refusal(ack) == (503, 10077, "maximum messages per subject exceeded")
        assert client.store(f"{name}.b")["seq"] == 2

    def test_per_subject_limit_alone_drops_old(
        self, client: Client, make_stream: Make, name: str, storage: str
    ) -> None:
        """Key-value buckets depend on it."""
        make_stream(max_msgs_per_subject=1, discard="new", storage=storage)
        assert [client.store(f"{name}.a")["seq"] for _ in range(3)] == [1, 2, 3]
        assert state_of(client, name)["messages"] == 1

    def test_full_and_per_subject(self, client: Client, make_stream: Make, name: str, storage: str) -> None:
        make_stream(max_msgs=2, max_msgs_per_subject=1, discard="new", storage=storage)
        client.store(f"{name}.a")
        client.store(f"{name}.b")
        assert client.store(f"{name}.c")["error"]["err_code"] == 10077


class TestSizes:
    @pytest.mark.parametrize(("size", "fits"), [(50, True), (51, False)])
    def test_max_msg_size(self, client: Client, make_stream: Make, name: str, size: int, fits: bool) -> None:
        make_stream(max_msg_size=50)
        ack = client.store(f"{name}.a", "x" * size)
        assert ("error" not in ack) is fits
        if not fits:
            assert refusal(ack) == (400, 10054, "message size exceeds maximum allowed")

    def test_headers_count_towards_max_msg_size(self, client: Client, make_stream: Make, name: str) -> None:
        make_stream(max_msg_size=50)
        assert "error" not in client.store(f"{name}.a", "x" * 32, {"K": "v"})
        assert "error" in client.store(f"{name}.a", "x" * 33, {"K": "v"})

    def test_headers_beyond_64_kib_are_refused(self, client: Client, make_stream: Make, name: str) -> None:
        make_stream()
        ack = client.store(f"{name}.a", "x", {"K": "v" * 66_000})
        assert ack["error"]["err_code"] == 10097


class TestAge:
    @pytest.mark.parametrize("storage", ["file", "memory"])
    def test_old_messages_go(self, client: Client, make_stream: Make, name: str, storage: str) -> None:
        make_stream(max_age=200 * MS, duplicate_window=100 * MS, storage=storage)
        client.store(f"{name}.a")
        deadline = time.monotonic() + 90
        while state_of(client, name)["messages"]:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        state = state_of(client, name)
        assert (state["first_seq"], state["last_seq"]) == (2, 1)

    def test_what_grew_old_while_stopped_is_gone(self, fresh_server: Server) -> None:
        with Client(fresh_server.port) as client:
            client.api("STREAM.CREATE.S", {"name": "S", "max_age": 300 * MS, "duplicate_window": 100 * MS})
            client.store("S", "x")
            stored = time.monotonic()
        fresh_server.stop()
        time.sleep(max(0.0, stored + 0.35 - time.monotonic()))
        fresh_server.start()
        with Client(fresh_server.port) as client:
            deadline = time.monotonic() + 90
            while state_of(client, "S")["messages"]:
                assert time.monotonic() < deadline
            assert client.store("S", "x")["seq"] == 2


class TestPolicies:
    def test_interest_without_consumers_keeps_nothing(
        self, client: Client, make_stream: Make, name: str
    ) -> None:
        make_stream(retention="interest")
        assert [client.store(f"{name}.a")["seq"] for _ in range(3)] == [1, 2, 3]
        state = state_of(client, name)
        assert (state["messages"], state["last_seq"]) == (0, 3)

    def test_a_work_queue_keeps_until_worked_on(self, client: Client, make_stream: Make, name: str) -> None:
        make_stream(retention="workqueue")
        for _ in range(3):
            client.store(f"{name}.a")
        assert state_of(client, name)["messages"] == 3


class TestFirstSequence:
    def test_counting_starts_there(self, client: Client, make_stream: Make, name: str) -> None:
        info = make_stream(first_seq=1000)
        assert (info["state"]["first_seq"], info["state"]["last_seq"]) == (1000, 999)
        assert client.store(f"{name}.a")["seq"] == 1000
        assert state_of(client, name)["first_seq"] == 1000

    def test_and_survives_a_restart(self, fresh_server: Server) -> None:
        with Client(fresh_server.port) as client:
            client.api("STREAM.CREATE.S", {"name": "S", "first_seq": 1000})
        fresh_server.restart()
        with Client(fresh_server.port) as client:
            assert client.store("S")["seq"] == 1000


@pytest.mark.parametrize("crash", [False, True])
def test_acknowledged_messages_survive(fresh_server: Server, crash: bool) -> None:
    payloads = [b"%d" % i * (i % 50) for i in range(500)]
    with Client(fresh_server.port) as client:
        client.api("STREAM.CREATE.S", {"name": "S", "subjects": ["s.*"], "allow_direct": True})
        for i, payload in enumerate(payloads):
            client.ask(f"s.{i % 7}", payload, {"N": str(i)} if i % 2 else None)
        for i in range(500):
            assert client.next("1").json["seq"] == i + 1
        before = client.api("STREAM.INFO.S", {"subjects_filter": ">"})
    fresh_server.restart(crash=crash)
    with Client(fresh_server.port) as client:
        after = client.api("STREAM.INFO.S", {"subjects_filter": ">"})
        assert after["state"] == before["state"]
        messages = client.collect("$JS.API.DIRECT.GET.S", {"seq": 1, "batch": 500})
        assert [m.payload for m in messages[:-1]] == payloads
        assert [m.headers.get("N") for m in messages[:-1]] == [str(i) if i % 2 else None for i in range(500)]


def test_memory_streams_end_with_the_server(fresh_server: Server) -> None:
    with Client(fresh_server.port) as client:
        client.api("STREAM.CREATE.M", {"name": "M", "storage": "memory"})
        client.store("M", "x")
    fresh_server.restart()
    with Client(fresh_server.port) as client:
        assert client.api("STREAM.INFO.M")["error"]["err_code"] == 10059
