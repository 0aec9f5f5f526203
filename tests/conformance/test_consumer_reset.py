"""CONSUMER.RESET: every rule of the reset specification, with the numbers of its vectors."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from conformance.client import API
from conformance.consumer_client import MS, SECOND, Reading, ack_of, eventually, position, seqs_of

Make = Callable[..., Reading]
KIND = "io.nats.jetstream.api.v1.consumer_reset_response"


@pytest.fixture
def ten(reading: Make) -> Reading:
    """Ten messages on s.0 and s.1 in turn."""
    stream = reading()
    stream.fill(10, "s.0", "s.1")
    return stream


def summary(info: dict[str, Any]) -> tuple[object, ...]:
    """Return reset_seq, delivered, floor, acks pending, messages pending."""
    assert "error" not in info, info
    where = position(info, "delivered"), position(info, "ack_floor")
    return info["reset_seq"], *where, info["num_ack_pending"], info["num_pending"]


class TestToTheFloor:
    def test_resetting_a_fresh_consumer_changes_nothing(self, ten: Reading) -> None:
        """Vector 1."""
        created = ten.made("P")
        info = ten.reset("P")
        assert summary(info) == (1, (0, 0), (0, 0), 0, 10)
        assert info["type"] == KIND
        assert list(info)[-1] == "reset_seq"
        assert (info["config"], info["created"]) == (created["config"], created["created"])

    def test_pending_messages_are_redelivered(self, ten: Reading) -> None:
        """Vectors 2 and 3."""
        ten.made("P")
        old = ten.fetch("P", 5)
        for message in (old[0], old[1], old[3]):
            ten.confirm(message)
        assert ten.info("P")["num_ack_pending"] == 2
        info = ten.reset("P")
        assert summary(info) == (3, (0, 2), (0, 2), 0, 8)
        assert "last_active" not in info["delivered"]
        assert "last_active" not in info["ack_floor"]
        again = [ack_of(m) for m in ten.fetch("P", 5)]
        assert [(a.delivered, a.seq, a.cseq, a.pending) for a in again] == [
            (1, 3, 1, 7), (1, 4, 2, 6), (1, 5, 3, 5), (1, 6, 4, 4), (1, 7, 5, 3),
        ]  # fmt: skip
        ten.confirm(old[4])
        info = ten.info("P")
        assert (info["num_ack_pending"], position(info, "ack_floor")) == (4, (0, 2))

    def test_counts_start_again(self, ten: Reading) -> None:
        """Vector 7."""
        ten.made("P")
        for message in ten.fetch("P", 3)[:2]:
            ten.confirm(message, b"-NAK")
        assert [ack_of(m)[:2] for m in ten.fetch("P", 2)] == [(2, 1), (2, 2)]
        assert ten.info("P")["num_redelivered"] == 2
        assert ten.reset("P")["num_redelivered"] == 0
        assert [ack_of(m)[:2] for m in ten.fetch("P", 3)] == [(1, 1), (1, 2), (1, 3)]

    @pytest.mark.parametrize(("policy", "seq"), [("last", 10), ("new", 11)])
    def test_is_allowed_for_every_policy(self, ten: Reading, policy: str, seq: int) -> None:
        """Vector 11."""
        ten.made("P", deliver_policy=policy)
        assert ten.reset("P")["reset_seq"] == seq

    def test_without_acks_nothing_is_redelivered(self, ten: Reading) -> None:
        ten.made("P", ack_policy="none")
        ten.fetch("P", 4)
        assert ten.reset("P")["reset_seq"] == 5
        assert ten.reset("P", {"seq": 2})["num_pending"] == 9

    @pytest.mark.parametrize("body", [b"{}", b"null"])
    def test_bodies_that_say_nothing(self, ten: Reading, body: bytes) -> None:
        ten.made("P")
        assert ten.reset("P", body)["reset_seq"] == 1

    def test_a_last_per_subject_consumer_starts_over(self, ten: Reading) -> None:
        ten.made("P", deliver_policy="last_per_subject", filter_subject=ten.subject("s.*"))
        assert ten.reset("P")["reset_seq"] == 9
        assert seqs_of(ten.fetch("P", 2)) == [9, 10]

    @pytest.mark.ours_only("A reset redelivers pending messages of last-per-subject")
    def test_pending_last_messages_are_redelivered(self, ten: Reading) -> None:
        ten.fill(1, "s.2")
        ten.made("P", deliver_policy="last_per_subject", filter_subject=ten.subject("s.*"))
        assert seqs_of(ten.fetch("P", 1)) == [9]
        ten.reset("P")
        assert seqs_of(ten.fetch("P", 3)) == [9, 10, 11]

    @pytest.mark.ours_only("A reset of last-per-subject delivers only messages that were last")
    @pytest.mark.parametrize("acked", [0, 1, 2])
    def test_messages_that_were_never_last_stay_out(self, reading: Make, acked: int) -> None:
        """The initial set was delivered completely, and new messages after it."""
        stream = reading()
        stream.fill(5, "s.a", "s.b", "s.b", "s.c", "s.c")
        stream.made("P", deliver_policy="last_per_subject", filter_subject=stream.subject("s.*"))
        first = stream.fetch("P", 3)
        assert seqs_of(first) == [1, 3, 5]
        for message in first[:acked]:
            stream.confirm(message)
        stream.fill(2, "s.b")
        assert seqs_of(stream.fetch("P", 2)) == [6, 7]
        for _ in range(2):
            assert stream.reset("P")["num_pending"] == 5 - acked
            assert seqs_of(stream.fetch("P", 5 - acked)) == [1, 3, 5, 6, 7][acked:]

    def test_messages_given_up_are_behind_the_floor(self, ten: Reading) -> None:
        ten.made("P", max_deliver=1, ack_wait=100 * MS)
        ten.fetch("P", 2)
        eventually(lambda: ten.info("P")["num_ack_pending"] == 0)
        assert ten.reset("P")["reset_seq"] == 3
        assert ten.reset("P", {"seq": 1})["num_redelivered"] == 0
        assert seqs_of(ten.fetch("P", 2)) == [1, 2]


class TestToASequence:
    def test_forward_and_back(self, ten: Reading) -> None:
        """Vectors 4 and 5."""
        ten.made("P")
        old = ten.fetch("P", 5)
        assert summary(ten.reset("P", {"seq": 8})) == (8, (0, 7), (0, 7), 0, 3)
        assert ten.confirm(old[2]).payload == b""
        assert ten.info("P")["num_ack_pending"] == 0
        assert summary(ten.reset("P", {"seq": 2})) == (2, (0, 1), (0, 1), 0, 9)
        assert ten.silent(old[2].reply, b"+ACK")

    def test_waiting_requests_stay(self, ten: Reading) -> None:
        """Vector 6."""
        ten.made("P")
        for expires_ms in (800, 4_000, 12_000):  # longer if it ended before the reset
            ten.reset("P", {"seq": 11})
            sid = ten.ask("P", {"batch": 20, "expires": expires_ms * MS})
            eventually(lambda sid=sid: ten.info("P")["num_waiting"] == 1 or ten.client.pending(sid))
            info = ten.reset("P", {"seq": 9})
            if info["num_waiting"]:
                break
        assert (info["num_waiting"], info["num_pending"]) == (1, 2)
        assert [ack_of(ten.client.next(sid))[:3] for _ in range(2)] == [(1, 9, 1), (1, 10, 2)]
        ended = ten.client.next(sid)
        assert (ended.status, ended.headers["Nats-Pending-Messages"]) == ("408 Request Timeout", "18")

    def test_a_reset_beyond_the_end_waits_for_that_sequence(self, ten: Reading) -> None:
        """Vector 8."""
        ten.made("P")
        assert summary(ten.reset("P", {"seq": 13})) == (13, (0, 12), (0, 12), 0, 0)
        ten.fill(5)
        assert ten.info("P")["num_pending"] == 3
        assert seqs_of(ten.fetch("P", 3)) == [13, 14, 15]
        assert ten.reset("P", {"seq": 2**64 - 1})["reset_seq"] == 2**64 - 1

    def test_not_below_the_start_sequence(self, ten: Reading) -> None:
        """Vector 9."""
        ten.made("P", deliver_policy="by_start_sequence", opt_start_seq=5)
        refused = ten.reset("P", {"seq": 4})
        assert refused["error"] == {
            "code": 400,
            "err_code": 10204,
            "description": "invalid reset: below start seq",
        }
        assert refused["reset_seq"] == 0
        for seq in (5, 6, 20):
            assert ten.reset("P", {"seq": seq})["reset_seq"] == seq
        ten.reset("P", {"seq": 5})
        assert ten.reset("P")["reset_seq"] == 5

    def test_not_below_the_start_time(self, ten: Reading) -> None:
        """Vector 10."""
        stored = ten.client.api(f"STREAM.MSG.GET.{ten.name}", {"seq": 5})["message"]["time"]
        ten.made("P", deliver_policy="by_start_time", opt_start_time=stored)
        for seq in (1, 4):
            assert ten.reset("P", {"seq": seq})["error"]["description"] == "invalid reset: below start time"
        for seq in (5, 6, 20):
            assert ten.reset("P", {"seq": seq})["reset_seq"] == seq
        ten.made("F", deliver_policy="by_start_time", opt_start_time="2100-01-01T00:00:00Z")
        assert "error" in ten.reset("F", {"seq": 10})
        assert ten.reset("F", {"seq": 11})["reset_seq"] == 11

    @pytest.mark.ours_only("A start time is compared with the next stored message")
    def test_deleted_sequences_before_the_start_time(self, ten: Reading) -> None:
        stored = ten.client.api(f"STREAM.MSG.GET.{ten.name}", {"seq": 5})["message"]["time"]
        for seq in (3, 4):
            ten.client.api(f"STREAM.MSG.DELETE.{ten.name}", {"seq": seq})
        ten.made("P", deliver_policy="by_start_time", opt_start_time=stored)
        assert ten.reset("P", {"seq": 3})["reset_seq"] == 3
        assert "error" in ten.reset("P", {"seq": 2})

    @pytest.mark.parametrize("policy", ["last", "new", "last_per_subject"])
    def test_never_without_a_start(self, ten: Reading, policy: str) -> None:
        """Vector 11."""
        ten.made("P", deliver_policy=policy, filter_subject=ten.subject(">"))
        assert ten.reset("P", {"seq": 5})["error"]["description"] == "invalid reset: not allowed"

    def test_a_reset_to_a_deleted_sequence_delivers_the_next(self, ten: Reading) -> None:
        """Vector 12."""
        ten.made("P")
        ten.client.api(f"STREAM.MSG.DELETE.{ten.name}", {"seq": 5})
        info = ten.reset("P", {"seq": 5})
        assert (info["reset_seq"], info["num_pending"]) == (5, 5)
        assert seqs_of(ten.fetch("P", 1)) == [6]

    def test_a_reset_before_the_first_delivers_the_first(self, ten: Reading) -> None:
        """Vector 13."""
        ten.client.api(f"STREAM.PURGE.{ten.name}", {"seq": 8})
        ten.made("P")
        assert summary(ten.reset("P", {"seq": 2})) == (2, (0, 1), (0, 1), 0, 3)
        assert seqs_of(ten.fetch("P", 1)) == [8]

    def test_a_reset_with_a_filter_delivers_the_next_match(self, reading: Make) -> None:
        """Vector 15."""
        stream = reading()
        stream.fill(10, *["x", "y", "x", "x", "x", "x", "x", "y", "x", "x"])
        stream.made("P", filter_subject=stream.subject("y"))
        assert stream.reset("P", {"seq": 3})["num_pending"] == 1
        assert seqs_of(stream.fetch("P", 1)) == [8]

    @pytest.mark.ours_only("A reset to sequence zero is rejected")
    def test_a_reset_to_zero_is_refused(self, ten: Reading) -> None:
        """Vector 20."""
        ten.made("P")
        refused = ten.reset("P", {"seq": 0})
        assert refused["error"] == {
            "code": 400, "err_code": 10204, "description": "invalid reset: sequence must be > 0",
        }  # fmt: skip


class TestPush:
    def test_everything_comes_again_at_once(self, ten: Reading) -> None:
        """Vector 14."""
        inbox = f"{ten.client.inbox}-push"
        sid = ten.client.subscribe(inbox)
        ten.made("P", deliver_subject=inbox)
        messages = [ten.client.next(sid) for _ in range(10)]
        ten.confirm(messages[0])
        ten.reset("P")
        assert [ack_of(ten.client.next(sid))[:3] for _ in range(9)] == [
            (1, seq, seq - 1) for seq in range(2, 11)
        ]

    def test_heartbeats_speak_of_the_new_position(self, ten: Reading) -> None:
        inbox = f"{ten.client.inbox}-push"
        sid = ten.client.subscribe(inbox)
        ten.made("P", deliver_subject=inbox, idle_heartbeat=100 * MS)
        for _ in range(10):
            ten.client.next(sid)
        ten.reset("P", {"seq": 30})
        while (beat := ten.client.next(sid)).headers.get("Nats-Last-Consumer") != "0":
            pass
        assert beat.headers["Nats-Last-Stream"] == "29"

    def test_a_paused_consumer_stays_paused(self, ten: Reading) -> None:
        inbox = f"{ten.client.inbox}-push"
        sid = ten.client.subscribe(inbox)
        ten.made("P", deliver_subject=inbox, pause_until="2100-01-01T00:00:00Z")
        assert ten.reset("P")["paused"] is True
        time.sleep(0.1)
        assert not ten.client.pending(sid)

    def test_the_flow_control_window_stays(self, ten: Reading) -> None:
        inbox = f"{ten.client.inbox}-push"
        sid = ten.client.subscribe(inbox)
        ten.made("A", ack_policy="flow_control", deliver_subject=inbox, max_ack_pending=3)
        asked = [ten.client.next(sid) for _ in range(4)][-1].reply
        ten.reset("A")
        again = ten.beyond_heartbeats(sid, 3)
        assert [ack_of(m)[:3] for m in again] == [(1, 1, 1), (1, 2, 2), (1, 3, 3)]
        assert ten.client.next(sid).headers["Nats-Consumer-Stalled"] == asked

    def test_an_ordered_consumer_sees_its_sequence_go_back(self, ten: Reading) -> None:
        inbox = f"{ten.client.inbox}-push"
        sid = ten.client.subscribe(inbox)
        info = ten.made("O", durable_name=None, ack_policy="none", deliver_subject=inbox, flow_control=True,
                        idle_heartbeat=30 * SECOND, max_deliver=1, mem_storage=True)  # fmt: skip
        for _ in range(10):
            ten.client.next(sid)
        ten.reset(info["name"], {"seq": 4})
        assert ack_of(ten.client.next(sid))[:3] == (1, 4, 1)


class TestRetention:
    def test_an_interest_stream_lets_go_of_what_was_skipped(self, reading: Make) -> None:
        stream = reading(retention="interest")
        stream.made("a")
        stream.made("b")
        stream.fill(10)
        for message in stream.fetch("a", 10):
            stream.confirm(message)
        assert stream.state()["messages"] == 10
        stream.reset("b", {"seq": 6})
        eventually(lambda: stream.state()["messages"] == 5)

    def test_a_work_queue_keeps_what_was_skipped(self, reading: Make) -> None:
        stream = reading(retention="workqueue")
        stream.made("a")
        stream.fill(10)
        for message in stream.fetch("a", 2):
            stream.confirm(message)
        stream.reset("a", {"seq": 6})
        eventually(lambda: stream.state()["messages"] == 8)
        stream.reset("a", {"seq": 1})
        assert seqs_of(stream.fetch("a", 8)) == list(range(3, 11))


class TestRequests:
    @pytest.mark.parametrize("body", [b"garbage", b" ", b"[]", b'{"seq":"5"}', b'{"seq":-1}'])
    def test_invalid_reset_requests_change_nothing(self, ten: Reading, body: bytes) -> None:
        """Vector 16."""
        ten.made("P")
        ten.fetch("P", 2)
        refused = ten.reset("P", body)
        assert (refused["type"], refused["error"]["err_code"], refused["reset_seq"]) == (KIND, 10025, 0)
        assert refused["error"]["description"].startswith("invalid JSON: ")
        assert ten.info("P")["num_ack_pending"] == 2

    def test_unknown_fields_are_ignored(self, ten: Reading) -> None:
        ten.made("P")
        assert ten.reset("P", {"seq": 5, "foo": 1})["reset_seq"] == 5

    def test_a_level_too_high(self, ten: Reading) -> None:
        """Vector 17."""
        ten.made("P")
        assert ten.reset("P", None, {"Nats-Required-Api-Level": "9"})["error"]["err_code"] == 10185

    def test_the_identity_of_the_stream(self, ten: Reading) -> None:
        """Vector 18."""
        ten.made("P")
        answer = ten.client.request(f"{API}CONSUMER.RESET.{ten.name}.P", b"", {"Nats-Stream-Identity": "abc"})
        assert answer.json["reset_seq"] == 1
        assert len(answer.headers["Nats-Stream-Identity"]) == 8
        plain = ten.client.request(f"{API}CONSUMER.RESET.{ten.name}.P")
        assert plain.header == b""

    def test_without_a_reply_nothing_happens(self, ten: Reading) -> None:
        ten.made("P")
        ten.fetch("P", 2)
        ten.client.publish(f"{API}CONSUMER.RESET.{ten.name}.P")
        ten.client.flush()
        assert ten.info("P")["num_ack_pending"] == 2

    @pytest.mark.ours_only("A reset of a missing consumer gets a reply")
    def test_resetting_a_missing_consumer_is_refused(self, ten: Reading) -> None:
        """Vector 19."""
        assert ten.reset("NOPE")["error"]["err_code"] == 10014
        assert ten.client.api("CONSUMER.RESET.NOSTREAM.P")["error"]["err_code"] == 10059

    def test_a_reset_sends_no_advisory(self, ten: Reading) -> None:
        events = ten.client.subscribe("$JS.EVENT.ADVISORY.>")
        ten.made("P")
        ten.client.next(events)  # of its creation
        ten.reset("P")
        time.sleep(0.1)
        assert not [e for e in ten.client.pending(events) if "RESET" in e.payload.decode()]
