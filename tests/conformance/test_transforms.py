"""Subjects that are transformed when stored, and republished copies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from conformance.client import Client

Make = Callable[..., dict[str, Any]]


def stored_subject(client: Client, name: str, seq: int) -> str:
    subject: str = client.api(f"STREAM.MSG.GET.{name}", {"seq": seq})["message"]["subject"]
    return subject


@pytest.mark.parametrize(
    ("src", "dest", "subject", "expected"),
    [
        ("{n}.*", "to.$1", "{n}.a", "to.a"),
        ("{n}.*", "to.{{{{wildcard(1)}}}}", "{n}.a", "to.a"),
        ("{n}.*.*", "to.$2.$1", "{n}.a.b", "to.b.a"),
        ("{n}.>", "to.>", "{n}.a.b", "to.a.b"),
        ("{n}.a", "fixed", "{n}.a", "fixed"),
        ("{n}.a", "fixed", "{n}.b", "{n}.b"),
        ("{n}.*", "s.{{{{split(1,-)}}}}", "{n}.a-b-c", "s.a.b.c"),
        ("{n}.*", "s.{{{{splitfromleft(1,2)}}}}", "{n}.abcde", "s.ab.cde"),
        ("{n}.*", "s.{{{{splitfromright(1,2)}}}}", "{n}.abcde", "s.abc.de"),
        ("{n}.*", "s.{{{{slicefromleft(1,2)}}}}", "{n}.abcde", "s.ab.cd.e"),
        ("{n}.*", "s.{{{{slicefromright(1,2)}}}}", "{n}.abcde", "s.a.bc.de"),
        ("{n}.*", "s.{{{{left(1,2)}}}}", "{n}.abcde", "s.ab"),
        ("{n}.*", "s.{{{{right(1,2)}}}}", "{n}.abcde", "s.de"),
    ],
)
def test_a_subject_transform_renames_stored_messages(
    client: Client, make_stream: Make, name: str, src: str, dest: str, subject: str, expected: str
) -> None:
    make_stream(subject_transform={"src": src.format(n=name), "dest": dest.format(n=name)})
    assert client.store(subject.format(n=name), "x")["seq"] == 1
    assert stored_subject(client, name, 1) == expected.format(n=name)


def test_bytes_that_are_no_utf8_are_split_one_by_one(client: Client, make_stream: Make, name: str) -> None:
    make_stream(subject_transform={"src": f"{name}.*", "dest": "s.{{split(1,)}}"})
    client.send(b"PUB %s.\xffa\xc3\xc3\xa9 1\r\nx\r\n" % name.encode())
    client.flush()
    found = client.api(f"STREAM.MSG.GET.{name}", {"seq": 1})["message"]["subject"]
    assert [len(token) for token in found.split(".")] == [1, 1, 1, 1, 1]
    assert found.endswith(".a.\ufffd.é")


@pytest.mark.parametrize("token", ["a", "b", "customer-17"])
def test_partitions_are_stable(client: Client, make_stream: Make, name: str, token: str) -> None:
    make_stream(subject_transform={"src": f"{name}.*", "dest": "p.{{partition(10,1)}}"})
    for _ in range(2):
        client.store(f"{name}.{token}")
    hashed = _fnv1a(token.encode()) % 10
    assert [stored_subject(client, name, seq) for seq in (1, 2)] == [f"p.{hashed}"] * 2


def _fnv1a(data: bytes) -> int:
    """Return the 32-bit FNV-1a hash, which decides the partition; other systems compute it too."""
    value = 0x811C9DC5
    for byte in data:
        value = (value ^ byte) * 0x01000193 & 0xFFFFFFFF
    return value


def test_a_transformed_subject_counts_for_limits(client: Client, make_stream: Make, name: str) -> None:
    make_stream(subject_transform={"src": f"{name}.*.*", "dest": f"{name}.$1"}, max_msgs_per_subject=1)
    client.store(f"{name}.a.1")
    client.store(f"{name}.a.2")
    state = client.api(f"STREAM.INFO.{name}", {"subjects_filter": ">"})["state"]
    assert state["subjects"] == {f"{name}.a": 1}


class TestRepublish:
    def test_copies_say_where_they_came_from(self, client: Client, make_stream: Make, name: str) -> None:
        make_stream(republish={"src": f"{name}.>", "dest": f"copy.{name}.>"})
        sid = client.subscribe(f"copy.{name}.>")
        client.store(f"{name}.a", "one", {"K": "v"})
        client.store(f"{name}.b", "two")
        client.store(f"{name}.a", "three")
        copies = [client.next(sid) for _ in range(3)]
        assert [c.subject for c in copies] == [f"copy.{name}.{s}" for s in "aba"]
        assert [c.payload for c in copies] == [b"one", b"two", b"three"]
        first = dict(copies[0].headers)
        assert list(first) == [
            "K",
            "Nats-Stream",
            "Nats-Subject",
            "Nats-Sequence",
            "Nats-Time-Stamp",
            "Nats-Last-Sequence",
        ]
        assert (first["Nats-Stream"], first["Nats-Subject"], first["Nats-Sequence"]) == (
            name,
            f"{name}.a",
            "1",
        )
        assert [c.headers["Nats-Last-Sequence"] for c in copies] == ["0", "0", "1"]

    def test_headers_only_republishes_the_size_instead_of_the_payload(
        self, client: Client, make_stream: Make, name: str
    ) -> None:
        make_stream(republish={"src": ">", "dest": f"copy.{name}.>", "headers_only": True})
        sid = client.subscribe(f"copy.{name}.>")
        client.store(f"{name}.a", "12345")
        copy = client.next(sid)
        assert (copy.payload, copy.headers["Nats-Msg-Size"]) == (b"", "5")

    def test_only_what_matches(self, client: Client, make_stream: Make, name: str) -> None:
        make_stream(republish={"src": f"{name}.a.*", "dest": f"copy.{name}.$1"})
        sid = client.subscribe(f"copy.{name}.>")
        client.store(f"{name}.b")
        client.store(f"{name}.a.x")
        assert client.next(sid).subject == f"copy.{name}.x"
        assert client.pending(sid) == []

    def test_into_another_stream(self, client: Client, make_stream: Make, name: str) -> None:
        make_stream(f"{name}copy", subjects=[f"copy.{name}.>"])
        make_stream(republish={"src": ">", "dest": f"copy.{name}.>"})
        client.store(f"{name}.a", "x")
        while client.api(f"STREAM.INFO.{name}copy")["state"]["messages"] == 0:
            pass
        assert stored_subject(client, f"{name}copy", 1) == f"copy.{name}.{name}.a"
