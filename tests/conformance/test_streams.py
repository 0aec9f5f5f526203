"""Streams: info, names, lists and pages, deletion, account figures, general rules of the API."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from conformance.client import API, Client
from conformance.servers import Server

Make = Callable[..., dict[str, Any]]
ZERO_TIME = "0001-01-01T00:00:00Z"
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?Z")


def error_code(answer: dict[str, Any]) -> int:
    code: int = answer["error"]["err_code"]
    return code


class TestInfo:
    def test_of_an_empty_stream(self, client: Client, make_stream: Make, name: str) -> None:
        make_stream()
        info = client.api(f"STREAM.INFO.{name}")
        assert info["state"] == {
            "messages": 0,
            "bytes": 0,
            "first_seq": 0,
            "first_ts": ZERO_TIME,
            "last_seq": 0,
            "last_ts": ZERO_TIME,
            "consumer_count": 0,
        }
        assert (info["total"], info["offset"], info["limit"]) == (0, 0, 0)
        assert TIME.fullmatch(info["created"])
        assert TIME.fullmatch(info["ts"])
        assert info["cluster"]["leader"] == client.info["server_name"]
        assert "did_create" not in info

    def test_info_counts_messages_bytes_and_subjects(
        self, client: Client, make_stream: Make, name: str
    ) -> None:
        make_stream()
        for i in range(5):
            client.store(f"{name}.{i % 2}", "12345")
        state = client.api(f"STREAM.INFO.{name}")["state"]
        assert (state["messages"], state["first_seq"], state["last_seq"], state["num_subjects"]) == (
            5,
            1,
            5,
            2,
        )
        assert state["bytes"] == 5 * (30 + len(name) + 2 + 5)
        assert state["first_ts"] <= state["last_ts"]

    @pytest.mark.parametrize("storage", ["file", "memory"])
    def test_bytes_with_headers(self, client: Client, make_stream: Make, name: str, storage: str) -> None:
        make_stream(storage=storage)
        client.store(f"{name}.a", "12345", {"K": "v"})
        subject, header = len(name) + 2, len("NATS/1.0\r\nK: v\r\n\r\n")
        expected = {"file": 30 + 4, "memory": 16}[storage] + subject + header + 5
        assert client.api(f"STREAM.INFO.{name}")["state"]["bytes"] == expected

    @pytest.mark.parametrize(
        ("pattern", "found"),
        [
            (">", {"a.1": 2, "a.2": 1, "b": 1}),
            ("{}.a.*", {"a.1": 2, "a.2": 1}),
            ("{}.b", {"b": 1}),
            ("{}.z", None),
        ],
    )
    def test_subjects_filter_lists_matching_subjects(
        self, client: Client, make_stream: Make, name: str, pattern: str, found: dict[str, int] | None
    ) -> None:
        make_stream()
        for subject in ("a.1", "a.2", "a.1", "b"):
            client.store(f"{name}.{subject}")
        info = client.api(f"STREAM.INFO.{name}", {"subjects_filter": pattern.format(name)})
        expected = {f"{name}.{k}": v for k, v in found.items()} if found else None
        assert info["state"].get("subjects") == expected
        assert (info["total"], info["limit"]) == ((len(found), 100_000) if found else (0, 0))

    def test_subjects_are_paged(self, client: Client, make_stream: Make, name: str) -> None:
        make_stream()
        for i in range(5):
            client.store(f"{name}.{i}")
        info = client.api(f"STREAM.INFO.{name}", {"subjects_filter": ">", "offset": 3})
        assert (info["total"], info["offset"], info["limit"]) == (5, 3, 100_000)
        assert sorted(info["state"]["subjects"]) == [f"{name}.3", f"{name}.4"]

    def test_deleted_details_lists_deleted_sequences(
        self, client: Client, make_stream: Make, name: str
    ) -> None:
        make_stream()
        for _ in range(6):
            client.store(f"{name}.a")
        for seq in (2, 4, 5):
            client.api(f"STREAM.MSG.DELETE.{name}", {"seq": seq})
        plain = client.api(f"STREAM.INFO.{name}")["state"]
        assert (plain["num_deleted"], plain.get("deleted")) == (3, None)
        detailed = client.api(f"STREAM.INFO.{name}", {"deleted_details": True})["state"]
        assert detailed["deleted"] == [2, 4, 5]

    def test_of_a_missing_stream(self, client: Client, name: str) -> None:
        assert client.api(f"STREAM.INFO.{name}") == {
            "type": "io.nats.jetstream.api.v1.stream_info_response",
            "error": {"code": 404, "err_code": 10059, "description": "stream not found"},
            "total": 0,
            "offset": 0,
            "limit": 0,
        }

    def test_a_body_that_is_no_object_is_ignored(self, client: Client, make_stream: Make, name: str) -> None:
        make_stream()
        assert "error" not in client.api(f"STREAM.INFO.{name}", b"hello")

    def test_created_keeps_metadata_for_info_only(self, client: Client, make_stream: Make, name: str) -> None:
        make_stream(metadata={"k": "v"})
        listed = client.api("STREAM.LIST", {"subject": f"{name}.x"})["streams"][0]
        assert listed["config"]["metadata"] == {"k": "v", "_nats.req.level": "0"}
        assert "cluster" not in listed


class TestLists:
    def test_names_by_subject(self, client: Client, make_stream: Make, name: str) -> None:
        make_stream(f"{name}a", subjects=[f"{name}.a.*"])
        make_stream(f"{name}b", subjects=[f"{name}.b", f"{name}.c.>"])
        cases = {
            f"{name}.a.x": [f"{name}a"],
            f"{name}.*.x": [f"{name}a", f"{name}b"],
            f"{name}.>": [f"{name}a", f"{name}b"],
            f"{name}.c.d.e": [f"{name}b"],
            f"{name}.zz": None,
        }
        for subject, names in cases.items():
            answer = client.api("STREAM.NAMES", {"subject": subject})
            assert (answer["streams"], answer["total"]) == (names, len(names or [])), subject

    def test_list_by_subject(self, client: Client, make_stream: Make, name: str) -> None:
        make_stream()
        answer = client.api("STREAM.LIST", {"subject": f"{name}.x"})
        assert [s["config"]["name"] for s in answer["streams"]] == [name]
        assert (answer["total"], answer["offset"], answer["limit"]) == (1, 0, 256)
        assert client.api("STREAM.LIST", {"subject": f"{name}zz"})["streams"] == []

    @pytest.mark.parametrize("body", [None, {}, {"offset": 0}, b"text"])
    def test_lists_accept_every_form_of_empty_request(
        self, client: Client, make_stream: Make, name: str, body: Any
    ) -> None:
        make_stream()
        assert name in client.api("STREAM.NAMES", body)["streams"]


class TestPages:
    """300 streams: one page of names, two pages of infos."""

    COUNT = 300

    @pytest.fixture(scope="class")
    @staticmethod
    def crowd(kind: str) -> Iterator[Client]:
        with Server(kind) as server, Client(server.port) as client:
            for i in range(TestPages.COUNT):
                client.api(f"STREAM.CREATE.S{i:03}", {"name": f"S{i:03}", "storage": "memory"})
            yield client

    def test_names_come_in_one_page_of_1024(self, crowd: Client) -> None:
        answer = crowd.api("STREAM.NAMES")
        assert answer["streams"] == [f"S{i:03}" for i in range(self.COUNT)]
        assert (answer["total"], answer["offset"], answer["limit"]) == (self.COUNT, 0, 1024)

    @pytest.mark.parametrize(
        ("offset", "first", "count"),
        [(0, "S000", 256), (256, "S256", 44), (299, "S299", 1), (-5, "S000", 256)],
    )
    def test_lists_come_in_pages_of_256(self, crowd: Client, offset: int, first: str, count: int) -> None:
        answer = crowd.api("STREAM.LIST", {"offset": offset})
        assert (answer["total"], answer["offset"], answer["limit"]) == (self.COUNT, max(offset, 0), 256)
        assert (answer["streams"][0]["config"]["name"], len(answer["streams"])) == (first, count)

    def test_an_offset_beyond_the_end_lists_nothing(self, crowd: Client) -> None:
        answer = crowd.api("STREAM.NAMES", {"offset": 1000})
        assert (answer["total"], answer["offset"]) == (self.COUNT, self.COUNT)
        assert not answer["streams"]

    def test_account_info_counts_all_streams(self, crowd: Client) -> None:
        assert crowd.api("INFO")["streams"] == self.COUNT


class TestDelete:
    def test_it_is_gone(self, client: Client, make_stream: Make, name: str) -> None:
        make_stream()
        client.store(f"{name}.a")
        assert client.api(f"STREAM.DELETE.{name}")["success"] is True
        assert error_code(client.api(f"STREAM.INFO.{name}")) == 10059
        assert client.request(f"{name}.a").status == "503"
        assert make_stream()["state"]["last_seq"] == 0

    @pytest.mark.parametrize("body", [{}, b"{}", b""])
    def test_delete_accepts_every_form_of_empty_request(
        self, client: Client, make_stream: Make, name: str, body: Any
    ) -> None:
        make_stream()
        assert client.api(f"STREAM.DELETE.{name}", body)["success"] is True

    @pytest.mark.parametrize("body", [b"x", b"[]", {"a": 1}])
    def test_delete_refuses_a_request_body(
        self, client: Client, make_stream: Make, name: str, body: Any
    ) -> None:
        make_stream()
        assert error_code(client.api(f"STREAM.DELETE.{name}", body)) == 10038

    def test_of_a_missing_stream(self, client: Client, name: str) -> None:
        assert error_code(client.api(f"STREAM.DELETE.{name}")) == 10059

    def test_it_stays_gone(self, fresh_server: Server) -> None:
        with Client(fresh_server.port) as client:
            for stream in ("A", "B"):
                client.api(f"STREAM.CREATE.{stream}", {"name": stream})
                client.store(stream, "x")
            client.api("STREAM.DELETE.A")
        fresh_server.restart(crash=True)
        with Client(fresh_server.port) as client:
            assert client.api("STREAM.NAMES")["streams"] == ["B"]


class TestAccount:
    def test_of_an_empty_server(self, fresh_server: Server) -> None:
        with Client(fresh_server.port) as client:
            info = client.api("INFO")
        assert {k: info[k] for k in ("memory", "storage", "streams", "consumers")} == {
            "memory": 0,
            "storage": 0,
            "streams": 0,
            "consumers": 0,
        }
        assert info["limits"]["max_streams"] == -1
        assert info["api"]["level"] == 5

    def test_usage_sums_the_streams(self, fresh_server: Server) -> None:
        with Client(fresh_server.port) as client:
            client.api("STREAM.CREATE.F", {"name": "F"})
            client.api("STREAM.CREATE.M", {"name": "M", "storage": "memory", "max_bytes": 5000})
            client.store("F", "x" * 100)
            client.store("M", "x" * 100)
            info = client.api("INFO")
            assert (info["storage"], info["memory"], info["streams"]) == (30 + 1 + 100, 16 + 1 + 100, 2)
            assert (info["reserved_memory"], info["reserved_storage"]) == (5000, 0)
            client.api("STREAM.PURGE.F")
            assert client.api("INFO")["storage"] == 0

    def test_calls_and_errors_are_counted(self, client: Client, name: str) -> None:
        before = client.api("INFO")["api"]
        client.api(f"STREAM.INFO.{name}")
        client.api("STREAM.NAMES")
        after = client.api("INFO")["api"]
        assert after["total"] == before["total"] + 3
        assert after["errors"] == before["errors"] + 1


class TestManners:
    @pytest.mark.parametrize(
        "subject",
        ["FOO", "STREAM.FOO.S", "STREAM.INFO", "STREAM.INFO.a.b", "META.LEADER.STEPDOWN", "SERVER.REMOVE"],
    )
    def test_unknown_subjects_are_met_with_silence(self, client: Client, subject: str) -> None:
        reply = client.ask(API + subject)
        client.api("INFO")
        assert [m for m in client.pending("1") if m.subject == reply] == []

    @pytest.mark.parametrize(
        ("operation", "body"),
        [
            ("STREAM.CREATE.{}", {"name": "{}", "bogus": 1}),
            ("STREAM.UPDATE.{}", {"name": "{}", "bogus": 1}),
            ("STREAM.PURGE.{}", {"bogus": 1}),
            ("STREAM.MSG.GET.{}", {"seq": 1, "bogus": 1}),
            ("STREAM.MSG.DELETE.{}", {"seq": 1, "bogus": 1}),
            ("STREAM.INFO.{}", {"bogus": 1}),
            ("STREAM.NAMES", {"bogus": 1}),
            ("STREAM.LIST", {"bogus": 1}),
        ],
    )
    def test_unknown_fields_are_refused_by_name(
        self, client: Client, make_stream: Make, name: str, operation: str, body: dict[str, Any]
    ) -> None:
        make_stream()
        filled = {k: v.format(name) if isinstance(v, str) else v for k, v in body.items()}
        answer = client.api(operation.format(name), filled)
        assert answer["error"] == {
            "code": 400,
            "err_code": 10025,
            "description": 'invalid JSON: json: unknown field "bogus"',
        }

    @pytest.mark.parametrize("level", ["6", "99", "x"])
    @pytest.mark.parametrize(
        "operation", ["INFO", "STREAM.NAMES", "STREAM.INFO.S", "STREAM.CREATE.S", "STREAM.PURGE.S"]
    )
    def test_a_newer_level_is_refused(self, client: Client, operation: str, level: str) -> None:
        answer = client.api(operation, None, {"Nats-Required-Api-Level": level})
        assert answer["error"] == {
            "code": 412,
            "err_code": 10185,
            "description": "JetStream minimum api level required",
        }

    @pytest.mark.parametrize("level", ["0", "1", "5"])
    def test_a_level_we_have_is_not(self, client: Client, level: str) -> None:
        assert "error" not in client.api("INFO", None, {"Nats-Required-Api-Level": level})

    def test_without_a_reply_it_is_done_all_the_same(
        self, client: Client, make_stream: Make, name: str
    ) -> None:
        make_stream()
        client.publish(f"{API}STREAM.DELETE.{name}")
        client.flush()
        while "error" not in client.api(f"STREAM.INFO.{name}"):
            pass

    @pytest.mark.parametrize("operation", ["STREAM.LEADER.STEPDOWN.{}", "STREAM.PEER.REMOVE.{}"])
    def test_there_is_no_cluster(self, client: Client, make_stream: Make, name: str, operation: str) -> None:
        make_stream()
        assert (
            error_code(client.api(operation.format(name), {"peer": "x"} if "PEER" in operation else None))
            == 10010
        )
        level = {"Nats-Required-Api-Level": "99"}  # no account if there is nothing to request
        assert error_code(client.request(API + operation.format(name), b"", level).json) == 10010
