"""Mirrors and sources within one server: what is stored, where it starts, what info shows.

The numbers of vectors are those of the sourcing specification.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from conformance.client import Client, error_of
from conformance.conftest import Launch
from conformance.consumer_client import SECOND, eventually
from conformance.servers import Setup
from conformance.sourcing import SOURCE, Copying
from headrace.jetstream_api.names import short_hash


@pytest.fixture
def three(copying: Copying) -> Copying:
    """An upstream O with three messages."""
    copying.made("O")
    copying.put("O", "a", "b", "c")
    return copying


def not_long_begun(shown: dict[str, Any]) -> dict[str, Any]:
    """Return info about a copy that was just requested, without fields that depend on whether it has started.

    Before the start, `lag` is 0 and `active` -1; nats-server may have started before it replies.
    """
    assert (shown["lag"], shown["active"]) == (0, -1) or shown["active"] >= 0
    return {key: value for key, value in shown.items() if key not in ("lag", "active")}


class TestMirror:
    def test_is_the_same_stream(self, three: Copying) -> None:
        """Vector 1."""
        info = three.made("M", mirror={"name": f"{three.name}O"})
        assert not_long_begun(info["mirror"]) == {"name": f"{three.name}O"}
        three.until("M", 3)
        assert three.all("M") == three.all("O")
        three.put("O", "d")
        three.until("M", 4)
        assert three.all("M") == three.all("O")
        shown = three.info("M")["mirror"]
        assert (shown["name"], shown["lag"]) == (f"{three.name}O", 0)
        assert 0 <= shown["active"] < 60 * SECOND
        assert "seq" not in shown

    def test_what_is_missing_counts_as_deleted(self, copying: Copying) -> None:
        """Vector 3."""
        copying.made("O")
        copying.put("O", *(str(n) for n in range(1, 11)))
        origin = f"{copying.name}O"
        copying.client.api(f"STREAM.PURGE.{origin}", {"seq": 3})
        for seq in (5, 6):
            copying.client.api(f"STREAM.MSG.DELETE.{origin}", {"seq": seq})
        copying.made("M", mirror={"name": origin})
        copying.made("A", sources=[{"name": origin}])
        copying.until_last("M", 10)
        assert copying.state("M") == (6, 3, 10, 2)
        copying.until("A", 6)
        assert copying.state("A") == (6, 1, 6, 0)

    def test_keeps_what_the_origin_loses(self, three: Copying) -> None:
        """Vector 4."""
        three.made("M", mirror={"name": f"{three.name}O"})
        three.until("M", 3)
        three.client.api(f"STREAM.PURGE.{three.name}O")
        three.put("O", "d")
        three.until("M", 4)
        assert three.state("O")[:3] == (1, 4, 4)
        assert three.data("M") == ["a", "b", "c", "d"]

    def test_an_empty_origin_that_begins_late(self, copying: Copying) -> None:
        copying.made("O", first_seq=1000)
        copying.made("M", mirror={"name": f"{copying.name}O"})
        copying.until_last("M", 999)
        assert copying.state("M") == (0, 1000, 999, 0)
        copying.put("O", "a")
        copying.until("M", 1)
        assert copying.state("M") == (1, 1000, 1000, 0)

    def test_start_at_a_sequence(self, three: Copying) -> None:
        three.made("M", mirror={"name": f"{three.name}O", "opt_start_seq": 3})
        three.until("M", 1)
        assert three.state("M") == (1, 3, 3, 0)

    def test_start_beyond_the_end(self, three: Copying) -> None:
        three.made("M", mirror={"name": f"{three.name}O", "opt_start_seq": 7})
        three.until_last("M", 6)
        three.put("O", "4", "5", "6", "7", "8")
        three.until("M", 2)
        assert three.data("M") == ["7", "8"]

    def test_start_at_a_time(self, three: Copying) -> None:
        second = three.get("O", 2)
        assert second is not None
        three.made("M", mirror={"name": f"{three.name}O", "opt_start_time": second.time})
        three.until("M", 2)
        assert three.state("M")[:3] == (2, 2, 3)

    def test_a_filter_leaves_gaps(self, copying: Copying) -> None:
        copying.made("O")
        for token, data in (("x", "1"), ("y", "2"), ("x", "3"), ("y", "4")):
            copying.put("O", data, token=token)
        origin = f"{copying.name}O"
        copying.made("M", mirror={"name": origin, "filter_subject": f"{origin}.y"})
        copying.until("M", 2)
        assert [(m.seq, m.data) for m in copying.all("M")] == [(2, "2"), (4, "4")]
        assert copying.info("M")["mirror"]["filter_subject"] == f"{origin}.y"

    def test_transforms_filter_and_rename(self, copying: Copying) -> None:
        copying.made("O")
        for token in ("x.1", "y", "z"):
            copying.put("O", token, token=token)
        origin = f"{copying.name}O"
        transforms = [
            {"src": f"{origin}.x.*", "dest": "new.{{wildcard(1)}}"},
            {"src": f"{origin}.z", "dest": ""},
        ]
        copying.made("M", mirror={"name": origin, "subject_transforms": transforms})
        copying.until("M", 2)
        assert [m.subject for m in copying.all("M")] == ["new.1", f"{origin}.z"]
        assert copying.info("M")["mirror"]["subject_transforms"] == transforms

    def test_the_streams_own_transform_comes_last(self, three: Copying) -> None:
        origin = f"{three.name}O"
        three.made(
            "M",
            mirror={"name": origin, "subject_transforms": [{"src": f"{origin}.*", "dest": "one.$1"}]},
            subject_transform={"src": "one.>", "dest": "two.>"},
        )
        three.until("M", 3)
        assert {m.subject for m in three.all("M")} == {"two.x"}

    def test_a_source_adds_the_stream_source_header(self, copying: Copying) -> None:
        """Vector 5."""
        copying.made("O")
        origin = f"{copying.name}O"
        copying.put("O", "a", Nats_Expected_Stream=origin)
        copying.put("O", "b", Nats_Msg_Id="b", Nats_Expected_Stream=origin, Own="x")
        copying.put("O", "c", Own="y")
        copying.made("M", mirror={"name": origin})
        copying.until("M", 3)
        assert [m.header for m in copying.all("M")] == [
            "",
            "NATS/1.0\r\nNats-Msg-Id: b\r\nOwn: x\r\n\r\n",
            "NATS/1.0\r\nOwn: y\r\n\r\n",
        ]

    def test_batches_lose_their_headers(self, copying: Copying) -> None:
        """Vector 5."""
        copying.made("O", allow_atomic=True)
        origin = f"{copying.name}O"
        copying.client.request(f"{origin}.x", b"1", {"Nats-Batch-Id": "b", "Nats-Batch-Sequence": "1"})
        last = {"Nats-Batch-Id": "b", "Nats-Batch-Sequence": "2", "Nats-Batch-Commit": "1"}
        assert copying.client.store(f"{origin}.x", b"2", last)["count"] == 2
        copying.made("M", mirror={"name": origin})
        copying.made("A", sources=[{"name": origin}])
        copying.until("M", 2)
        assert [(m.data, m.header) for m in copying.all("M")] == [("1", ""), ("2", "")]
        copying.until("A", 2)
        assert all("Batch" not in m.header for m in copying.all("A"))

    def test_a_mirror_follows_ttls_only_if_it_allows_them(self, copying: Copying) -> None:
        """Vector 6."""
        copying.made("O", allow_msg_ttl=True)
        origin = f"{copying.name}O"
        copying.made("W", mirror={"name": origin}, allow_msg_ttl=True)
        copying.made("N", mirror={"name": origin})
        copying.made("A", sources=[{"name": origin}])
        copying.put("O", "first")
        for tail in "WNA":
            copying.until_last(tail, 1)  # they are copied, so that the next one exists long before it expires
        copying.put("O", "a", Nats_TTL="1s")
        for tail in "WNA":
            copying.until_last(tail, 2)
        eventually(lambda: copying.state("O")[0] == copying.state("W")[0] == 1)
        time.sleep(0.5)
        stored = copying.get("N", 2)
        assert stored is not None
        assert stored.header == "NATS/1.0\r\nNats-TTL: 1s\r\n\r\n"
        assert copying.state("A")[0] == 2

    def test_a_mirror_follows_rollups_only_if_it_allows_them(self, copying: Copying) -> None:
        copying.made("O", allow_rollup_hdrs=True)
        origin = f"{copying.name}O"
        copying.made("M", mirror={"name": origin})
        copying.made("R", mirror={"name": origin}, allow_rollup_hdrs=True)
        copying.put("O", "a", "b")
        copying.until("M", 2)
        copying.until("R", 2)
        copying.put("O", "c", Nats_Rollup="all")
        copying.until("M", 3)
        copying.until("R", 1)
        assert copying.data("R") == ["c"]

    def test_takes_no_publishes(self, three: Copying) -> None:
        three.made("M", mirror={"name": f"{three.name}O"})
        three.until("M", 3)
        assert three.client.request(f"{three.name}M").status == "503"
        assert three.client.api(f"STREAM.MSG.DELETE.{three.name}M", {"seq": 2})["success"]
        assert three.client.api(f"STREAM.PURGE.{three.name}M", {"keep": 1})["purged"] == 1
        three.put("O", "d")
        three.until("M", 2)
        assert three.data("M") == ["c", "d"]

    def test_a_mirror_can_become_a_stream(self, three: Copying) -> None:
        three.made("M", mirror={"name": f"{three.name}O"})
        three.until("M", 3)
        info = three.update("M")
        assert "mirror" not in info
        assert info["config"]["subjects"] == [f"{three.name}M"]
        three.put("O", "d")
        assert three.client.store(f"{three.name}M", b"own")["seq"] == 4
        assert three.data("M") == ["a", "b", "c", "own"]
        answer = three.update("M", mirror={"name": f"{three.name}O"})
        assert error_of(answer)[0] == 10055

    def test_direct_get_under_the_origins_name(self, copying: Copying) -> None:
        copying.made("O", allow_direct=True)
        origin = f"{copying.name}O"
        copying.put("O", "a")
        assert copying.made("M", mirror={"name": origin})["config"]["mirror_direct"]
        copying.until("M", 1)
        sid = copying.client.subscribe(f"{copying.client.inbox}-direct")
        for _ in range(5):
            copying.client.publish(
                f"$JS.API.DIRECT.GET.{origin}.{origin}.x", reply=f"{copying.client.inbox}-direct"
            )
        for _ in range(5):
            copying.client.next(sid)
        time.sleep(0.1)
        assert not copying.client.pending(sid)
        copying.delete("O")
        answer = eventually(
            lambda: not (m := copying.client.request(f"$JS.API.DIRECT.GET.{origin}.{origin}.x")).status and m
        )
        assert answer.payload == b"a"
        assert answer.headers["Nats-Stream"] == f"{copying.name}M"

    def test_mirrors_and_sources_can_be_chained(self, three: Copying) -> None:
        three.made("M", mirror={"name": f"{three.name}O"})
        three.made("N", mirror={"name": f"{three.name}M"})
        three.made("A", sources=[{"name": f"{three.name}N"}])
        three.until("A", 3, 60)
        assert three.all("N") == three.all("O")
        assert three.data("A") == ["a", "b", "c"]


class TestSource:
    def test_says_where_a_message_came_from(self, three: Copying) -> None:
        """Vector 1."""
        origin = f"{three.name}O"
        info = three.made("A", sources=[{"name": origin}])
        assert [not_long_begun(each) for each in info["sources"]] == [{"name": origin}]
        three.until("A", 3)
        identity = short_hash(three.info("O")["created"])
        assert [(m.seq, m.subject, m.origin) for m in three.all("A")] == [
            (seq, f"{origin}.x", f"{origin} {seq} > > {origin}.x {identity}") for seq in (1, 2, 3)
        ]
        first, stored = three.get("O", 1), three.get("A", 1)
        assert first is not None
        assert stored is not None
        assert stored.time > first.time
        shown = three.info("A")["sources"][0]
        assert (shown["seq"], shown["lag"]) == (3, 0)

    def test_filters_and_transforms_are_in_the_header(self, copying: Copying) -> None:
        copying.made("O")
        origin = f"{copying.name}O"
        for token in ("7", "8", "9"):
            copying.put("O", token, token=token)
        copying.made("F", sources=[{"name": origin, "filter_subject": f"{origin}.8"}])
        transforms = [{"src": f"{origin}.7", "dest": "seven"}, {"src": f"{origin}.9", "dest": ""}]
        copying.made("T", sources=[{"name": origin, "subject_transforms": transforms}])
        copying.until("F", 1)
        copying.until("T", 2)
        identity = short_hash(copying.info("O")["created"])
        assert copying.all("F")[0].origin == f"{origin} 2 {origin}.8 > {origin}.8 {identity}"
        both = f"{origin}.7\f{origin}.9 seven\f>"
        assert [(m.subject, m.origin) for m in copying.all("T")] == [
            ("seven", f"{origin} 1 {both} {origin}.7 {identity}"),
            (f"{origin}.9", f"{origin} 3 {both} {origin}.9 {identity}"),
        ]

    def test_a_source_adds_the_stream_source_header(self, copying: Copying) -> None:
        copying.made("O")
        origin = f"{copying.name}O"
        copying.put("O", "a", Nats_Msg_Id="1", Nats_Expected_Stream=origin, Own="x")
        copying.made("A", sources=[{"name": origin}])
        copying.made("B", sources=[{"name": f"{copying.name}A"}])
        copying.until("B", 1, 60)
        lines = copying.all("B")[0].header.split("\r\n")
        assert lines[:3] == ["NATS/1.0", "Nats-Msg-Id: 1", "Own: x"]
        assert lines[3].startswith(f"{SOURCE}: {copying.name}A 1 > > {origin}.x ")
        assert lines[4:] == ["", ""]

    def test_several_origins_and_own_messages(self, copying: Copying) -> None:
        copying.made("O")
        copying.made("P")
        copying.made(
            "A",
            subjects=[f"{copying.name}A.own"],
            sources=[{"name": f"{copying.name}O"}, {"name": f"{copying.name}P"}],
        )
        copying.put("O", "a", "b")
        copying.put("P", "c")
        copying.client.store(f"{copying.name}A.own", b"d")
        copying.until("A", 4)
        assert sorted(copying.data("A")) == ["a", "b", "c", "d"]
        assert {s["name"]: s.get("seq") for s in copying.info("A")["sources"]} == {
            f"{copying.name}O": 2,
            f"{copying.name}P": 1,
        }

    def test_the_same_origin_twice(self, copying: Copying) -> None:
        copying.made("O")
        origin = f"{copying.name}O"
        copying.made("A", sources=[{"name": origin, "filter_subject": f"{origin}.{t}"} for t in "xy"])
        for token in "xyx":
            copying.put("O", token, token=token)
        copying.until("A", 3)
        assert sorted(copying.data("A")) == ["x", "x", "y"]

    def test_clients_may_not_say_so_themselves(self, copying: Copying) -> None:
        copying.made("O")
        ack = copying.client.store(f"{copying.name}O.x", b"", {SOURCE: "O 1"})
        assert error_of(ack) == (10227, "message stream source header is not allowed")

    def test_duplicates_are_passed_over(self, copying: Copying) -> None:
        copying.made("O")
        copying.made("P")
        origins = [{"name": f"{copying.name}{tail}"} for tail in "OP"]
        copying.made("A", sources=origins, duplicate_window=60 * SECOND)
        copying.put("O", "a", Nats_Msg_Id="1")
        copying.until("A", 1)
        copying.put("P", "again", Nats_Msg_Id="1")
        copying.put("P", "b")
        copying.until("A", 2)
        assert copying.data("A") == ["a", "b"]

    def test_a_full_stream_waits_for_room(self, copying: Copying) -> None:
        """Vector 17."""
        copying.made("O")
        copying.put("O", *(str(n) for n in range(1, 13)))
        copying.made("A", sources=[{"name": f"{copying.name}O"}], discard="new", max_msgs=5)
        copying.until("A", 5)
        copying.client.api(f"STREAM.PURGE.{copying.name}A", {"keep": 2})
        copying.until("A", 5)
        assert copying.data("A") == ["4", "5", "6", "7", "8"]
        copying.client.api(f"STREAM.PURGE.{copying.name}A", {"keep": 0})
        copying.until("A", 4)
        assert copying.data("A") == ["9", "10", "11", "12"]

    def test_start_and_time(self, three: Copying) -> None:
        origin = f"{three.name}O"
        second = three.get("O", 2)
        assert second is not None
        three.made("A", sources=[{"name": origin, "opt_start_seq": 3}])
        three.made("B", sources=[{"name": origin, "opt_start_time": second.time}])
        three.until("A", 1)
        three.until("B", 2)
        assert three.data("A") == ["c"]
        assert three.data("B") == ["b", "c"]

    def test_sources_may_be_added_removed_and_added_again(self, three: Copying) -> None:
        """Unchanged entries continue, removed ones stop, and an entry that is added again continues where it was."""
        three.made("P")
        o, p = {"name": f"{three.name}O"}, {"name": f"{three.name}P"}
        three.made("A", sources=[o])
        three.until("A", 3)
        assert "error" not in three.update("A", sources=[{**o, "opt_start_seq": 1}, p])
        three.put("O", "d")
        three.put("P", "p")
        three.until("A", 5, 40)
        assert "error" not in three.update("A", sources=[p])
        three.put("O", "e")
        three.put("P", "q")
        three.until("A", 6)
        assert "error" not in three.update("A", sources=[o, p])
        three.until("A", 7, 40)
        assert sorted(three.data("A")) == ["a", "b", "c", "d", "e", "p", "q"]
        info = three.update("A")
        assert "sources" not in info
        three.put("O", "f")
        assert three.state("A")[0] == 7

    def test_into_a_work_queue_and_an_interest_stream(self, three: Copying) -> None:
        origin = {"name": f"{three.name}O"}
        three.made("W", sources=[origin], retention="workqueue")
        three.made("I", sources=[origin], retention="interest")
        three.until("W", 3)
        assert three.state("I")[0] == 0

    @pytest.mark.ours_only("A source advances past messages without interest")
    def test_messages_without_interest_are_removed(self, three: Copying) -> None:
        three.made("I", sources=[{"name": f"{three.name}O"}], retention="interest")
        eventually(lambda: three.info("I")["sources"][0].get("seq") == 3)
        assert three.state("I")[0] == 0

    @pytest.mark.ours_only("A cycle of sources is rejected")
    def test_what_lay_there_before_makes_a_circle_too(self, three: Copying) -> None:
        origin = f"{three.name}O"
        answer = three.update("O", subjects=[], sources=[{"name": origin, "filter_subject": f"{origin}.>"}])
        assert answer["error"]["err_code"] == 10052
        assert answer["error"]["description"] == "detected cycle"

    @pytest.mark.ours_only("A cycle of sources is rejected")
    def test_two_that_copy_what_a_third_brings(self, copying: Copying) -> None:
        first, second = f"{copying.name}A", f"{copying.name}B"
        copying.made("A", subjects=[f"{first}.a"], sources=[{"name": second, "filter_subject": "x.>"}])
        third = {"name": f"{copying.name}C"}
        back = {"name": first, "filter_subject": "x.>"}
        answer = copying.stream("B", subjects=[f"{second}.b"], sources=[back, third])
        assert answer["error"]["description"] == "detected cycle"

    def test_two_that_exchange_what_is_their_own(self, copying: Copying) -> None:
        """Vector 13."""
        first, second = f"{copying.name}A", f"{copying.name}B"
        copying.made("B")
        from_second = {"name": second, "filter_subject": f"{second}.>"}
        copying.made("A", subjects=[f"{first}.>"], sources=[from_second])
        from_first = {"name": first, "filter_subject": f"{first}.>"}
        assert "error" not in copying.update("B", subjects=[f"{second}.>"], sources=[from_first])
        copying.put("A", "a")
        copying.put("B", "b")
        copying.until("A", 2)
        copying.until("B", 2)
        assert copying.state("A")[0] == copying.state("B")[0] == 2

    def test_an_upstream_that_was_created_again(self, three: Copying) -> None:
        """Vector 14."""
        three.made("A", sources=[{"name": f"{three.name}O"}])
        three.until("A", 3)
        three.delete("O")
        three.made("O")
        three.put("O", "d")
        three.until("A", 4, 60)
        assert three.data("A") == ["a", "b", "c", "d"]
        assert three.info("A")["sources"][0]["seq"] == 1

    def test_a_missing_upstream_is_reported(self, copying: Copying) -> None:
        """Vector 12."""
        copying.made("A", sources=[{"name": f"{copying.name}O"}])
        shown = eventually(lambda: copying.info("A")["sources"][0].get("error"))
        assert shown == {"code": 404, "err_code": 10059, "description": "stream not found"}


class TestWorkQueueOrigin:
    @pytest.mark.parametrize("retention", ["workqueue", "interest"])
    def test_the_consumer_becomes_durable(self, copying: Copying, retention: str) -> None:
        """Vector 7."""
        copying.made("W", retention=retention)
        origin = f"{copying.name}W"
        if retention == "workqueue":
            copying.put("W", "a", "b", "c")
        copying.made("A", sources=[{"name": origin}])
        eventually(lambda: copying.consumers("W"))
        if retention == "interest":
            copying.put("W", "a", "b", "c")
        copying.until("A", 3)
        expected = "JS_SRC_" + short_hash(short_hash(f"{copying.name}A $G"))
        assert copying.consumers("W") == [expected]
        info = copying.client.api(f"CONSUMER.INFO.{origin}.{expected}")
        assert info["config"]["ack_policy"] == "flow_control"
        assert info["config"]["durable_name"] == expected
        eventually(lambda: copying.state("W")[0] == 0)
        assert copying.data("A") == ["a", "b", "c"]
        copying.delete("A")
        eventually(lambda: not copying.consumers("W"))

    def test_a_mirror_consumes_a_workqueue(self, copying: Copying) -> None:
        copying.made("W", retention="workqueue")
        copying.put("W", "a", "b", "c")
        copying.made("M", mirror={"name": f"{copying.name}W"})
        copying.until("M", 3)
        eventually(lambda: copying.state("W")[0] == 0)
        assert copying.consumers("W") == ["JS_MIRROR_" + short_hash(f"{copying.name}M $G")]
        assert "error" not in copying.update("M")
        eventually(lambda: not copying.consumers("W"))


class TestRestart:
    @pytest.mark.parametrize("crash", [False, True])
    def test_it_continues_where_it_was(
        self, name: str, launch: Launch, connect: Callable[..., Client], crash: bool
    ) -> None:
        """Vector 16."""
        running = launch(Setup())
        streams = Copying(connect(running), name)
        streams.made("O")
        streams.made("M", mirror={"name": f"{name}O"})
        streams.made("A", sources=[{"name": f"{name}O"}])
        streams.put("O", "1", "2", "3", "4", "5")
        streams.until("A", 5)
        streams.until("M", 5)
        if running.is_ours or not crash:
            streams.client.api(f"STREAM.PURGE.{name}A")
        running.restart(crash=crash)
        streams = Copying(connect(running), name)
        streams.put("O", "6")
        streams.until_last("A", 6, 40)
        assert streams.data("A")[-1] == "6"
        streams.until("M", 6, 40)
        assert streams.all("M") == streams.all("O")
