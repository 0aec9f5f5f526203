"""Direct get: single messages, batches, the last of many subjects, and statuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from conformance.client import API, Client, Message, encode

Make = Callable[..., dict[str, Any]]
SUBJECTS = ("a", "b", "c.d")


@pytest.fixture
def filled(client: Client, make_stream: Make, name: str) -> str:
    """A stream with messages 1..9 on a, b, c.d in turn."""
    make_stream(allow_direct=True)
    for i in range(1, 10):
        client.store(f"{name}.{SUBJECTS[(i - 1) % 3]}", f"m{i}", {"N": str(i)})
    return name


def fill_in(body: Any, name: str) -> Any:
    """Replace `{}` in a request by the stream's name."""
    if isinstance(body, dict):
        return {key: fill_in(value, name) for key, value in body.items()}
    if isinstance(body, list):
        return [fill_in(value, name) for value in body]
    return body.format(name) if isinstance(body, str) else body


def get(client: Client, name: str, body: Any) -> Message:
    return client.request(f"{API}DIRECT.GET.{name}", encode(fill_in(body, name)))


def collect(client: Client, name: str, body: Any) -> list[Message]:
    return client.collect(f"{API}DIRECT.GET.{name}", fill_in(body, name))


@pytest.mark.parametrize(
    ("body", "seq"),
    [
        ({"seq": 1}, 1),
        ({"seq": 9}, 9),
        ({"last_by_subj": "{}.a"}, 7),
        ({"last_by_subj": "{}.*"}, 8),
        ({"last_by_subj": "{}.>"}, 9),
        ({"next_by_subj": "{}.b"}, 2),
        ({"next_by_subj": "{}.b", "seq": 3}, 5),
        ({"next_by_subj": "{}.c.*", "seq": 7}, 9),
        ({"start_time": "2020-01-01T00:00:00Z"}, 1),
        ({"next_by_subj": "{}.c.d", "start_time": "2020-01-01T00:00:00Z"}, 3),
    ],
)
def test_each_selector_gets_one_message_with_its_headers(
    client: Client, filled: str, body: Any, seq: int
) -> None:
    message = get(client, filled, body)
    assert message.payload == b"m%d" % seq
    assert list(message.headers) == ["N", "Nats-Stream", "Nats-Subject", "Nats-Sequence", "Nats-Time-Stamp"]
    assert message.headers["Nats-Stream"] == filled
    assert message.headers["Nats-Subject"] == f"{filled}.{SUBJECTS[(seq - 1) % 3]}"
    assert message.headers["Nats-Sequence"] == str(seq)


def test_by_subject_in_the_request_subject(client: Client, filled: str) -> None:
    message = client.request(f"{API}DIRECT.GET.{filled}.{filled}.c.d")
    assert (message.payload, message.headers["Nats-Sequence"]) == (b"m9", "9")


def test_no_hdr_returns_the_payload_alone(client: Client, filled: str) -> None:
    message = get(client, filled, {"seq": 4, "no_hdr": True})
    assert (message.header, message.payload) == (b"", b"m4")
    by_subject = client.request(f"{API}DIRECT.GET.{filled}.{filled}.a", b'{"no_hdr":true}')
    assert (by_subject.header, by_subject.payload) == (b"", b"m7")


def test_start_time_gets_the_first_message_after_it(client: Client, filled: str) -> None:
    stamp = get(client, filled, {"seq": 5}).headers["Nats-Time-Stamp"]
    assert get(client, filled, {"start_time": stamp}).payload == b"m5"


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"seq": 10}, "404 Message Not Found"),
        ({"last_by_subj": "{}.zz"}, "404 Message Not Found"),
        ({"next_by_subj": "{}.a", "seq": 8}, "404 Message Not Found"),
        ({"start_time": "2099-01-01T00:00:00Z"}, "404 Message Not Found"),
        (None, "408 Empty Request"),
        ({}, "408 Empty Request"),
        ({"batch": 2}, "408 Empty Request"),
        (b"{bad", "408 Malformed Request"),
        ({"seq": 1, "last_by_subj": "{}.a"}, "408 Bad Request"),
        ({"last_by_subj": "{}.a", "next_by_subj": "{}.a"}, "408 Bad Request"),
        ({"multi_last": ["{}.a"], "last_by_subj": "{}.a"}, "408 Bad Request"),
        ({"multi_last": ["{}.a"], "up_to_seq": 5, "up_to_time": "2020-01-01T00:00:00Z"}, "408 Bad Request"),
        ({"last_by_subj": "{}.a", "batch": 2}, "408 Bad Request"),
        ({"multi_last": ["{}.zz"]}, "404 No Results"),
        ({"seq": 10, "batch": 2}, "404 Message Not Found"),
    ],
)
def test_invalid_requests_get_a_status(client: Client, filled: str, body: Any, status: str) -> None:
    answer = get(client, filled, body)
    assert (answer.status, answer.payload) == (status, b"")


def test_missing_subject_in_the_request_subject(client: Client, filled: str) -> None:
    assert client.request(f"{API}DIRECT.GET.{filled}.{filled}.zz").status == "404 Message Not Found"


def test_a_newer_level_is_refused(client: Client, filled: str) -> None:
    answer = client.request(f"{API}DIRECT.GET.{filled}", b'{"seq":1}', {"Nats-Required-Api-Level": "99"})
    assert answer.status == "412 Required Api Level"


def test_only_where_it_is_allowed(client: Client, make_stream: Make, name: str) -> None:
    make_stream()
    client.store(f"{name}.a")
    assert get(client, name, {"seq": 1}).status == "503"
    client.api(f"STREAM.UPDATE.{name}", {"name": name, "subjects": [f"{name}.>"], "allow_direct": True})
    assert get(client, name, {"seq": 1}).headers["Nats-Sequence"] == "1"
    client.api(f"STREAM.UPDATE.{name}", {"name": name, "subjects": [f"{name}.>"]})
    assert get(client, name, {"seq": 1}).status == "503"


class TestBatch:
    @pytest.mark.parametrize(
        ("body", "seqs", "pending"),
        [
            ({"seq": 1, "batch": 3}, [1, 2, 3], 6),
            ({"seq": 8, "batch": 5}, [8, 9], 0),
            ({"seq": 2, "next_by_subj": "{}.a", "batch": 5}, [4, 7], 0),
            ({"next_by_subj": "{}.*", "batch": 3}, [1, 2, 4], 3),
            ({"start_time": "2020-01-01T00:00:00Z", "batch": 2}, [1, 2], 7),
            ({"seq": 1, "batch": 100, "max_bytes": 1}, [1], 8),
        ],
    )
    def test_messages_and_the_end(
        self, client: Client, filled: str, body: Any, seqs: list[int], pending: int
    ) -> None:
        *messages, end = collect(client, filled, body)
        assert [int(m.headers["Nats-Sequence"]) for m in messages] == seqs
        assert [int(m.headers["Nats-Last-Sequence"]) for m in messages] == [0, *seqs[:-1]]
        assert [int(m.headers["Nats-Num-Pending"]) for m in messages][-1] == pending
        assert end.status == "204 EOB"
        assert end.headers == {"Nats-Num-Pending": str(pending), "Nats-Last-Sequence": str(seqs[-1])}

    @pytest.mark.parametrize(
        ("body", "pending"),
        [
            ({"seq": 1}, 9),
            ({"seq": 8, "max_bytes": 1}, 2),
            ({"next_by_subj": "{}.a"}, 3),
            ({"last_by_subj": "{}.a"}, 9),
            ({"start_time": "2020-01-01T00:00:00Z"}, 9),
            ({"seq": 99}, 0),
        ],
    )
    def test_less_than_none_is_the_end_at_once(
        self, client: Client, filled: str, body: Any, pending: int
    ) -> None:
        answer = get(client, filled, body | {"batch": -1})
        assert answer.status == "204 EOB"
        assert answer.headers == {"Nats-Num-Pending": str(pending), "Nats-Last-Sequence": "0"}

    def test_pending_counts_down(self, client: Client, filled: str) -> None:
        *messages, _ = collect(client, filled, {"seq": 1, "batch": 4})
        assert [m.headers["Nats-Num-Pending"] for m in messages] == ["8", "7", "6", "5"]

    def test_holes_are_passed_over(self, client: Client, filled: str) -> None:
        client.api(f"STREAM.MSG.DELETE.{filled}", {"seq": 2})
        *messages, _ = collect(client, filled, {"seq": 1, "batch": 3})
        assert [m.payload for m in messages] == [b"m1", b"m3", b"m4"]


class TestMultiLast:
    @pytest.mark.parametrize(
        ("body", "seqs"),
        [
            ({"multi_last": ["{}.a"]}, [7]),
            ({"multi_last": ["{}.a", "{}.b"]}, [7, 8]),
            ({"multi_last": ["{}.>"]}, [7, 8, 9]),
            ({"multi_last": [">"]}, [7, 8, 9]),
            ({"multi_last": ["{}.*", "{}.a"]}, [7, 8]),
            ({"multi_last": ["{}.>"], "up_to_seq": 5}, [3, 4, 5]),
            ({"multi_last": ["{}.a", "{}.zz"]}, [7]),
            ({"multi_last": ["{}.>"], "batch": -1}, [7, 8, 9]),
        ],
    )
    def test_in_order_of_sequence(self, client: Client, filled: str, body: Any, seqs: list[int]) -> None:
        *messages, end = collect(client, filled, body)
        assert [int(m.headers["Nats-Sequence"]) for m in messages] == seqs
        assert end.status == "204 EOB"
        assert end.headers["Nats-Last-Sequence"] == str(seqs[-1])
        assert end.headers["Nats-UpTo-Sequence"] == str(body.get("up_to_seq", 9))

    def test_multi_last_continues_in_pages(self, client: Client, filled: str) -> None:
        *first, end = collect(client, filled, {"multi_last": ["{}.>"], "batch": 2})
        assert [m.payload for m in first] == [b"m7", b"m8"]
        assert end.headers == {
            "Nats-Num-Pending": "1",
            "Nats-Last-Sequence": "8",
            "Nats-UpTo-Sequence": "9",
        }
        body = {"multi_last": ["{}.>"], "batch": 2, "seq": 9, "up_to_seq": 9}
        *rest, end = collect(client, filled, body)
        assert [m.payload for m in rest] == [b"m9"]
        assert end.headers["Nats-Num-Pending"] == "0"

    def test_up_to_a_time(self, client: Client, filled: str) -> None:
        stamp = get(client, filled, {"seq": 5}).headers["Nats-Time-Stamp"]
        *messages, _ = collect(client, filled, {"multi_last": ["{}.>"], "up_to_time": stamp})
        assert [m.payload for m in messages][-1] in (b"m4", b"m5")

    def test_multi_last_refuses_more_than_1024_subjects(
        self, client: Client, make_stream: Make, name: str
    ) -> None:
        make_stream(allow_direct=True, storage="memory")
        for i in range(1025):
            client.publish(f"{name}.{i}")
        client.store(f"{name}.last")
        assert get(client, name, {"multi_last": [">"]}).status == "413 Too Many Results"
