"""Fast ingest: batches whose members are stored as they arrive, on both servers."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from conformance.client import Client, Message, error_of
from conformance.conftest import Launch
from conformance.consumer_client import eventually
from conformance.servers import Setup

Make = Callable[..., dict[str, Any]]
START, APPEND, COMMIT, COMMIT_END, PING = range(5)
_ids = itertools.count(1)


class Fast:
    """A publisher of one fast batch. Every reply arrives on the member's own reply subject, under one inbox."""

    def __init__(
        self, client: Client, stream: str, *, gap: str = "fail", flow: object = 10, name: str = ""
    ) -> None:
        self.client = client
        self.stream = stream
        self.id = name or f"b{next(_ids)}"
        self.gap, self.flow = gap, flow
        self.inbox = f"{client.inbox}f{next(_ids)}"
        self.sid = client.subscribe(f"{self.inbox}.>")

    def send(
        self, position: object, operation: object, subject: str = "a", data: bytes = b"x", **fields: str
    ) -> None:
        reply = f"{self.inbox}.{self.id}.{self.flow}.{self.gap}.{position}.{operation}.$FI"
        headers = {key.replace("_", "-"): value for key, value in fields.items()}
        self.client.publish(f"{self.stream}.{subject}", data, headers or None, reply)

    def many(self, first: int, last: int) -> None:
        for position in range(first, last + 1):
            self.send(position, APPEND if position > 1 else START)

    def next(self) -> Any:
        message: Message = self.client.next(self.sid)
        assert not message.header
        return message.json

    def quiet(self) -> None:
        """Check that nothing more arrived before the reply to another request."""
        self.client.api(f"STREAM.INFO.{self.stream}")
        assert self.client.pending(self.sid) == []

    def error(self) -> int:
        return error_of(self.next())[0]

    def state(self) -> dict[str, Any]:
        found: dict[str, Any] = self.client.api(f"STREAM.INFO.{self.stream}")["state"]
        return found


def ack(position: int, every: int) -> dict[str, Any]:
    return {"type": "ack", "seq": position, "msgs": every}


@pytest.fixture
def fast(client: Client, make_stream: Make, name: str) -> Callable[..., Fast]:
    make_stream(allow_batched=True, allow_msg_ttl=True, allow_direct=True)

    def make(**options: Any) -> Fast:
        return Fast(client, name, **options)

    return make


class TestFlow:
    def test_a_batch_is_acked_at_each_flow_and_at_its_commit(
        self, fast: Callable[..., Fast], name: str
    ) -> None:
        batch = fast()
        batch.send(1, START)
        assert batch.next() == ack(0, 10)
        batch.many(2, 12)
        assert batch.next() == ack(10, 10)
        batch.send(13, COMMIT)
        assert batch.next() == {"stream": name, "seq": 13, "batch": batch.id, "count": 13}
        assert batch.state()["messages"] == 13

    def test_commit_without_a_message(self, fast: Callable[..., Fast], name: str) -> None:
        batch = fast()
        batch.many(1, 3)
        batch.send(4, COMMIT_END)
        assert batch.next() == ack(0, 10)
        assert batch.next() == {"stream": name, "seq": 3, "batch": batch.id, "count": 3}
        assert batch.state()["messages"] == 3

    def test_a_batch_of_one_message_gets_one_ack(self, fast: Callable[..., Fast], name: str) -> None:
        batch = fast()
        batch.send(1, COMMIT)
        assert batch.next() == {"stream": name, "seq": 1, "batch": batch.id, "count": 1}
        batch.quiet()

    def test_an_id_can_be_used_again(self, fast: Callable[..., Fast]) -> None:
        batch = fast()
        for seq in (1, 2):
            batch.send(1, COMMIT)
            assert batch.next()["seq"] == seq

    @pytest.mark.parametrize(
        ("asked", "given"), [(0, 10), ("x", 10), (1, 1), (500, 500), (501, 500), (70_000, 500)]
    )
    def test_the_requested_flow_is_capped(self, fast: Callable[..., Fast], asked: object, given: int) -> None:
        batch = fast(flow=asked)
        batch.send(1, START)
        assert batch.next() == ack(0, given)

    def test_others_make_it_begin_slowly(self, fast: Callable[..., Fast]) -> None:
        first, second = fast(), fast(flow=4)
        first.send(1, START)
        assert first.next() == ack(0, 10)
        second.send(1, START)
        assert second.next() == ack(0, 1)
        assert second.next() == ack(1, 2)
        second.many(2, 3)
        assert second.next() == ack(3, 4)

    def test_a_ping_repeats_the_last_ack(self, fast: Callable[..., Fast]) -> None:
        batch = fast(flow=2)
        batch.many(1, 3)
        assert [batch.next(), batch.next()] == [ack(0, 2), ack(2, 2)]
        batch.send(3, PING)
        assert batch.next() == ack(2, 2)
        assert batch.state()["messages"] == 3

    def test_a_reply_is_what_makes_it_fast(self, fast: Callable[..., Fast], name: str) -> None:
        """With it, headers of an atomic batch are ordinary headers."""
        batch = fast()
        batch.send(1, COMMIT, Nats_Batch_Id="other", Nats_Batch_Sequence="7")
        assert batch.next()["count"] == 1
        stored = batch.client.request(f"$JS.API.DIRECT.GET.{name}", b'{"seq":1}')
        assert stored.headers["Nats-Batch-Sequence"] == "7"

    def test_members_are_visible_at_once(self, fast: Callable[..., Fast], name: str) -> None:
        batch = fast()
        batch.many(1, 2)
        assert batch.next() == ack(0, 10)
        eventually(lambda: batch.state()["messages"] == 2)
        assert batch.client.store(f"{name}.other")["seq"] == 3
        batch.send(3, COMMIT)
        assert batch.next() == {"stream": name, "seq": 4, "batch": batch.id, "count": 3}


class TestGaps:
    def test_a_gap_ends_it(self, fast: Callable[..., Fast], name: str) -> None:
        batch = fast()
        batch.many(1, 2)
        batch.send(5, APPEND)
        assert batch.next() == ack(0, 10)
        assert batch.next() == {"type": "gap", "last_seq": 3, "seq": 5}
        assert batch.next() == {"stream": name, "seq": 2, "batch": batch.id, "count": 2}
        batch.send(6, APPEND)
        assert batch.error() == 10208

    def test_a_gap_is_fine(self, fast: Callable[..., Fast], name: str) -> None:
        batch = fast(gap="ok")
        batch.send(1, START)
        assert batch.next() == ack(0, 10)
        batch.send(5, APPEND)
        assert batch.next() == {"type": "gap", "last_seq": 2, "seq": 5}
        batch.send(6, COMMIT)
        assert batch.next() == {"stream": name, "seq": 3, "batch": batch.id, "count": 6}

    def test_a_gap_before_the_end(self, fast: Callable[..., Fast], name: str) -> None:
        batch = fast(gap="ok")
        batch.send(1, START)
        batch.send(5, COMMIT_END)
        assert batch.next() == ack(0, 10)
        assert batch.next() == {"type": "gap", "last_seq": 2, "seq": 5}
        assert batch.next() == {"stream": name, "seq": 1, "batch": batch.id, "count": 4}

    @pytest.mark.parametrize("gap", ["ok", "fail"])
    def test_going_back_ends_it(self, fast: Callable[..., Fast], name: str, gap: str) -> None:
        batch = fast(gap=gap)
        batch.many(1, 3)
        assert batch.next() == ack(0, 10)
        batch.send(2, APPEND)
        assert batch.next() == {"type": "gap", "last_seq": 4, "seq": 2}
        assert batch.next() == {"stream": name, "seq": 3, "batch": batch.id, "count": 3}

    def test_a_ping_shows_a_gap(self, fast: Callable[..., Fast], name: str) -> None:
        batch = fast()
        batch.many(1, 2)
        assert batch.next() == ack(0, 10)
        batch.send(4, PING)
        assert batch.next() == {"type": "gap", "last_seq": 3, "seq": 5}
        assert batch.next() == {"stream": name, "seq": 2, "batch": batch.id, "count": 2}

    def test_a_ping_shows_a_gap_that_is_fine(self, fast: Callable[..., Fast], name: str) -> None:
        batch = fast(gap="ok", flow=3)
        batch.many(1, 2)
        assert batch.next() == ack(0, 3)
        batch.send(4, PING)
        assert batch.next() == {"type": "gap", "last_seq": 3, "seq": 5}
        assert batch.next() == ack(3, 3)
        batch.send(5, COMMIT)
        assert batch.next() == {"stream": name, "seq": 3, "batch": batch.id, "count": 5}


class TestRefusals:
    def test_a_stream_without_allow_batched_refuses_batches(
        self, client: Client, make_stream: Make, name: str
    ) -> None:
        make_stream()
        batch = Fast(client, name)
        batch.send(1, START)
        assert batch.error() == 10205
        batch.send("x", "y")
        assert batch.error() == 10205
        assert batch.state()["messages"] == 0

    @pytest.mark.parametrize(
        ("position", "operation"),
        [
            (0, START),
            (2, START),
            (1, APPEND),
            (1, COMMIT_END),
            (1, 5),
            (1, "x"),
            ("x", START),
            (2**64 - 1, APPEND),
        ],
    )
    def test_an_invalid_reply_subject_is_refused(
        self, fast: Callable[..., Fast], position: object, operation: object
    ) -> None:
        batch = fast()
        batch.send(position, operation)
        assert batch.error() == 10206

    def test_bad_gap_mode(self, fast: Callable[..., Fast]) -> None:
        batch = fast(gap="perhaps")
        batch.send(1, START)
        assert batch.error() == 10206

    def test_too_few_parts(self, fast: Callable[..., Fast], name: str) -> None:
        batch = fast()
        batch.client.publish(f"{name}.a", b"x", None, f"{batch.inbox}.$FI")
        assert batch.error() == 10206

    def test_a_batch_id_has_at_most_64_characters(self, fast: Callable[..., Fast]) -> None:
        batch = fast(name="i" * 64)
        batch.send(1, COMMIT)
        assert batch.next()["count"] == 1
        batch = fast(name="i" * 65)
        batch.send(1, COMMIT)
        assert batch.error() == 10207

    @pytest.mark.parametrize("operation", [APPEND, COMMIT, COMMIT_END, PING])
    def test_a_member_of_an_unknown_batch_is_refused(self, fast: Callable[..., Fast], operation: int) -> None:
        batch = fast()
        batch.send(2, operation)
        assert batch.error() == 10208

    def test_a_rejected_first_member_ends_the_batch(self, fast: Callable[..., Fast], name: str) -> None:
        batch = fast()
        batch.send(1, START, Nats_Expected_Last_Sequence="7")
        assert batch.next() == ack(0, 10)
        assert error_of(batch.next()) == (10071, "wrong last sequence: 0")
        batch.send(2, APPEND)
        assert batch.error() == 10208

    def test_of_a_member_ends_it(self, fast: Callable[..., Fast], name: str) -> None:
        batch = fast()
        batch.many(1, 2)
        assert batch.next() == ack(0, 10)
        batch.send(3, APPEND, Nats_Expected_Last_Sequence="7")
        answer = batch.next()
        assert (answer["type"], answer["seq"], answer["error"]["err_code"]) == ("err", 3, 10071)
        assert batch.next() == {"stream": name, "seq": 2, "batch": batch.id, "count": 2}

    def test_of_a_member_that_may_fail(self, fast: Callable[..., Fast], name: str) -> None:
        batch = fast(gap="ok")
        batch.many(1, 2)
        assert batch.next() == ack(0, 10)
        batch.send(3, APPEND, Nats_TTL="bad")
        answer = batch.next()
        assert (answer["type"], answer["seq"], answer["error"]["err_code"]) == ("err", 3, 10165)
        batch.send(4, COMMIT)
        assert batch.next() == {"stream": name, "seq": 3, "batch": batch.id, "count": 4}

    def test_a_rejected_commit_still_commits_the_others(self, fast: Callable[..., Fast], name: str) -> None:
        batch = fast(gap="ok")
        batch.many(1, 2)
        assert batch.next() == ack(0, 10)
        batch.send(3, COMMIT, Nats_Expected_Stream="other")
        assert batch.next()["error"]["err_code"] == 10060
        assert batch.next() == {"stream": name, "seq": 2, "batch": batch.id, "count": 2}

    def test_a_newer_required_api_level_ends_the_batch(self, fast: Callable[..., Fast], name: str) -> None:
        batch = fast()
        batch.send(1, START, Nats_Required_Api_Level="4")
        assert batch.next() == ack(0, 10)
        stored = batch.client.request(f"$JS.API.DIRECT.GET.{name}", b'{"seq":1}')
        assert "Nats-Required-Api-Level" not in stored.headers
        batch.send(2, APPEND, Nats_Required_Api_Level="99")
        assert batch.error() == 10185
        batch.send(3, APPEND)
        assert batch.error() == 10208

    def test_a_too_large_member_is_refused_and_the_batch_continues(
        self, client: Client, make_stream: Make, name: str
    ) -> None:
        make_stream(allow_batched=True, max_msg_size=10)
        batch = Fast(client, name)
        batch.send(1, START)
        assert batch.next() == ack(0, 10)
        batch.send(2, APPEND, data=b"x" * 11)
        assert batch.error() == 10054
        batch.send(2, COMMIT)
        assert batch.next()["count"] == 2

    def test_a_mirror_cannot_take_fast_batches(self, client: Client, name: str) -> None:
        answer = client.api(
            f"STREAM.CREATE.{name}", {"name": name, "mirror": {"name": "STAYS"}, "allow_batched": True}
        )
        assert error_of(answer)[0] == 10209

    def test_a_sealed_stream_refuses_batches(self, fast: Callable[..., Fast], name: str) -> None:
        batch = fast()
        config = batch.client.api(f"STREAM.INFO.{name}")["config"]
        batch.client.api(f"STREAM.UPDATE.{name}", {**config, "sealed": True})
        batch.send(1, START)
        assert batch.error() == 10109


class TestTogether:
    """Combined with other features of a message."""

    def test_duplicates_count_as_members(self, fast: Callable[..., Fast], name: str) -> None:
        batch = fast(flow=2)
        batch.client.store(f"{name}.a", headers={"Nats-Msg-Id": "one"})
        batch.send(1, START, Nats_Msg_Id="two")
        assert batch.next() == ack(0, 2)
        batch.send(2, APPEND, Nats_Msg_Id="one")
        assert batch.next() == ack(2, 2)
        batch.send(3, COMMIT, Nats_Msg_Id="two")
        assert batch.next() == {"stream": name, "seq": 2, "batch": batch.id, "count": 3}
        assert batch.state()["messages"] == 2

    def test_a_batch_of_one_duplicate_says_so(self, fast: Callable[..., Fast], name: str) -> None:
        batch = fast()
        batch.client.store(f"{name}.a", headers={"Nats-Msg-Id": "one"})
        batch.send(1, COMMIT, Nats_Msg_Id="one")
        assert batch.next() == {"stream": name, "seq": 1, "duplicate": True, "batch": batch.id, "count": 1}

    def test_each_member_may_expect_the_sequence_before_it(self, fast: Callable[..., Fast]) -> None:
        """Each member may expect the sequence of the one before it."""
        batch = fast()
        batch.send(1, START, Nats_Expected_Last_Sequence="0")
        batch.send(2, APPEND, "b", Nats_Expected_Last_Subject_Sequence="0")
        batch.send(3, APPEND, Nats_Expected_Last_Subject_Sequence="1")
        batch.send(4, COMMIT, Nats_Expected_Last_Sequence="3")
        assert batch.next() == ack(0, 10)
        assert batch.next()["count"] == 4

    def test_members_may_have_a_ttl(self, fast: Callable[..., Fast], name: str) -> None:
        batch = fast()
        batch.send(1, COMMIT, Nats_TTL="1h")
        assert batch.next()["count"] == 1
        stored = batch.client.request(f"$JS.API.DIRECT.GET.{name}", b'{"seq":1}')
        assert stored.headers["Nats-TTL"] == "1h"

    def test_a_full_stream_refuses_members_with_their_position(
        self, client: Client, make_stream: Make, name: str
    ) -> None:
        make_stream(allow_batched=True, max_msgs=2, discard="new")
        batch = Fast(client, name)
        batch.many(1, 3)
        assert batch.next() == ack(0, 10)
        answer = batch.next()
        assert (answer["seq"], answer["error"]["description"]) == (3, "maximum messages exceeded")
        assert batch.next()["count"] == 2

    def test_members_without_interest_are_acked_and_not_kept(
        self, client: Client, make_stream: Make, name: str
    ) -> None:
        make_stream(allow_batched=True, retention="interest")
        batch = Fast(client, name)
        batch.send(1, START)
        batch.send(2, COMMIT)
        assert batch.next() == ack(0, 10)
        assert batch.next() == {"stream": name, "seq": 2, "batch": batch.id, "count": 2}
        assert batch.state()["messages"] == 0

    def test_members_pass_the_subject_transform(self, client: Client, make_stream: Make, name: str) -> None:
        make_stream(
            allow_batched=True,
            subject_transform={"src": f"{name}.*", "dest": f"{name}.new.$1"},
            allow_direct=True,
        )
        batch = Fast(client, name)
        batch.send(1, COMMIT)
        assert batch.next()["count"] == 1
        assert client.request(f"$JS.API.DIRECT.GET.{name}.{name}.new.a").payload == b"x"

    def test_disabling_batches_ends_an_open_batch(self, fast: Callable[..., Fast], name: str) -> None:
        batch = fast()
        batch.send(1, START)
        assert batch.next() == ack(0, 10)
        config = batch.client.api(f"STREAM.INFO.{name}")["config"]
        for allowed in (False, True):
            batch.client.api(f"STREAM.UPDATE.{name}", {**config, "allow_batched": allowed})
        batch.send(2, APPEND)
        assert batch.error() == 10208

    def test_a_purge_does_not_end_a_batch(self, fast: Callable[..., Fast], name: str) -> None:
        batch = fast()
        batch.many(1, 2)
        assert batch.next() == ack(0, 10)
        batch.client.api(f"STREAM.PURGE.{name}")
        batch.send(3, COMMIT)
        assert batch.next() == {"stream": name, "seq": 3, "batch": batch.id, "count": 3}


class TestLimits:
    def test_inflight_and_time(self, launch: Launch, connect: Callable[..., Client], name: str) -> None:
        def launched(limits: str) -> Client:
            server = launch(Setup(config=f"jetstream {{ limits {{ batch {{ {limits} }} }} }}"))
            client = connect(server)
            for stream in ("L1", "L2"):
                client.api(
                    f"STREAM.CREATE.{stream}",
                    {"name": stream, "subjects": [f"{stream}.>"], "allow_batched": True},
                )
            return client

        client = launched("max_inflight_per_stream: 2, max_inflight_total: 3")
        batches = [Fast(client, stream) for stream in ("L1", "L1", "L1", "L2", "L2")]
        answers = []
        for batch in batches:
            batch.send(1, START)
            answers.append(batch.next())
        assert [answer.get("error", {}).get("err_code") for answer in answers] == [
            None,
            None,
            10211,
            None,
            10211,
        ]
        client = launched('max_inflight_per_stream: 1, timeout: "1s"')
        sid = client.subscribe("$JS.EVENT.ADVISORY.STREAM.BATCH_ABANDONED.>")
        first, second = Fast(client, "L1"), Fast(client, "L1")
        first.send(1, START)
        assert first.next() == ack(0, 10)
        answer = {"error": None}
        while "error" in answer:  # until the id of the first one expires
            second.send(1, COMMIT)
            answer = second.next()
        first.send(2, APPEND)
        assert first.error() == 10208
        assert client.pending(sid) == []
