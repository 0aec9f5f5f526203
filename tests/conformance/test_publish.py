"""Publishing to a stream: acks, expectations, duplicates, rollups, and the order of the checks."""

from __future__ import annotations

import base64
import threading
import time
from collections.abc import Callable
from typing import Any

import nats.js.errors
import pytest
from nats.aio.client import Client as NatsClient

from conformance.client import Client
from conformance.servers import Server

Make = Callable[..., dict[str, Any]]
SECOND = 1_000_000_000


def refusal(ack: dict[str, Any]) -> tuple[int, str]:
    assert ack["seq"] == 0
    return ack["error"]["err_code"], ack["error"]["description"]


class TestAcknowledgement:
    def test_acks_match_nats_server_byte_for_byte(self, client: Client, make_stream: Make, name: str) -> None:
        make_stream()
        assert client.request(f"{name}.a").payload == b'{"stream":"%s","seq":1}' % name.encode()
        headers = {"Nats-Msg-Id": "1"}
        client.request(f"{name}.a", b"", headers)
        again = client.request(f"{name}.a", b"", headers)
        assert again.payload == b'{"stream":"%s","seq":2,"duplicate": true}' % name.encode()

    def test_without_a_reply_it_is_stored(self, client: Client, make_stream: Make, name: str) -> None:
        make_stream()
        client.publish(f"{name}.a", b"x")
        assert client.store(f"{name}.a")["seq"] == 2

    def test_a_no_ack_stream_sends_no_acks(self, client: Client, make_stream: Make, name: str) -> None:
        make_stream(no_ack=True)
        client.ask(f"{name}.a")
        while client.api(f"STREAM.INFO.{name}")["state"]["messages"] == 0:
            pass
        assert client.pending("1") == []

    def test_subscribers_get_the_message_too(self, client: Client, make_stream: Make, name: str) -> None:
        make_stream()
        sid = client.subscribe(f"{name}.>")
        client.store(f"{name}.a", "x")
        assert [m.payload for m in client.pending(sid)] == [b"x"]

    def test_all_headers_are_kept(self, client: Client, make_stream: Make, name: str) -> None:
        make_stream()
        headers = {
            "Nats-Msg-Id": "i",
            "Nats-Expected-Stream": name,
            "X": "y",
            "Nats-Required-Api-Level": "99",
        }
        client.store(f"{name}.a", "x", headers)
        stored = client.api(f"STREAM.MSG.GET.{name}", {"seq": 1})["message"]["hdrs"]
        lines = base64.b64decode(stored).decode().split("\r\n")
        assert lines == ["NATS/1.0", *(f"{k}: {v}" for k, v in headers.items()), "", ""]

    def test_many_in_flight_are_numbered_in_order(self, client: Client, make_stream: Make, name: str) -> None:
        make_stream()
        for _ in range(1000):
            client.ask(f"{name}.a", b"x")
        assert [client.next("1").json["seq"] for _ in range(1000)] == list(range(1, 1001))

    async def test_nats_py_gets_acks_and_errors(self, nc: NatsClient, make_stream: Make, name: str) -> None:
        make_stream()
        js = nc.jetstream()
        ack = await js.publish(f"{name}.a", b"x", headers={"Nats-Msg-Id": "one"})
        again = await js.publish(f"{name}.a", b"x", headers={"Nats-Msg-Id": "one"})
        assert (ack.stream, ack.seq, again.seq, again.duplicate) == (name, 1, 1, True)
        with pytest.raises(nats.js.errors.BadRequestError) as failure:
            await js.publish(f"{name}.a", b"", headers={"Nats-Expected-Last-Sequence": "7"})
        assert failure.value.err_code == 10071


@pytest.mark.parametrize(
    ("headers", "code", "text"),
    [
        ({"Nats-Expected-Last-Sequence": "3"}, 0, ""),
        ({"Nats-Expected-Last-Sequence": "2"}, 10071, "wrong last sequence: 3"),
        ({"Nats-Expected-Last-Sequence": "x"}, 10071, "wrong last sequence: 3"),
        ({"Nats-Expected-Last-Subject-Sequence": "3"}, 0, ""),
        ({"Nats-Expected-Last-Subject-Sequence": "1"}, 10071, "wrong last sequence: 3"),
        ({"Nats-Expected-Last-Subject-Sequence": "0"}, 10071, "wrong last sequence: 3"),
        (
            {
                "Nats-Expected-Last-Subject-Sequence": "2",
                "Nats-Expected-Last-Subject-Sequence-Subject": "{}.b",
            },
            0,
            "",
        ),
        (
            {
                "Nats-Expected-Last-Subject-Sequence": "3",
                "Nats-Expected-Last-Subject-Sequence-Subject": "{}.*",
            },
            0,
            "",
        ),
        (
            {
                "Nats-Expected-Last-Subject-Sequence": "1",
                "Nats-Expected-Last-Subject-Sequence-Subject": "{}.b",
            },
            10071,
            "wrong last sequence: 2",
        ),
        (
            {
                "Nats-Expected-Last-Subject-Sequence": "0",
                "Nats-Expected-Last-Subject-Sequence-Subject": "{}.zz",
            },
            0,
            "",
        ),
        ({"Nats-Expected-Last-Subject-Sequence-Subject": "{}.a"}, 10193, None),
        ({"Nats-Expected-Last-Msg-Id": "id-3"}, 0, ""),
        ({"Nats-Expected-Last-Msg-Id": "id-2"}, 10070, "wrong last msg ID: id-3"),
        ({"Nats-Expected-Stream": "{}"}, 0, ""),
        ({"Nats-Expected-Stream": "other"}, 10060, "expected stream does not match"),
        ({"Nats-Expected-Stream": ""}, 0, ""),
        ({"Nats-Rollup": "sub"}, 10111, "rollup not permitted"),
        ({"Nats-TTL": "1h"}, 10166, "per-message TTL is disabled"),
        ({"nats-expected-last-sequence": "99"}, 0, ""),
    ],
)
def test_expected_values_are_checked(
    client: Client, make_stream: Make, name: str, headers: dict[str, str], code: int, text: str | None
) -> None:
    make_stream()
    for i, subject in enumerate(("a", "b", "a"), 1):
        client.store(f"{name}.{subject}", "x", {"Nats-Msg-Id": f"id-{i}"})
    ack = client.store(f"{name}.a", "x", {k: v.format(name) for k, v in headers.items()})
    if code:
        assert refusal(ack) == (code, text or ack["error"]["description"])
    else:
        assert ack == {"stream": name, "seq": 4}


def test_a_new_subject_is_expected_at_zero(client: Client, make_stream: Make, name: str) -> None:
    make_stream()
    headers = {"Nats-Expected-Last-Subject-Sequence": "0"}
    assert client.store(f"{name}.k", "x", headers)["seq"] == 1
    assert refusal(client.store(f"{name}.k", "x", headers)) == (10071, "wrong last sequence: 1")
    client.api(f"STREAM.PURGE.{name}", {"filter": f"{name}.k"})
    assert client.store(f"{name}.k", "x", headers)["seq"] == 2


def test_expectations_decide_races(server: Server, make_stream: Make, name: str) -> None:
    make_stream()
    wins: list[int] = []

    def race() -> None:
        with Client(server.port) as rival:
            acks = [
                rival.store(f"{name}.{i}", "x", {"Nats-Expected-Last-Subject-Sequence": "0"})
                for i in range(50)
            ]
            wins.append(sum("error" not in ack for ack in acks))

    threads = [threading.Thread(target=race) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(wins) == 50


class TestOrderOfChecks:
    """If several things are wrong, the first check in the documented order replies."""

    @pytest.mark.parametrize(
        ("headers", "code"),
        [
            ({"Nats-Expected-Stream": "x", "Nats-TTL": "1h", "Nats-Expected-Last-Sequence": "9"}, 10060),
            ({"Nats-TTL": "1h", "Nats-Expected-Last-Sequence": "9"}, 10166),
            ({"Nats-Expected-Last-Sequence": "9", "Nats-Expected-Last-Subject-Sequence": "8"}, 10071),
            ({"Nats-Expected-Last-Sequence": "9", "Nats-Msg-Id": "known"}, 10071),
            ({"Nats-Msg-Id": "known", "Nats-Expected-Last-Msg-Id": "x"}, 0),
            ({"Nats-Expected-Last-Msg-Id": "x", "Nats-Rollup": "all"}, 10070),
        ],
    )
    def test_first_failure_answers(
        self, client: Client, make_stream: Make, name: str, headers: dict[str, str], code: int
    ) -> None:
        make_stream()
        client.store(f"{name}.a", "x", {"Nats-Msg-Id": "known"})
        ack = client.store(f"{name}.a", "x", headers)
        assert ack.get("error", {}).get("err_code", 0) == code
        if not code:
            assert ack == {"stream": name, "seq": 1, "duplicate": True}


class TestDuplicates:
    def test_a_message_id_is_a_duplicate_within_the_window(
        self, client: Client, make_stream: Make, name: str
    ) -> None:
        make_stream()
        assert client.store(f"{name}.a", "1", {"Nats-Msg-Id": "x"})["seq"] == 1
        assert client.store(f"{name}.b", "2", {"Nats-Msg-Id": "x"}) == {
            "stream": name,
            "seq": 1,
            "duplicate": True,
        }
        assert client.store(f"{name}.a", "1", {"Nats-Msg-Id": "y"})["seq"] == 2
        assert client.api(f"STREAM.INFO.{name}")["state"]["messages"] == 2

    def test_purge_and_delete_do_not_forget(self, client: Client, make_stream: Make, name: str) -> None:
        make_stream()
        client.store(f"{name}.a", "1", {"Nats-Msg-Id": "x"})
        client.api(f"STREAM.PURGE.{name}")
        assert client.store(f"{name}.a", "1", {"Nats-Msg-Id": "x"})["duplicate"] is True

    def test_a_message_id_is_new_after_the_window(self, client: Client, make_stream: Make, name: str) -> None:
        make_stream(duplicate_window=SECOND // 10)
        client.store(f"{name}.a", "1", {"Nats-Msg-Id": "x"})
        ack = client.store(f"{name}.a", "1", {"Nats-Msg-Id": "x"})
        deadline = time.monotonic() + 90
        while "duplicate" in ack:
            assert time.monotonic() < deadline
            ack = client.store(f"{name}.a", "1", {"Nats-Msg-Id": "x"})
        assert ack["seq"] == 2

    def test_a_refused_message_is_not_remembered(self, client: Client, make_stream: Make, name: str) -> None:
        make_stream(max_msg_size=60)
        headers = {"Nats-Msg-Id": "x"}
        assert refusal(client.store(f"{name}.a", "x" * 100, headers))[0] == 10054
        assert client.store(f"{name}.a", "x", headers)["seq"] == 1

    @pytest.mark.parametrize("crash", [False, True])
    def test_message_ids_survive_a_restart(self, fresh_server: Server, crash: bool) -> None:
        with Client(fresh_server.port) as client:
            client.api("STREAM.CREATE.S", {"name": "S"})
            for i in range(1, 21):
                client.store("S", "x", {"Nats-Msg-Id": f"id-{i}"})
        fresh_server.restart(crash=crash)
        with Client(fresh_server.port) as client:
            for i in (1, 10, 20):
                assert client.store("S", "x", {"Nats-Msg-Id": f"id-{i}"}) == {
                    "stream": "S",
                    "seq": i,
                    "duplicate": True,
                }
            assert client.store("S", "x", {"Nats-Msg-Id": "new"})["seq"] == 21


class TestRollup:
    @pytest.mark.parametrize(
        ("value", "left"), [("sub", [2, 4]), ("SUB", [2, 4]), ("all", [4]), ("All", [4])]
    )
    def test_older_messages_go(
        self, client: Client, make_stream: Make, name: str, value: str, left: list[int]
    ) -> None:
        make_stream(allow_rollup_hdrs=True)
        for subject in ("a", "b", "a"):
            client.store(f"{name}.{subject}", "x")
        assert client.store(f"{name}.a", "sum", {"Nats-Rollup": value})["seq"] == 4
        found = [
            seq for seq in range(1, 5) if "error" not in client.api(f"STREAM.MSG.GET.{name}", {"seq": seq})
        ]
        assert found == left

    def test_a_wildcard_subject_rolls_up_what_it_matches(
        self, client: Client, make_stream: Make, name: str
    ) -> None:
        """nats-py purges many keys of a bucket in this way."""
        make_stream(allow_rollup_hdrs=True)
        for subject in ("a.1", "a.2", "b", "a.1"):
            client.store(f"{name}.{subject}", "x")
        assert client.store(f"{name}.a.*", "sum", {"Nats-Rollup": "sub"})["seq"] == 5
        state = client.api(f"STREAM.INFO.{name}", {"subjects_filter": ">"})["state"]
        assert state["subjects"] == {f"{name}.a.*": 1, f"{name}.b": 1}

    def test_an_unknown_rollup_value_is_refused(self, client: Client, make_stream: Make, name: str) -> None:
        make_stream(allow_rollup_hdrs=True)
        ack = client.store(f"{name}.a", "x", {"Nats-Rollup": "maybe"})
        assert refusal(ack) == (10111, 'rollup value invalid: "maybe"')


class TestTtlHeader:
    @pytest.mark.parametrize("value", ["1s", "1h30m", "5", "never"])
    def test_valid_ttls_are_accepted(self, client: Client, make_stream: Make, name: str, value: str) -> None:
        make_stream(allow_msg_ttl=True)
        assert client.store(f"{name}.a", "x", {"Nats-TTL": value})["seq"] == 1

    @pytest.mark.ours_only("A zero TTL is ignored")
    @pytest.mark.parametrize("value", ["0", "0s", "00"])
    def test_a_zero_ttl_is_accepted(self, client: Client, make_stream: Make, name: str, value: str) -> None:
        make_stream(allow_msg_ttl=True)
        assert client.store(f"{name}.a", "x", {"Nats-TTL": value})["seq"] == 1

    @pytest.mark.parametrize("value", ["-1", "500ms", "soon", "1x"])
    def test_invalid_ttls_are_refused(self, client: Client, make_stream: Make, name: str, value: str) -> None:
        make_stream(allow_msg_ttl=True)
        assert refusal(client.store(f"{name}.a", "x", {"Nats-TTL": value}))[0] == 10165
