"""Messages of a stream: get, delete, purge."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

import pytest

from conformance.client import Client
from conformance.servers import Server

Make = Callable[..., dict[str, Any]]


@pytest.fixture
def filled(client: Client, make_stream: Make, name: str) -> Callable[..., None]:
    """A stream with messages 1..8 on subjects a, b, c.d in turn; `filled(deny_purge=True)` and the like."""

    def fill(**config: Any) -> None:
        make_stream(**config)
        for i in range(1, 9):
            client.store(f"{name}.{('a', 'b', 'c.d')[(i - 1) % 3]}", f"m{i}")

    return fill


def sequences(client: Client, name: str) -> list[int]:
    state = client.api(f"STREAM.INFO.{name}", {"deleted_details": True})["state"]
    if not state["messages"]:
        return []
    gone = set(state.get("deleted") or [])
    return [seq for seq in range(state["first_seq"], state["last_seq"] + 1) if seq not in gone]


class TestGet:
    @pytest.mark.parametrize(
        ("body", "seq"),
        [
            ({"seq": 1}, 1),
            ({"seq": 8}, 8),
            ({"last_by_subj": "{}.a"}, 7),
            ({"last_by_subj": "{}.*"}, 8),
            ({"last_by_subj": "{}.c.>"}, 6),
            ({"last_by_subj": "{}.>"}, 8),
            ({"next_by_subj": "{}.a"}, 1),
            ({"next_by_subj": "{}.a", "seq": 1}, 1),
            ({"next_by_subj": "{}.a", "seq": 2}, 4),
            ({"next_by_subj": "{}.*", "seq": 3}, 4),
            ({"next_by_subj": ">", "seq": 5}, 5),
            ({"start_time": "2020-01-01T00:00:00Z"}, 1),
            ({"next_by_subj": "{}.b", "start_time": "2020-01-01T00:00:00Z"}, 2),
        ],
    )
    def test_each_selector_finds_its_message(
        self, client: Client, filled: Callable[..., None], name: str, body: dict[str, Any], seq: int
    ) -> None:
        filled()
        request = {k: v.format(name) if isinstance(v, str) else v for k, v in body.items()}
        message = client.api(f"STREAM.MSG.GET.{name}", request)["message"]
        assert (message["seq"], base64.b64decode(message["data"])) == (seq, b"m%d" % seq)

    @pytest.mark.parametrize(
        ("body", "code"),
        [
            ({"seq": 9}, 10037),
            ({"last_by_subj": "{}.zz"}, 10037),
            ({"next_by_subj": "{}.a", "seq": 8}, 10037),
            ({"start_time": "2099-01-01T00:00:00Z"}, 10037),
            ({}, 10003),
            (None, 10003),
            ({"seq": 0}, 10003),
            ({"seq": 1, "last_by_subj": "{}.a"}, 10003),
            ({"last_by_subj": "{}.a", "next_by_subj": "{}.a"}, 10003),
            ({"seq": 1, "batch": 2}, 10003),
            ({"seq": 1, "start_time": "2020-01-01T00:00:00Z"}, 10003),
            (b"nonsense", 10025),
        ],
    )
    def test_invalid_purge_requests_are_refused(
        self, client: Client, filled: Callable[..., None], name: str, body: Any, code: int
    ) -> None:
        filled()
        if isinstance(body, dict):
            body = {k: v.format(name) if isinstance(v, str) else v for k, v in body.items()}
        assert client.api(f"STREAM.MSG.GET.{name}", body)["error"]["err_code"] == code

    def test_headers_are_returned_unless_no_hdr(self, client: Client, make_stream: Make, name: str) -> None:
        make_stream()
        client.store(f"{name}.a", "x", {"K": "v"})
        with_headers = client.api(f"STREAM.MSG.GET.{name}", {"seq": 1})["message"]
        assert base64.b64decode(with_headers["hdrs"]) == b"NATS/1.0\r\nK: v\r\n\r\n"
        assert "hdrs" not in client.api(f"STREAM.MSG.GET.{name}", {"seq": 1, "no_hdr": True})["message"]

    def test_an_empty_message_has_no_data(self, client: Client, make_stream: Make, name: str) -> None:
        make_stream()
        client.store(f"{name}.a")
        message = client.api(f"STREAM.MSG.GET.{name}", {"seq": 1})["message"]
        assert sorted(message) == ["seq", "subject", "time"]

    def test_of_a_missing_stream(self, client: Client, name: str) -> None:
        assert client.api(f"STREAM.MSG.GET.{name}", {"seq": 1})["error"]["err_code"] == 10059


class TestDelete:
    def test_a_deleted_message_leaves_a_gap(
        self, client: Client, filled: Callable[..., None], name: str
    ) -> None:
        filled()
        assert client.api(f"STREAM.MSG.DELETE.{name}", {"seq": 3})["success"] is True
        assert client.api(f"STREAM.MSG.DELETE.{name}", {"seq": 5, "no_erase": True})["success"] is True
        assert sequences(client, name) == [1, 2, 4, 6, 7, 8]
        assert client.api(f"STREAM.MSG.GET.{name}", {"seq": 3})["error"]["err_code"] == 10037

    def test_deleting_the_first_and_last_moves_the_first_sequence_only(
        self, client: Client, filled: Callable[..., None], name: str
    ) -> None:
        filled()
        client.api(f"STREAM.MSG.DELETE.{name}", {"seq": 1})
        client.api(f"STREAM.MSG.DELETE.{name}", {"seq": 8})
        state = client.api(f"STREAM.INFO.{name}")["state"]
        assert (state["first_seq"], state["last_seq"], state["messages"]) == (2, 8, 6)
        assert state["num_deleted"] == 1
        assert client.store(f"{name}.a")["seq"] == 9

    def test_deleting_the_only_message_empties_the_stream(
        self, client: Client, make_stream: Make, name: str
    ) -> None:
        make_stream()
        client.store(f"{name}.a")
        client.api(f"STREAM.MSG.DELETE.{name}", {"seq": 1})
        state = client.api(f"STREAM.INFO.{name}")["state"]
        assert (state["first_seq"], state["last_seq"], state["messages"], state["bytes"]) == (2, 1, 0, 0)
        assert state["first_ts"] == "0001-01-01T00:00:00Z"
        assert "num_subjects" not in state

    @pytest.mark.parametrize(
        ("config", "body", "code", "text"),
        [
            ({}, {"seq": 99}, 10057, "stream store EOF"),
            ({"storage": "memory"}, {"seq": 99}, 10043, "sequence 99 not found"),
            ({"storage": "memory"}, {"seq": 0}, 10043, "sequence 0 not found"),
            ({}, None, 10003, "bad request"),
            ({"deny_delete": True}, {"seq": 1}, 10057, "message delete not permitted"),
        ],
    )
    def test_invalid_purge_requests_are_refused(
        self,
        client: Client,
        filled: Callable[..., None],
        name: str,
        config: Any,
        body: Any,
        code: int,
        text: str,
    ) -> None:
        filled(**config)
        error = client.api(f"STREAM.MSG.DELETE.{name}", body)["error"]
        assert (error["err_code"], error["description"]) == (code, text)

    @pytest.mark.parametrize(
        ("seq", "error"),
        [
            (1, {"code": 500, "err_code": 10057, "description": "no message found"}),
            (3, {"code": 400, "err_code": 10043, "description": "sequence 3 not found"}),
        ],
        ids=["below the first", "in a hole"],
    )
    def test_a_message_cannot_be_deleted_twice(
        self, client: Client, filled: Callable[..., None], name: str, seq: int, error: dict[str, Any]
    ) -> None:
        filled()
        client.api(f"STREAM.MSG.DELETE.{name}", {"seq": seq})
        assert client.api(f"STREAM.MSG.DELETE.{name}", {"seq": seq})["error"] == error

    @pytest.mark.parametrize("crash", [False, True])
    def test_deleted_stays_deleted(self, fresh_server: Server, crash: bool) -> None:
        with Client(fresh_server.port) as client:
            client.api("STREAM.CREATE.S", {"name": "S"})
            for _ in range(5):
                client.store("S", "x")
            client.api("STREAM.MSG.DELETE.S", {"seq": 2})
            client.api("STREAM.MSG.DELETE.S", {"seq": 5})
            client.api("STREAM.PURGE.S", {"seq": 2})
        fresh_server.restart(crash=crash)
        with Client(fresh_server.port) as client:
            assert sequences(client, "S") == [3, 4]
            assert client.store("S")["seq"] == 6


class TestPurge:
    @pytest.mark.parametrize(
        ("body", "purged", "left"),
        [
            (None, 8, []),
            ({}, 8, []),
            (b"ignored", 8, []),
            ({"seq": 1}, 0, [1, 2, 3, 4, 5, 6, 7, 8]),
            ({"seq": 4}, 3, [4, 5, 6, 7, 8]),
            ({"keep": 2}, 6, [7, 8]),
            ({"keep": 20}, 0, [1, 2, 3, 4, 5, 6, 7, 8]),
            ({"filter": "{}.a"}, 3, [2, 3, 5, 6, 8]),
            ({"filter": "{}.*"}, 6, [3, 6]),
            ({"filter": "{}.c.>"}, 2, [1, 2, 4, 5, 7, 8]),
            ({"filter": "{}.zz"}, 0, [1, 2, 3, 4, 5, 6, 7, 8]),
            ({"filter": "{}.a", "keep": 1}, 2, [2, 3, 5, 6, 7, 8]),
            ({"filter": "{}.a", "seq": 5}, 2, [2, 3, 5, 6, 7, 8]),
            ({"filter": "{}.>"}, 8, []),
            ({"filter": ">", "keep": 3}, 5, [6, 7, 8]),
        ],
    )
    def test_a_purge_removes_what_it_selects(
        self, client: Client, filled: Callable[..., None], name: str, body: Any, purged: int, left: list[int]
    ) -> None:
        filled()
        if isinstance(body, dict):
            body = {k: v.format(name) if isinstance(v, str) else v for k, v in body.items()}
        answer = client.api(f"STREAM.PURGE.{name}", body)
        assert (answer["success"], answer["purged"]) == (True, purged)
        assert sequences(client, name) == left
        assert client.store(f"{name}.a")["seq"] == 9

    def test_everything_keeps_the_count(self, client: Client, filled: Callable[..., None], name: str) -> None:
        filled()
        client.api(f"STREAM.PURGE.{name}")
        state = client.api(f"STREAM.INFO.{name}")["state"]
        assert (state["first_seq"], state["last_seq"], state["bytes"]) == (9, 8, 0)
        assert state["last_ts"] != "0001-01-01T00:00:00Z"

    def test_beyond_the_end_moves_the_count(
        self, client: Client, filled: Callable[..., None], name: str
    ) -> None:
        filled()
        assert client.api(f"STREAM.PURGE.{name}", {"seq": 100})["purged"] == 8
        state = client.api(f"STREAM.INFO.{name}")["state"]
        assert (state["first_seq"], state["last_seq"]) == (100, 99)
        assert client.store(f"{name}.a")["seq"] == 100

    @pytest.mark.parametrize(
        ("config", "body", "code"), [({}, {"seq": 2, "keep": 2}, 10003), ({"deny_purge": True}, None, 10110)]
    )
    def test_invalid_purge_requests_are_refused(
        self, client: Client, filled: Callable[..., None], name: str, config: Any, body: Any, code: int
    ) -> None:
        filled(**config)
        answer = client.api(f"STREAM.PURGE.{name}", body)
        assert (answer["error"]["err_code"], answer["purged"]) == (code, 0)

    @pytest.mark.parametrize("storage", ["file", "memory"])
    def test_a_purge_of_thousands_counts_them(
        self, client: Client, make_stream: Make, name: str, storage: str
    ) -> None:
        make_stream(storage=storage)
        for i in range(2999):
            client.publish(f"{name}.{i % 10}", b"x" * 100)
        assert client.store(f"{name}.9", "x")["seq"] == 3000
        assert client.api(f"STREAM.PURGE.{name}", {"filter": f"{name}.3", "keep": 5})["purged"] == 295
        assert client.api(f"STREAM.INFO.{name}")["state"]["messages"] == 2705
        assert client.api(f"STREAM.PURGE.{name}")["purged"] == 2705
