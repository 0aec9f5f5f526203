"""Atomic batches at protocol level: the vectors of the specification, on both servers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from conformance.client import Client
from conformance.servers import Server, Setup
from headrace.reader.stream_admin import parse_time_ns

Make = Callable[..., dict[str, Any]]
OK = b""


class Batch:
    """Sends members of batches; `publish` returns the reply: empty, an ack or an error."""

    def __init__(self, client: Client, stream: str) -> None:
        self.client = client
        self.stream = stream

    def send(
        self, batch: str, position: object, commit: str | None = None, subject: str = "a", **headers: str
    ) -> Any:
        fields = {"Nats-Batch-Id": batch, "Nats-Batch-Sequence": str(position)}
        if commit is not None:
            fields["Nats-Batch-Commit"] = commit
        fields |= {key.replace("_", "-"): value for key, value in headers.items()}
        return self.publish(fields, subject)

    def publish(self, headers: dict[str, str], subject: str = "a", payload: bytes = b"x") -> Any:
        answer = self.client.request(f"{self.stream}.{subject}", payload, headers)
        assert not answer.header
        return answer.json if answer.payload else OK

    def state(self) -> dict[str, Any]:
        found: dict[str, Any] = self.client.api(f"STREAM.INFO.{self.stream}")["state"]
        return found


def code(answer: Any) -> int:
    assert answer != OK, "staged"
    assert "error" in answer, answer
    found: int = answer["error"]["err_code"]
    return found


def text(answer: Any) -> str:
    found: str = answer["error"]["description"]
    return found


@pytest.fixture
def batch(client: Client, make_stream: Make, name: str) -> Batch:
    make_stream(allow_atomic=True, allow_msg_ttl=True, allow_rollup_hdrs=True, allow_direct=True)
    return Batch(client, name)


@pytest.fixture
def advisories(client: Client, name: str) -> Iterator[Callable[..., None]]:
    """Check the reasons of batches that were abandoned since the last call: `advisories("incomplete")`."""
    sid = client.subscribe(f"$JS.EVENT.ADVISORY.STREAM.BATCH_ABANDONED.{name}")

    def expect(*reasons: str) -> None:
        assert [client.next(sid).json["reason"] for _ in reasons] == list(reasons)
        client.flush()
        assert client.pending(sid) == []

    yield expect
    client.unsubscribe(sid)


class TestCommit:
    def test_three_members_are_stored_at_the_commit(self, batch: Batch, name: str) -> None:
        assert batch.send("u1", 1) == OK
        assert batch.send("u1", 2) == OK
        assert batch.state()["messages"] == 0
        assert batch.send("u1", 3, "1") == {"stream": name, "seq": 3, "batch": "u1", "count": 3}
        assert batch.state()["messages"] == 3

    def test_a_batch_may_have_one_member(self, batch: Batch, name: str) -> None:
        assert batch.send("u2", 1, "1") == {"stream": name, "seq": 1, "batch": "u2", "count": 1}

    def test_end_of_batch(self, batch: Batch, name: str) -> None:
        batch.send("u4", 1)
        batch.send("u4", 2)
        assert batch.send("u4", 3, "eob") == {"stream": name, "seq": 2, "batch": "u4", "count": 2}
        last = batch.client.request(f"$JS.API.DIRECT.GET.{name}", b'{"seq":2}')
        assert last.headers["Nats-Batch-Commit"] == "1"

    def test_members_are_contiguous(self, batch: Batch, name: str) -> None:
        batch.send("u", 1)
        assert batch.client.store(f"{name}.other")["seq"] == 1
        assert batch.send("u", 2, "1")["seq"] == 3

    def test_an_id_can_be_used_again(self, batch: Batch) -> None:
        assert batch.send("u", 1, "1")["seq"] == 1
        assert batch.send("u", 1) == OK
        assert batch.send("u", 2, "1")["seq"] == 3

    def test_members_need_no_reply_subject(self, batch: Batch, name: str) -> None:
        for position in (1, 2):
            headers = {"Nats-Batch-Id": "q", "Nats-Batch-Sequence": str(position)}
            batch.client.publish(f"{name}.a", b"x", headers)
        assert batch.send("q", 3, "1")["count"] == 3

    def test_an_empty_id_is_an_ordinary_publish(self, batch: Batch, name: str) -> None:
        assert batch.publish({"Nats-Batch-Id": "", "Nats-Batch-Sequence": "1"}) == {"stream": name, "seq": 1}

    @pytest.mark.ours_only("`Nats-Batch-ID` and `Nats-Batch-Seq` are accepted")
    def test_alternative_header_names_are_understood(self, batch: Batch, name: str) -> None:
        assert batch.publish({"Nats-Batch-ID": "s", "Nats-Batch-Seq": "1"}) == OK
        answer = batch.publish({"Nats-Batch-ID": "s", "Nats-Batch-Seq": "2", "Nats-Batch-Commit": "1"})
        assert answer == {"stream": name, "seq": 2, "batch": "s", "count": 2}


class TestOrder:
    def test_a_stream_without_allow_atomic_refuses_batches(
        self, client: Client, make_stream: Make, name: str
    ) -> None:
        make_stream()
        batch = Batch(client, name)
        assert code(batch.send("d", 1)) == 10174
        assert code(batch.send("d" * 65, 1)) == 10174
        assert code(batch.publish({"Nats-Batch-Id": "d"})) == 10174

    @pytest.mark.parametrize("position", ["", "abc", "-1", "1.0", str(2**64)])
    def test_an_invalid_batch_sequence_is_refused(self, batch: Batch, position: str) -> None:
        assert code(batch.send("g4", position)) == 10175

    def test_a_batch_sequence_may_have_a_leading_zero(self, batch: Batch) -> None:
        assert batch.send("z", "01") == OK

    def test_a_batch_id_has_at_most_64_characters(self, batch: Batch) -> None:
        assert batch.send("i" * 64, 1, "1")["count"] == 1
        assert code(batch.send("i" * 65, 1, "1")) == 10179

    @pytest.mark.parametrize(
        ("position", "commit", "expected"),
        [(2, None, 10176), (1001, None, 10199), (1001, "eob", 10176), (1002, "eob", 10199), (0, None, 10176)],
    )
    def test_a_member_of_an_unknown_batch_is_refused(
        self, batch: Batch, position: int, commit: str | None, expected: int
    ) -> None:
        assert code(batch.send("nope", position, commit)) == expected

    def test_a_gap_in_batch_sequences_abandons_the_batch(
        self, batch: Batch, advisories: Callable[..., None]
    ) -> None:
        assert batch.send("g1", 1) == OK
        assert code(batch.send("g1", 3)) == 10176
        advisories("incomplete")
        assert code(batch.send("g1", 2)) == 10176

    def test_a_repeated_batch_sequence_abandons_the_batch(
        self, batch: Batch, advisories: Callable[..., None]
    ) -> None:
        batch.send("g2", 1)
        assert code(batch.send("g2", 1)) == 10176
        advisories("incomplete")

    def test_a_batch_of_only_an_end_marker_is_refused(
        self, batch: Batch, advisories: Callable[..., None]
    ) -> None:
        assert code(batch.send("u5", 1, "eob")) == 10176
        advisories("incomplete")

    @pytest.mark.parametrize("commit", ["EOB", "0", "true", "01", "1 "])
    def test_an_invalid_commit_value_abandons_the_batch(
        self, batch: Batch, advisories: Callable[..., None], commit: str
    ) -> None:
        batch.send("u6", 1)
        assert code(batch.send("u6", 2, commit)) == 10200
        advisories()
        assert code(batch.send("u6", 3, "1")) == 10176

    def test_too_large_a_member_can_be_sent_again(self, client: Client, make_stream: Make, name: str) -> None:
        make_stream(allow_atomic=True, max_msg_size=200)
        batch = Batch(client, name)
        batch.send("m", 1)
        headers = {"Nats-Batch-Id": "m", "Nats-Batch-Sequence": "2"}
        assert code(batch.publish(headers, payload=b"x" * 300)) == 10054
        assert batch.send("m", 2) == OK
        assert batch.send("m", 3, "1")["count"] == 3

    def test_a_newer_required_api_level_is_refused(
        self, batch: Batch, advisories: Callable[..., None], name: str
    ) -> None:
        assert code(batch.send("l", 1, Nats_Required_Api_Level="99")) == 10185
        advisories("unsupported")
        batch.send("k", 1, "1", Nats_Required_Api_Level="2")
        stored = batch.client.api(f"STREAM.MSG.GET.{name}", {"seq": 1})["message"]["hdrs"]
        assert "UmVxdWlyZWQ" not in stored  # "Required"

    def test_a_batch_has_at_most_a_thousand_members(
        self, batch: Batch, advisories: Callable[..., None], name: str
    ) -> None:
        def stage(batch_id: str, count: int) -> None:
            for position in range(1, count + 1):
                headers = {"Nats-Batch-Id": batch_id, "Nats-Batch-Sequence": str(position)}
                batch.client.publish(f"{name}.a", b"", headers)

        stage("t1", 1000)
        answer = batch.send("t1", 1001, "1")
        assert code(answer) == 10199
        assert text(answer) == "atomic publish batch is too large: 1000"
        advisories("large")
        stage("t2", 1000)
        assert batch.send("t2", 1001, "eob")["count"] == 1000
        stage("t3", 999)
        assert batch.send("t3", 1000, "1")["count"] == 1000

    def test_too_many_open(self, batch: Batch) -> None:
        for number in range(50):
            assert batch.send(f"o{number}", 1) == OK
        assert code(batch.send("one-more", 1)) == 10210
        assert code(batch.send("one-more", 1, "1")) == 10210
        assert batch.send("o0", 2, "1")["count"] == 2
        assert batch.send("one-more", 1, "1")["count"] == 1

    @pytest.mark.ours_only("An unknown batch causes an advisory")
    def test_an_unknown_batch_publishes_an_advisory(
        self, batch: Batch, advisories: Callable[..., None]
    ) -> None:
        batch.send("nope", 2)
        advisories("unknown")


class TestChecks:
    """Checks are made at the commit, against the stream before the batch, for all members or none."""

    def test_expected_last_sequence(self, batch: Batch, name: str) -> None:
        for _ in range(2):
            batch.client.store(f"{name}.a")
        batch.send("e", 1, Nats_Expected_Last_Sequence="2")
        assert batch.send("e", 2, "1")["seq"] == 4
        batch.send("f", 1, Nats_Expected_Last_Sequence="2")
        refused = batch.send("f", 2, "1")
        assert text(refused) == "wrong last sequence: 4"
        assert batch.state()["last_seq"] == 4

    def test_a_publish_in_between(self, batch: Batch, name: str) -> None:
        batch.send("e", 1, Nats_Expected_Last_Sequence="0")
        batch.client.store(f"{name}.other")
        assert text(batch.send("e", 2, "1")) == "wrong last sequence: 1"

    def test_expected_subject_sequences(self, batch: Batch, name: str) -> None:
        for subject in ("a", "b"):
            batch.client.store(f"{name}.{subject}")
        batch.send("s", 1, subject="a", Nats_Expected_Last_Subject_Sequence="1")
        assert batch.send("s", 2, "1", subject="b", Nats_Expected_Last_Subject_Sequence="2")["seq"] == 4
        batch.send("t", 1, subject="a", Nats_Expected_Last_Subject_Sequence="3")
        assert text(batch.send("t", 2, "1", subject="b", Nats_Expected_Last_Subject_Sequence="2")) == (
            "wrong last sequence: 4"
        )
        assert batch.state()["last_seq"] == 4

    @pytest.mark.ours_only("Expectations of every batch member refer to the stream before the batch")
    def test_every_member_is_compared_with_the_stream_before(self, batch: Batch, name: str) -> None:
        batch.client.store(f"{name}.a")
        for position in (1, 2):
            batch.send(
                "p", position, Nats_Expected_Last_Sequence="1", Nats_Expected_Last_Subject_Sequence="1"
            )
        assert batch.send("p", 3, "1", Nats_Expected_Last_Sequence="1")["count"] == 3
        batch.send("q", 1)
        assert text(batch.send("q", 2, "1", Nats_Expected_Last_Sequence="1")) == "wrong last sequence: 4"

    def test_duplicate_message_ids_reject_the_batch(self, batch: Batch, name: str) -> None:
        batch.client.store(f"{name}.a", "x", {"Nats-Msg-Id": "A"})
        batch.send("i", 1, Nats_Msg_Id="D")
        assert code(batch.send("i", 2, "1", Nats_Msg_Id="A")) == 10201
        batch.send("j", 1, Nats_Msg_Id="C")
        assert code(batch.send("j", 2, "1", Nats_Msg_Id="C")) == 10201
        assert batch.send("k", 1, "1", Nats_Msg_Id="D")["count"] == 1

    @pytest.mark.parametrize("with_ids", [{1}, {3}, {2, 4}, {1, 2, 3, 4}])
    def test_members_with_and_without_ids_keep_their_order(
        self, batch: Batch, name: str, with_ids: set[int]
    ) -> None:
        def send(batch_id: str) -> Any:
            for position in range(1, 5):
                headers = {"Nats_Msg_Id": f"id-{position}"} if position in with_ids else {}
                commit = "1" if position == 4 else None
                answer = batch.send(batch_id, position, commit, subject=f"s{position}", **headers)
            return answer

        first = send("u1")
        assert (first["seq"], first["count"]) == (4, 4)
        found = [batch.client.api(f"STREAM.MSG.GET.{name}", {"seq": seq})["message"] for seq in range(1, 5)]
        assert [each["subject"] for each in found] == [f"{name}.s{position}" for position in range(1, 5)]
        times = [parse_time_ns(each["time"]) for each in found]
        assert times == sorted(times)
        assert code(send("u2")) == 10201
        last_id = max(with_ids)
        again = batch.client.store(f"{name}.a", "x", {"Nats-Msg-Id": f"id-{last_id}"})
        assert (again["seq"], again.get("duplicate")) == (last_id, True)
        assert batch.state()["last_seq"] == 4

    @pytest.mark.parametrize(
        ("header", "value", "expected"),
        [
            ("Nats_TTL", "bad", 10165),
            ("Nats_Expected_Stream", "Z", 10060),
            ("Nats_Expected_Last_Msg_Id", "z", 10177),
            ("Nats_Rollup", "foo", 10111),
            ("Nats_Stream_Source", "x", 10227),
            ("Nats_Incr", "1", 10168),
        ],
    )
    def test_headers_of_an_early_member_are_judged_at_commit(
        self, batch: Batch, header: str, value: str, expected: int
    ) -> None:
        assert batch.send("h", 1, **{header: value}) == OK
        assert code(batch.send("h", 2, "1")) == expected
        assert batch.state()["messages"] == 0

    @pytest.mark.parametrize("value", ["5", "bad", "0"])
    def test_a_ttl_where_none_is_allowed(
        self, client: Client, make_stream: Make, name: str, value: str
    ) -> None:
        make_stream(allow_atomic=True)
        assert code(Batch(client, name).send("t", 1, "1", Nats_TTL=value)) == 10166

    def test_a_rollup_must_come_first_in_its_batch(self, batch: Batch, name: str) -> None:
        batch.client.store(f"{name}.a")
        batch.send("r", 1, subject="a", Nats_Rollup="sub")
        assert batch.send("r", 2, "1", subject="b")["count"] == 2
        assert batch.state()["messages"] == 2
        batch.send("s", 1, subject="a")
        assert text(batch.send("s", 2, "1", subject="a", Nats_Rollup="sub")) == "batch rollup sub invalid"
        batch.send("t", 1, subject="a")
        assert text(batch.send("t", 2, "1", subject="c", Nats_Rollup="all")) == "batch rollup all invalid"
        assert batch.send("u", 1, "1", subject="c", Nats_Rollup="all")["count"] == 1
        assert batch.state()["messages"] == 1

    def test_a_batch_beyond_max_msgs_is_refused_as_a_whole(
        self, client: Client, make_stream: Make, name: str
    ) -> None:
        make_stream(allow_atomic=True, discard="new", max_msgs=3)
        for _ in range(2):
            client.store(f"{name}.a")
        batch = Batch(client, name)
        batch.send("n", 1)
        assert text(batch.send("n", 2, "1")) == "maximum messages exceeded"
        assert batch.state()["messages"] == 2

    def test_discard_old_removes_the_first_members_of_a_large_batch(
        self, client: Client, make_stream: Make, name: str
    ) -> None:
        make_stream(allow_atomic=True, max_msgs=2)
        batch = Batch(client, name)
        for position in (1, 2, 3):
            batch.send("n", position)
        assert batch.send("n", 4, "1")["count"] == 4
        assert (batch.state()["messages"], batch.state()["first_seq"]) == (2, 3)


class TestLife:
    def test_it_survives_a_purge_and_ends_with_the_option(self, batch: Batch, name: str) -> None:
        batch.send("p", 1)
        batch.client.api(f"STREAM.PURGE.{name}")
        assert batch.send("p", 2, "1")["count"] == 2
        batch.send("q", 1)
        base = {"name": name, "subjects": [f"{name}.>"], "allow_msg_ttl": True, "allow_rollup_hdrs": True}
        batch.client.api(f"STREAM.UPDATE.{name}", base)
        batch.client.api(f"STREAM.UPDATE.{name}", {**base, "allow_atomic": True})
        assert code(batch.send("q", 2, "1")) == 10176

    def test_a_mirror_has_none(self, client: Client, name: str) -> None:
        answer = client.api(
            f"STREAM.CREATE.{name}", {"name": name, "mirror": {"name": "O"}, "allow_atomic": True}
        )
        assert answer["error"]["err_code"] == 10198

    @pytest.mark.parametrize("crash", [False, True])
    def test_a_restart_forgets_it(self, fresh_server: Server, crash: bool) -> None:
        with Client(fresh_server.port) as client:
            client.api("STREAM.CREATE.R", {"name": "R", "subjects": ["R.>"], "allow_atomic": True})
            batch = Batch(client, "R")
            batch.send("r", 1)
        fresh_server.restart(crash=crash)
        with Client(fresh_server.port) as client:
            batch = Batch(client, "R")
            assert batch.state()["messages"] == 0
            assert code(batch.send("r", 2, "1")) == 10176
            assert batch.send("r", 1, "1")["count"] == 1

    @pytest.mark.slow
    def test_limits_are_settings(self, launch: Callable[[Setup], Server]) -> None:
        def launched(limits: str) -> Server:
            return launch(Setup(config=f"jetstream {{ limits {{ batch {{ {limits} }} }} }}"))

        config = {"name": "R", "subjects": ["R.>"], "allow_atomic": True}
        with Client(launched("max_inflight_per_stream: 2, max_msgs: 3").port) as client:
            client.api("STREAM.CREATE.R", config)
            batch = Batch(client, "R")
            for position in (1, 2, 3):
                batch.send("d", position)
            assert text(batch.send("d", 4, "1")) == "atomic publish batch is too large: 3"
            batch.send("a", 1)
            batch.send("b", 1)
            assert code(batch.send("c", 1)) == 10210
        with Client(launched("timeout: 1s").port) as client:
            client.api("STREAM.CREATE.R", config)
            sid = client.subscribe("$JS.EVENT.ADVISORY.STREAM.BATCH_ABANDONED.R")
            batch = Batch(client, "R")
            batch.send("a", 1)
            batch.send("b", 1)
            assert {client.next(sid).json["reason"] for _ in range(2)} == {"timeout"}
            assert code(batch.send("a", 2, "1")) == 10176
