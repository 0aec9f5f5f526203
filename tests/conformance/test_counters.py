"""Counters: increments of any length, in batches and through sources, on both servers."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from conformance.client import Client, error_of
from conformance.servers import Server

Make = Callable[..., dict[str, Any]]


class Counter:
    """Counters of one stream."""

    def __init__(self, client: Client, stream: str) -> None:
        self.client = client
        self.stream = stream

    def add(self, value: object, subject: str = "a", payload: bytes = b"", **fields: str) -> dict[str, Any]:
        headers = {"Nats-Incr": str(value)} | {key.replace("_", "-"): text for key, text in fields.items()}
        return self.client.store(f"{self.stream}.{subject}", payload, headers)

    def stored(self, subject: str = "a") -> tuple[dict[str, str], bytes]:
        message = self.client.request(f"$JS.API.DIRECT.GET.{self.stream}.{self.stream}.{subject}")
        return message.headers, message.payload


@pytest.fixture
def counter(client: Client, make_stream: Make, name: str) -> Counter:
    make_stream(allow_msg_counter=True, allow_direct=True, allow_atomic=True, allow_batched=True)
    return Counter(client, name)


class TestSums:
    def test_increments_add_up(self, counter: Counter, name: str) -> None:
        assert counter.add("+1") == {"stream": name, "seq": 1, "val": "1"}
        assert counter.add("5") == {"stream": name, "seq": 2, "val": "6"}
        assert counter.add("-10") == {"stream": name, "seq": 3, "val": "-4"}
        assert counter.add("0") == {"stream": name, "seq": 4, "val": "-4"}
        headers, payload = counter.stored()
        assert payload == b'{"val":"-4"}'
        assert headers["Nats-Incr"] == "0"

    def test_each_subject_has_its_own_counter(self, counter: Counter) -> None:
        assert counter.add(1, "a")["val"] == "1"
        assert counter.add(2, "b")["val"] == "2"
        assert counter.add(3, "a")["val"] == "4"

    @pytest.mark.parametrize("text", ["-0", "007", "+0005", "-12"])
    def test_every_spelling_of_an_integer_is_understood(self, counter: Counter, text: str) -> None:
        assert counter.add(text)["val"] == str(int(text))

    def test_counters_have_any_number_of_digits(self, counter: Counter) -> None:
        large = 10**400 + 7
        assert counter.add(large)["val"] == str(large)
        assert counter.add(large)["val"] == str(2 * large)
        assert counter.add(-3 * large)["val"] == str(-large)

    def test_very_large_numbers(self, counter: Counter) -> None:
        nines = "9" * 60_000
        assert counter.add(nines)["val"] == nines
        assert counter.add("1")["val"] == "1" + "0" * 60_000
        assert counter.add("-1")["val"] == nines

    def test_only_the_last_is_needed(self, client: Client, make_stream: Make, name: str) -> None:
        make_stream(allow_msg_counter=True, allow_direct=True, max_msgs_per_subject=1)
        counter = Counter(client, name)
        for total in range(1, 6):
            assert counter.add(1)["val"] == str(total)
        assert client.api(f"STREAM.INFO.{name}")["state"]["messages"] == 1

    def test_a_purge_starts_again(self, counter: Counter, name: str) -> None:
        counter.add(5)
        counter.client.api(f"STREAM.PURGE.{name}")
        assert counter.add(1) == {"stream": name, "seq": 2, "val": "1"}

    def test_a_deleted_message_is_not_counted(self, counter: Counter, name: str) -> None:
        counter.add(5)
        counter.add(5)
        counter.client.api(f"STREAM.MSG.DELETE.{name}", {"seq": 2})
        assert counter.add(1)["val"] == "6"

    def test_a_duplicate_increment_is_not_counted(self, counter: Counter, name: str) -> None:
        counter.add(5, Nats_Msg_Id="i")
        assert counter.add(5, Nats_Msg_Id="i") == {"stream": name, "seq": 1, "duplicate": True}
        assert counter.add(1)["val"] == "6"

    def test_other_headers_stay(self, counter: Counter) -> None:
        counter.add(5, Other="x")
        assert counter.stored()[0]["Other"] == "x"

    def test_a_transformed_subject_is_counted_by_its_new_name(
        self, client: Client, make_stream: Make, name: str
    ) -> None:
        transform = {"src": f"{name}.*", "dest": f"{name}.all"}
        make_stream(allow_msg_counter=True, subject_transform=transform)
        counter = Counter(client, name)
        assert counter.add(1, "a")["val"] == "1"
        assert counter.add(1, "b")["val"] == "2"

    def test_a_republished_counter_carries_its_sum(
        self, client: Client, make_stream: Make, name: str
    ) -> None:
        make_stream(allow_msg_counter=True, republish={"src": f"{name}.>", "dest": f"copy.{name}.>"})
        sid = client.subscribe(f"copy.{name}.>")
        Counter(client, name).add(3)
        copy = client.next(sid)
        assert (copy.payload, copy.headers["Nats-Incr"]) == (b'{"val":"3"}', "3")

    def test_a_counter_survives_a_restart(self, fresh_server: Server, connect: Callable[..., Client]) -> None:
        client = connect(fresh_server)
        client.api("STREAM.CREATE.C", {"name": "C", "subjects": ["C.>"], "allow_msg_counter": True})
        assert Counter(client, "C").add(41)["val"] == "41"
        client.close()
        fresh_server.stop()
        fresh_server.start()
        assert Counter(connect(fresh_server), "C").add(1)["val"] == "42"


class TestRefusals:
    @pytest.mark.parametrize("text", ["x", "1.5", "1e3", "1_000", "+-1", "--1", "+", "1 ", "0x10"])
    def test_an_increment_that_is_no_number_is_refused(self, counter: Counter, text: str) -> None:
        assert error_of(counter.add(text)) == (10171, "message counter increment is invalid")

    def test_a_missing_increment_is_refused(self, counter: Counter, name: str) -> None:
        assert error_of(counter.client.store(f"{name}.a")) == (10169, "message counter increment is missing")
        assert error_of(counter.add(""))[0] == 10169

    def test_an_increment_with_a_payload_is_refused(self, counter: Counter) -> None:
        assert error_of(counter.add(1, payload=b"x")) == (10170, "message counter has payload")

    def test_a_stream_without_counters_refuses_increments(
        self, client: Client, make_stream: Make, name: str
    ) -> None:
        make_stream()
        assert error_of(Counter(client, name).add(1)) == (10168, "message counters is disabled")
        assert error_of(Counter(client, name).add("x"))[0] == 10171

    @pytest.mark.parametrize(
        "field",
        [
            {"Nats_Rollup": "sub"},
            {"Nats_Expected_Stream": "x"},
            {"Nats_Expected_Last_Sequence": "0"},
            {"Nats_Expected_Last_Subject_Sequence": "0"},
            {"Nats_Expected_Last_Subject_Sequence_Subject": "x"},
            {"Nats_Expected_Last_Msg_Id": "x"},
        ],
        ids=lambda field: next(iter(field)),
    )
    def test_what_does_not_go_with_it(self, counter: Counter, field: dict[str, str]) -> None:
        assert error_of(counter.add(1, **field))[0] == 10171

    def test_an_increment_with_a_ttl_is_refused(self, counter: Counter) -> None:
        assert error_of(counter.add(1, Nats_TTL="5s"))[0] == 10166

    def test_a_sum_beyond_max_msg_size_is_refused(self, client: Client, make_stream: Make, name: str) -> None:
        make_stream(allow_msg_counter=True, max_msg_size=45)
        counter = Counter(client, name)
        assert counter.add(9)["val"] == "9"
        assert error_of(counter.add(10**12))[0] == 10054
        assert counter.add(1)["val"] == "10"

    @pytest.mark.parametrize(
        ("config", "text"),
        [
            ({"discard": "new"}, "counter stream cannot use discard new"),
            ({"allow_msg_ttl": True}, "counter stream cannot use message TTLs"),
            ({"allow_msg_schedules": True}, "counter stream cannot use message schedules"),
            ({"retention": "workqueue"}, "counter stream can only use limits retention"),
            ({"retention": "interest"}, "counter stream can only use limits retention"),
        ],
    )
    def test_counters_refuse_contradicting_stream_options(
        self, client: Client, name: str, config: dict[str, Any], text: str
    ) -> None:
        answer = client.api(f"STREAM.CREATE.{name}", {"name": name, "allow_msg_counter": True, **config})
        assert error_of(answer) == (10052, text)

    def test_a_mirror_cannot_be_a_counter_stream(self, client: Client, name: str) -> None:
        config = {"name": name, "mirror": {"name": "STAYS"}, "allow_msg_counter": True}
        assert error_of(client.api(f"STREAM.CREATE.{name}", config))[0] == 10173

    def test_counters_cannot_be_enabled_by_an_update(
        self, client: Client, make_stream: Make, name: str
    ) -> None:
        config = make_stream()["config"]
        answer = client.api(f"STREAM.UPDATE.{name}", {**config, "allow_msg_counter": True})
        assert error_of(answer)[1].endswith("can not change message counter setting")


class TestBatches:
    def test_increments_in_an_atomic_batch_add_up(self, counter: Counter, name: str) -> None:
        for position, (subject, value) in enumerate([("x", 2), ("y", 3), ("x", 5)], 1):
            commit = {"Nats_Batch_Commit": "1"} if position == 3 else {}
            fields = {"Nats_Batch_Id": "b", "Nats_Batch_Sequence": str(position), **commit}
            if position < 3:
                headers = {"Nats-Incr": str(value)} | {k.replace("_", "-"): v for k, v in fields.items()}
                assert counter.client.request(f"{name}.{subject}", b"", headers).payload == b""
            else:
                assert counter.add(value, subject, **fields) == {
                    "stream": name,
                    "seq": 3,
                    "batch": "b",
                    "count": 3,
                }
        assert counter.stored("x")[1] == b'{"val":"7"}'
        assert counter.stored("y")[1] == b'{"val":"3"}'
        assert counter.add(1, "x")["val"] == "8"

    @pytest.mark.parametrize(
        ("headers", "payload", "expected"),
        [({"Nats-Incr": "x"}, b"", 10171), ({"Nats-Incr": "1"}, b"x", 10170), ({}, b"", 10169)],
    )
    def test_a_member_is_refused(
        self, counter: Counter, name: str, headers: dict[str, str], payload: bytes, expected: int
    ) -> None:
        first = {"Nats-Incr": "1", "Nats-Batch-Id": "b", "Nats-Batch-Sequence": "1"}
        assert counter.client.request(f"{name}.a", b"", first).payload == b""
        last = {**headers, "Nats-Batch-Id": "b", "Nats-Batch-Sequence": "2", "Nats-Batch-Commit": "1"}
        assert error_of(counter.client.store(f"{name}.a", payload, last))[0] == expected
        assert counter.client.api(f"STREAM.INFO.{name}")["state"]["messages"] == 0

    def test_increments_in_a_fast_batch_add_up(self, counter: Counter, name: str) -> None:
        client = counter.client
        sid = client.subscribe(f"{client.inbox}f.>")
        for position, operation in ((1, 0), (2, 1), (3, 2)):
            client.publish(
                f"{name}.a", b"", {"Nats-Incr": "2"}, f"{client.inbox}f.id.10.fail.{position}.{operation}.$FI"
            )
        assert client.next(sid).json["type"] == "ack"
        assert client.next(sid).json == {"stream": name, "seq": 3, "batch": "id", "count": 3}
        assert counter.stored()[1] == b'{"val":"6"}'


class TestSources:
    """A counter that sums other counters."""

    def sum_up(self, client: Client, name: str, *sources: str, **entry: Any) -> Counter:
        config = {
            "name": f"{name}S",
            "sources": [{"name": source, **entry} for source in sources],
            "subject_transform": {"src": "*.*", "dest": f"{name}S.$2"},
            "allow_msg_counter": True,
            "allow_direct": True,
        }
        answer = client.api(f"STREAM.CREATE.{name}S", config)
        assert "error" not in answer, answer
        return Counter(client, f"{name}S")

    @staticmethod
    def until(total: Counter, seq: int) -> None:
        while total.client.api(f"STREAM.INFO.{total.stream}")["state"]["last_seq"] < seq:
            pass

    def test_a_sourced_counter_adds_up_its_sources(
        self, client: Client, make_stream: Make, name: str
    ) -> None:
        counters = []
        for source in (f"{name}a", f"{name}b"):
            make_stream(source, allow_msg_counter=True)
            counters.append(Counter(client, source))
        first, second = counters
        first.add(2)
        first.add(3)
        second.add(10)
        total = self.sum_up(client, name, first.stream, second.stream)
        self.until(total, 3)
        headers, payload = total.stored()
        assert payload == b'{"val":"15"}'
        known = {first.stream: {f"{first.stream}.a": "5"}, second.stream: {f"{second.stream}.a": "10"}}
        assert json.loads(headers["Nats-Counter-Sources"]) == known
        second.add(-4)
        self.until(total, 4)
        headers, payload = total.stored()
        assert (payload, headers["Nats-Incr"]) == (b'{"val":"11"}', "-4")
        client.api(f"STREAM.DELETE.{total.stream}")

    def test_what_was_missed_is_made_up(self, client: Client, make_stream: Make, name: str) -> None:
        """The upstream keeps only the newest value: the difference to the last known value is added."""
        make_stream(f"{name}a", allow_msg_counter=True, max_msgs_per_subject=1)
        origin = Counter(client, f"{name}a")
        for _ in range(5):
            origin.add(7)
        total = self.sum_up(client, name, origin.stream)
        self.until(total, 1)
        headers, payload = total.stored()
        assert (payload, headers["Nats-Incr"]) == (b'{"val":"35"}', "35")
        client.api(f"STREAM.DELETE.{total.stream}")

    def test_own_counts_go_on_top(self, client: Client, make_stream: Make, name: str) -> None:
        make_stream(f"{name}a", allow_msg_counter=True)
        Counter(client, f"{name}a").add(5)
        config = {
            "name": f"{name}S",
            "subjects": [f"{name}S.*"],
            "sources": [
                {"name": f"{name}a", "subject_transforms": [{"src": f"{name}a.*", "dest": f"{name}S.$1"}]}
            ],
            "allow_msg_counter": True,
            "allow_direct": True,
        }
        assert "error" not in client.api(f"STREAM.CREATE.{name}S", config)
        total = Counter(client, f"{name}S")
        self.until(total, 1)
        assert total.add(1)["val"] == "6"
        headers, _ = total.stored()
        assert json.loads(headers["Nats-Counter-Sources"]) == {f"{name}a": {f"{name}a.a": "5"}}
        client.api(f"STREAM.DELETE.{total.stream}")

    def test_a_plain_stream_keeps_them_as_they_are(
        self, client: Client, make_stream: Make, name: str
    ) -> None:
        make_stream(f"{name}a", allow_msg_counter=True)
        origin = Counter(client, f"{name}a")
        origin.add(5)
        origin.add(6)
        assert "error" not in client.api(
            f"STREAM.CREATE.{name}S",
            {"name": f"{name}S", "sources": [{"name": f"{name}a"}], "allow_direct": True},
        )
        copy = Counter(client, f"{name}S")
        self.until(copy, 2)
        message = client.request(f"$JS.API.DIRECT.GET.{name}S.{name}a.a")
        assert (message.payload, message.headers["Nats-Incr"]) == (b'{"val":"11"}', "6")
        client.api(f"STREAM.DELETE.{name}S")
