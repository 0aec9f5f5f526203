"""Backup and restore: on each server, and from one to the other."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import pytest

from conformance.backups import consumer, encode, give, messages, shown, take
from conformance.client import Client, error_of
from conformance.servers import KINDS, OURS, Server

Make = Callable[..., dict[str, Any]]
ROUTES = list(itertools.product(KINDS, KINDS))


@pytest.fixture(scope="module")
def both() -> Iterator[dict[str, Server]]:
    """One server of each kind."""
    servers = {kind: Server(kind) for kind in KINDS}
    yield servers
    for server in servers.values():
        server.close()


@pytest.fixture(params=ROUTES, ids=lambda route: f"{route[0]} to {route[1]}")
def route(request: pytest.FixtureRequest, both: dict[str, Server]) -> Iterator[tuple[Client, Client]]:
    """A client for the backup, and one for the restore."""
    source, target = request.param
    with Client(both[source].port) as one, Client(both[target].port) as other:
        yield one, other


class TestRoutes:
    """A restored stream equals the original, whichever server made the backup."""

    def moved(self, route: tuple[Client, Client], name: str, **options: Any) -> dict[str, Any]:
        source, target = route
        backup = take(source, name, **options)
        assert source.api(f"STREAM.DELETE.{name}")["success"]
        answer = give(target, name, backup.data, backup.answer["config"])
        assert "error" not in answer, answer
        return answer

    def make(self, client: Client, name: str, **config: Any) -> None:
        answer = client.api(f"STREAM.CREATE.{name}", {"name": name, "subjects": [f"{name}.>"], **config})
        assert "error" not in answer, answer

    def end(self, route: tuple[Client, Client], name: str) -> None:
        assert route[1].api(f"STREAM.DELETE.{name}")["success"]

    def test_messages_survive_backup_and_restore(self, route: tuple[Client, Client], name: str) -> None:
        source, target = route
        self.make(source, name, allow_msg_ttl=True, description="what it was")
        for number in range(60):
            headers = {"Number": str(number)} if number % 3 else None
            source.store(f"{name}.{number % 5}", b"payload %d " % number * (number % 7), headers)
        source.store(f"{name}.ttl", "x", {"Nats-TTL": "1h"})
        for seq in (1, 2, 30, 61):
            source.api(f"STREAM.MSG.DELETE.{name}", {"seq": seq})
        before, stored = source.api(f"STREAM.INFO.{name}"), messages(source, name)
        answer = self.moved(route, name)
        after = target.api(f"STREAM.INFO.{name}")
        assert messages(target, name) == stored
        assert shown(after) == shown(before)
        assert shown(answer) == shown(before)
        assert "did_create" not in answer
        assert answer["config"]["description"] == "what it was"
        assert target.store(f"{name}.next")["seq"] == 62
        self.end(route, name)

    @pytest.mark.parametrize("first", [1, 1000])
    def test_an_empty_stream_is_restored_with_its_first_sequence(
        self, route: tuple[Client, Client], name: str, first: int
    ) -> None:
        source, target = route
        self.make(source, name, first_seq=first)
        self.moved(route, name)
        assert target.store(f"{name}.a")["seq"] == first
        self.end(route, name)

    def test_a_purged_stream_is_restored_with_its_sequences(
        self, route: tuple[Client, Client], name: str
    ) -> None:
        source, target = route
        self.make(source, name)
        for _ in range(5):
            source.store(f"{name}.a")
        source.api(f"STREAM.PURGE.{name}")
        self.moved(route, name)
        state = target.api(f"STREAM.INFO.{name}")["state"]
        assert (state["messages"], state["first_seq"], state["last_seq"]) == (0, 6, 5)
        assert target.store(f"{name}.a")["seq"] == 6
        self.end(route, name)

    def test_consumers_are_restored_with_their_state(self, route: tuple[Client, Client], name: str) -> None:
        source, target = route
        self.make(source, name)
        for number in range(20):
            source.store(f"{name}.{number % 2}", str(number))
        for config in (
            {"durable_name": "D", "ack_policy": "explicit", "max_deliver": 7},
            {"durable_name": "F", "ack_policy": "explicit", "filter_subject": f"{name}.1"},
            {"name": "E", "ack_policy": "none", "inactive_threshold": 600_000_000_000},
        ):
            called = config.get("durable_name") or config["name"]
            request = {"stream_name": name, "config": config}
            assert "error" not in source.api(f"CONSUMER.CREATE.{name}.{called}", request)
        for called, count in (("D", 7), ("F", 3), ("E", 4)):
            inbox = source.ask(
                f"$JS.API.CONSUMER.MSG.NEXT.{name}.{called}", encode({"batch": count, "no_wait": True})
            )
            assert inbox
            for number in range(count):
                delivery = source.next(source._answers)
                if number in (0, 1, 3) and called != "E":
                    source.request(delivery.reply, b"+ACK")
        before = {called: consumer(source, name, called) for called in "DFE"}
        assert before["D"]["num_ack_pending"] == 4
        assert before["D"]["ack_floor"]["stream_seq"] == 2
        self.moved(route, name)
        assert {called: consumer(target, name, called) for called in "DFE"} == before
        target.ask(f"$JS.API.CONSUMER.MSG.NEXT.{name}.D", encode({"batch": 1, "no_wait": True}))
        assert target.next(target._answers).payload == b"7"
        self.end(route, name)

    def test_no_consumers_restores_none(self, route: tuple[Client, Client], name: str) -> None:
        source, target = route
        self.make(source, name)
        source.store(f"{name}.a", "1")
        request = {"stream_name": name, "config": {"durable_name": "D", "ack_policy": "explicit"}}
        source.api(f"CONSUMER.CREATE.{name}.D", request)
        self.moved(route, name, no_consumers=True)
        assert target.api(f"CONSUMER.NAMES.{name}")["total"] == 0
        self.end(route, name)

    def test_a_backup_of_many_chunks_is_restored(self, route: tuple[Client, Client], name: str) -> None:
        source, target = route
        self.make(source, name, allow_direct=True)
        bodies = [Random(number).randbytes(3000) for number in range(100)]
        for body in bodies:
            source.store(f"{name}.a", body)
        self.moved(route, name, chunk_size=1024, window_size=4096)
        for seq in (1, 50, 100):
            assert (
                target.request(f"$JS.API.DIRECT.GET.{name}", encode({"seq": seq})).payload == bodies[seq - 1]
            )
        self.end(route, name)

    @pytest.mark.ours_only("A restored stream remembers recent message ids")
    @pytest.mark.parametrize("source_kind", KINDS)
    def test_ids_are_known(
        self, both: dict[str, Server], connect: Callable[..., Client], name: str, source_kind: str
    ) -> None:
        route = source, target = connect(both[source_kind]), connect(both[OURS])
        self.make(source, name)
        source.store(f"{name}.a", "1", {"Nats-Msg-Id": "known"})
        self.moved(route, name)
        again = target.store(f"{name}.a", "1", {"Nats-Msg-Id": "known"})
        assert again == {"stream": name, "seq": 1, "duplicate": True}
        self.end(route, name)

    def test_sources_go_on(self, route: tuple[Client, Client], name: str) -> None:
        """Nothing is copied twice."""
        source, target = route
        places = list({client.info["port"]: client for client in route}.values())
        for client in places:
            self.make(client, f"{name}O")
            for number in range(3):
                client.store(f"{name}O.a", str(number))
        assert "error" not in source.api(
            f"STREAM.CREATE.{name}", {"name": name, "sources": [{"name": f"{name}O"}]}
        )
        while source.api(f"STREAM.INFO.{name}")["state"]["messages"] < 3:
            pass
        self.moved(route, name)
        target.store(f"{name}O.a", "new")
        while target.api(f"STREAM.INFO.{name}")["state"]["messages"] < 4:
            pass
        found = [message[3] for message in messages(target, name)]
        assert found[:3] == [b"0", b"1", b"2"]
        self.end(route, name)
        for client in places:
            client.api(f"STREAM.DELETE.{name}O")

    def test_a_restored_counter_counts_on(self, route: tuple[Client, Client], name: str) -> None:
        source, target = route
        self.make(source, name, allow_msg_counter=True)
        source.store(f"{name}.a", "", {"Nats-Incr": "41"})
        self.moved(route, name)
        assert target.store(f"{name}.a", "", {"Nats-Incr": "1"})["val"] == "42"
        self.end(route, name)

    def test_a_restored_schedule_fires(self, route: tuple[Client, Client], name: str) -> None:
        source, target = route
        self.make(source, name, allow_msg_schedules=True)
        headers = {"Nats-Schedule": "@every 1s", "Nats-Schedule-Target": f"{name}.out"}
        source.store(f"{name}.plan", "x", headers)
        self.moved(route, name)
        while target.api(f"STREAM.INFO.{name}")["state"]["num_subjects"] < 2:
            pass
        self.end(route, name)

    def test_a_memory_stream_is_restored(self, route: tuple[Client, Client], name: str) -> None:
        source, target = route
        self.make(source, name, storage="memory")
        source.store(f"{name}.a", "1")
        self.moved(route, name)
        assert messages(target, name)[0][3] == b"1"
        self.end(route, name)

    def test_a_sealed_stream_is_restored_sealed(self, route: tuple[Client, Client], name: str) -> None:
        source, target = route
        self.make(source, name)
        source.store(f"{name}.a", "1")
        config = source.api(f"STREAM.INFO.{name}")["config"]
        source.api(f"STREAM.UPDATE.{name}", {**config, "sealed": True})
        answer = self.moved(route, name)
        assert answer["config"]["sealed"]
        assert error_of(target.store(f"{name}.a"))[0] == 10109
        self.end(route, name)


class TestSnapshot:
    def test_a_small_backup_is_one_chunk_and_an_end(
        self, client: Client, make_stream: Make, name: str
    ) -> None:
        make_stream()
        client.store(f"{name}.a", "x")
        backup = take(client, name)
        first, last = backup.chunks
        assert (first.reply, first.header, last.header) == ("", b"", b"")
        assert backup.answer["state"]["messages"] == 1
        assert backup.answer["config"]["name"] == name

    def test_chunks_carry_ack_subjects_and_sizes(self, client: Client, make_stream: Make, name: str) -> None:
        make_stream()
        for number in range(20):
            client.store(f"{name}.a", Random(number).randbytes(1000))
        chunks = take(client, name, chunk_size=2000).chunks
        replies = [chunk.reply.split(".") for chunk in chunks[:-2]]
        assert {tuple(reply[:4]) for reply in replies} == {("$JS", "SNAPSHOT", "ACK", name)}
        assert [reply[5:] for reply in replies] == [
            ["2000", str(number)] for number in range(1, len(replies) + 1)
        ]
        assert all(len(chunk.payload) == 2000 for chunk in chunks[:-2])
        assert (chunks[-2].reply, chunks[-1].reply, chunks[-1].header) == ("", "", b"NATS/1.0 204\r\n\r\n")

    def test_no_more_than_the_window(self, client: Client, make_stream: Make, name: str) -> None:
        make_stream()
        for number in range(20):
            client.store(f"{name}.a", Random(number).randbytes(1000))
        sid = client.subscribe(f"{name}_s")
        body = {"deliver_subject": f"{name}_s", "chunk_size": 1024, "window_size": 3072}
        client.api(f"STREAM.SNAPSHOT.{name}", body)
        first = [client.next(sid) for _ in range(3)]
        client.api(f"STREAM.INFO.{name}")
        assert client.pending(sid) == []
        client.publish(first[0].reply)
        assert client.next(sid).reply.endswith(".4")
        assert client.next(sid).status == "408 No Flow Response"

    def test_a_backup_without_receiver_completes_with_an_advisory(
        self, client: Client, make_stream: Make, name: str
    ) -> None:
        make_stream()
        client.store(f"{name}.a", "x")
        sid = client.subscribe("$JS.EVENT.ADVISORY.STREAM.SNAPSHOT_COMPLETE.*")
        assert "error" not in client.api(f"STREAM.SNAPSHOT.{name}", {"deliver_subject": f"{name}_nobody"})
        assert client.next(sid).json["stream"] == name

    @pytest.mark.parametrize(
        ("body", "code"),
        [
            (b"", 10003),
            (b"{}", 10003),
            (b'{"no_consumers":true}', 10015),
            (b'{"deliver_subject":"a.*"}', 10015),
            (b'{"deliver_subject":"a..b"}', 10015),
            (b'{"deliver_subject":"a","unknown":1}', 10025),
        ],
    )
    def test_invalid_restore_requests_are_refused(
        self, client: Client, make_stream: Make, name: str, body: bytes, code: int
    ) -> None:
        make_stream()
        assert error_of(client.api(f"STREAM.SNAPSHOT.{name}", body))[0] == code

    def test_a_snapshot_of_a_missing_stream_is_refused(self, client: Client, name: str) -> None:
        assert error_of(client.api(f"STREAM.SNAPSHOT.{name}", {"deliver_subject": "a"}))[0] == 10059

    @pytest.mark.ours_only("A backup cannot be sent to API subjects")
    def test_not_into_the_api(self, client: Client, make_stream: Make, name: str) -> None:
        make_stream()
        body = {"deliver_subject": f"$JS.API.STREAM.DELETE.{name}"}
        assert error_of(client.api(f"STREAM.SNAPSHOT.{name}", body))[0] == 10015

    def test_a_backup_publishes_create_and_complete_advisories(
        self, client: Client, make_stream: Make, name: str
    ) -> None:
        make_stream()
        client.store(f"{name}.a", "x")
        sid = client.subscribe(f"$JS.EVENT.ADVISORY.STREAM.*.{name}")
        backup = take(client, name)
        events = [client.next(sid).json for _ in range(2)]
        assert [event["type"].rpartition(".")[2] for event in events] == [
            "snapshot_create",
            "snapshot_complete",
        ]
        assert events[0]["state"] == backup.answer["state"]
        assert events[0]["client"]["host"] == "127.0.0.1"
        assert {"start", "end", "client"} <= events[1].keys()
        client.api(f"STREAM.DELETE.{name}")
        give(client, name, backup.data, backup.answer["config"])
        events = [client.next(sid).json for _ in range(4)]
        kinds = sorted(event["type"].rpartition(".")[2] for event in events)
        assert kinds == ["restore_complete", "restore_create", "stream_action", "stream_action"]
        done = next(event for event in events if event["type"].endswith("restore_complete"))
        assert done["bytes"] == len(backup.data)


class TestRestore:
    @pytest.fixture
    def backup(self, client: Client, make_stream: Make, name: str) -> bytes:
        make_stream(f"{name}B")
        for number in range(50):
            client.store(f"{name}B.a", b"payload %d" % number)
        return take(client, f"{name}B").data

    def test_another_name_and_limits(self, client: Client, name: str, backup: bytes) -> None:
        """The configuration in the request is used; the subjects of messages do not change."""
        answer = give(client, name, backup, {"name": name, "subjects": [f"{name}.>"], "max_msgs": 10})
        assert (answer["config"]["name"], answer["state"]["messages"]) == (name, 10)
        assert messages(client, name)[0][1] == f"{name}B.a"
        client.api(f"STREAM.DELETE.{name}")

    @pytest.mark.parametrize(
        ("body", "code"),
        [
            (b"", 10003),
            (b"{}", 10003),
            (b'{"config":{"name":"OTHER"}}', 10056),
            (b'{"config":{"max_age":-1}}', 10052),
            (b'{"unknown":1}', 10025),
        ],
    )
    def test_invalid_restore_requests_are_refused(
        self, client: Client, name: str, body: bytes, code: int
    ) -> None:
        answer = client.api(f"STREAM.RESTORE.{name}", body)
        assert error_of(answer)[0] == code
        assert answer["deliver_subject"] == ""

    def test_into_an_existing_one(self, client: Client, make_stream: Make, name: str) -> None:
        make_stream()
        answer = client.api(f"STREAM.RESTORE.{name}", {"config": {"name": name}})
        assert error_of(answer) == (10130, "stream name already in use, cannot restore")

    @pytest.mark.parametrize("damage", ["garbage", "short", "flipped", "nothing"])
    def test_a_bad_backup_leaves_nothing(self, client: Client, name: str, backup: bytes, damage: str) -> None:
        data = {
            "garbage": b"no backup at all" * 20,
            "short": backup[:-20],
            "flipped": backup[:200] + bytes([backup[200] ^ 1]) + backup[201:],
            "nothing": b"",
        }[damage]
        answer = give(client, name, data, {"name": name, "subjects": [f"{name}.>"]})
        assert answer["type"].endswith("stream_create_response")
        assert error_of(answer)[0] == 10062
        assert error_of(client.api(f"STREAM.INFO.{name}"))[0] == 10059
        assert "error" not in client.api(f"STREAM.CREATE.{name}", {"name": name, "subjects": [f"{name}.>"]})
        client.api(f"STREAM.DELETE.{name}")

    def test_nothing_is_seen_before_the_end(self, client: Client, name: str, backup: bytes) -> None:
        started = client.api(f"STREAM.RESTORE.{name}", {"config": {"name": name, "subjects": [f"{name}.>"]}})
        half = len(backup) // 2
        assert client.request(started["deliver_subject"], backup[:half]).payload == b""
        assert error_of(client.api(f"STREAM.INFO.{name}"))[0] == 10059
        assert client.request(started["deliver_subject"], backup[half:]).payload == b""
        assert "error" not in client.request(started["deliver_subject"], b"").json
        assert client.api(f"STREAM.INFO.{name}")["state"]["messages"] == 50
        client.api(f"STREAM.DELETE.{name}")
