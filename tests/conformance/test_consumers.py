"""Consumers: where they start, what updates change, names and lists, pause, inactivity, advisories."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from conformance.client import Client
from conformance.consumer_client import MS, SECOND, Reading, ack_of, eventually, position, seqs_of

Make = Callable[..., Reading]


@pytest.fixture
def ten(reading: Make) -> Reading:
    """Messages 3 to 10: s.1 has 4, 7, 10; s.2 has 5, 8; s.0 has 3, 6, 9."""
    stream = reading()
    stream.fill(10, "s.1", "s.2", "s.0")
    stream.client.api(f"STREAM.PURGE.{stream.name}", {"seq": 3})
    return stream


class TestStart:
    @pytest.mark.parametrize(
        ("config", "seqs"),
        [
            ({}, [3, 4, 5, 6, 7, 8, 9, 10]),
            ({"deliver_policy": "last"}, [10]),
            ({"deliver_policy": "last", "filter_subject": "s.2"}, [8]),
            ({"deliver_policy": "last", "filter_subjects": ["s.2", "s.0"]}, [9]),
            ({"deliver_policy": "last_per_subject", "filter_subject": "s.>"}, [8, 9, 10]),
            ({"deliver_policy": "by_start_sequence", "opt_start_seq": 1}, [3, 4, 5, 6, 7, 8, 9, 10]),
            ({"deliver_policy": "by_start_sequence", "opt_start_seq": 9}, [9, 10]),
            ({"deliver_policy": "new"}, []),
            ({"filter_subject": "s.1"}, [4, 7, 10]),
            ({"filter_subjects": ["s.1", "s.2"]}, [4, 5, 7, 8, 10]),
            ({"filter_subject": "nowhere"}, []),
        ],
    )
    def test_each_deliver_policy_starts_at_its_message(
        self, ten: Reading, config: dict[str, Any], seqs: list[int]
    ) -> None:
        for key in ("filter_subject", "filter_subjects"):
            if key in config:
                given = config[key]
                whole = (
                    ten.subject(given) if isinstance(given, str) else [ten.subject(each) for each in given]
                )
                config = {**config, key: whole}
        info = ten.made("C", **config)
        assert info["num_pending"] == len(seqs)
        assert position(info, "delivered")[0] == 0
        assert position(info, "delivered") == position(info, "ack_floor")
        messages = ten.available("C")
        assert seqs_of(messages) == seqs
        assert [ack_of(m).pending for m in messages[:-1]] == list(range(len(seqs) - 1, -1, -1))

    def test_a_start_beyond_the_end_is_kept(self, ten: Reading) -> None:
        info = ten.made("C", deliver_policy="by_start_sequence", opt_start_seq=50)
        assert (position(info, "delivered"), info["num_pending"]) == ((0, 49), 0)

    def test_a_start_by_time(self, ten: Reading) -> None:
        stored = ten.client.api(f"STREAM.MSG.GET.{ten.name}", {"seq": 6})["message"]["time"]
        ten.made("C", deliver_policy="by_start_time", opt_start_time=stored)
        assert seqs_of(ten.available("C")) == [6, 7, 8, 9, 10]

    def test_a_start_in_the_future_is_the_next_message(self, ten: Reading) -> None:
        info = ten.made("C", deliver_policy="by_start_time", opt_start_time="2100-01-01T00:00:00Z")
        assert position(info, "delivered") == (0, 10)

    def test_last_ones_are_followed_by_what_is_new(self, ten: Reading) -> None:
        ten.made("C", deliver_policy="last_per_subject", filter_subject=ten.subject(">"))
        ten.client.store(ten.subject("s.1"))
        assert seqs_of(ten.available("C")) == [8, 9, 10, 11]

    def test_consumers_of_an_empty_stream_start_at_zero(self, reading: Make) -> None:
        stream = reading()
        for policy in ("all", "last", "new"):
            assert position(stream.made(f"C-{policy}", deliver_policy=policy), "delivered") == (0, 0)

    def test_last_without_a_match_starts_at_the_beginning(self, ten: Reading) -> None:
        info = ten.made("C", deliver_policy="last", filter_subject=ten.subject("none"))
        assert position(info, "delivered") == (0, 2)


class TestUpdate:
    def test_state_is_kept(self, ten: Reading) -> None:
        ten.made("C")
        ten.fetch("C", 2)
        info = ten.made("C", description="again", max_ack_pending=7)
        assert (position(info, "delivered"), info["num_ack_pending"]) == ((2, 4), 2)
        assert info["config"]["max_ack_pending"] == 7

    def test_a_new_filter_is_counted_from_scratch_and_keeps_the_position(self, ten: Reading) -> None:
        ten.made("C")
        ten.fetch("C", 3)
        assert ten.made("C", filter_subject=ten.subject("s.1"))["num_pending"] == 2
        assert seqs_of(ten.available("C")) == [7, 10]

    def test_create_of_the_same_is_fine_of_another_is_not(self, ten: Reading) -> None:
        ten.made("C", description="a")
        assert "error" not in ten.create("C", "create", description="a")
        assert ten.create("C", "create", description="b")["error"]["err_code"] == 10148
        assert ten.create("D", "update")["error"]["err_code"] == 10149

    def test_max_waiting_is_fixed(self, ten: Reading) -> None:
        ten.made("C")
        error = ten.create("C", max_waiting=5)["error"]
        assert (error["code"], error["err_code"], error["description"]) == (
            500,
            10012,
            "max waiting can not be updated",
        )

    def test_a_named_ephemeral_becomes_durable(self, ten: Reading) -> None:
        ten.made("C", durable_name=None)
        assert ten.made("C")["config"]["durable_name"] == "C"

    def test_more_room_delivers_at_once(self, ten: Reading) -> None:
        ten.made("C", max_ack_pending=2)
        sid = ten.ask("C", {"batch": 5, "expires": 30 * SECOND})
        assert seqs_of([ten.client.next(sid) for _ in range(2)]) == [3, 4]
        ten.made("C", max_ack_pending=5)
        assert seqs_of([ten.client.next(sid) for _ in range(3)]) == [5, 6, 7]

    def test_a_new_deliver_subject_gets_what_is_pending(self, ten: Reading) -> None:
        old, new = f"{ten.client.inbox}-old", f"{ten.client.inbox}-new"
        first = ten.client.subscribe(old)
        ten.made("C", deliver_subject=old)
        assert len([ten.client.next(first) for _ in range(8)]) == 8
        assert ten.create("C", deliver_subject=new)["error"]["err_code"] == 10013
        ten.client.unsubscribe(first)
        ten.client.flush()
        second = ten.client.subscribe(new)
        ten.client.flush()
        ten.made("C", deliver_subject=new)
        again = [ack_of(ten.client.next(second)) for _ in range(8)]
        assert [(ack.delivered, ack.seq) for ack in again] == [(2, seq) for seq in range(3, 11)]


class TestLists:
    def test_names_and_infos_are_sorted_and_paged(self, ten: Reading) -> None:
        for consumer in ("b", "a", "c"):
            ten.made(consumer)
        names = ten.client.api(f"CONSUMER.NAMES.{ten.name}")
        assert (names["total"], names["offset"], names["limit"], names["consumers"]) == (
            3,
            0,
            1024,
            ["a", "b", "c"],
        )
        assert ten.client.api(f"CONSUMER.NAMES.{ten.name}", {"offset": 2})["consumers"] == ["c"]
        assert ten.client.api(f"CONSUMER.NAMES.{ten.name}", {"offset": 9})["offset"] == 3
        infos = ten.client.api(f"CONSUMER.LIST.{ten.name}")
        assert [info["name"] for info in infos["consumers"]] == ["a", "b", "c"]
        assert infos["limit"] == 256
        assert "_nats.ver" not in infos["consumers"][0]["config"]["metadata"]
        assert ten.state()["consumer_count"] == 3

    def test_unnamed_consumers_get_a_name(self, ten: Reading) -> None:
        body = {"stream_name": ten.name, "config": {"ack_policy": "none"}}
        info = ten.client.api(f"CONSUMER.CREATE.{ten.name}", body)
        assert len(info["name"]) == 8
        assert "name" not in info["config"]
        assert info["config"]["inactive_threshold"] == 5 * SECOND

    def test_a_deleted_consumer_is_gone(self, ten: Reading) -> None:
        ten.made("C")
        assert ten.client.api(f"CONSUMER.DELETE.{ten.name}.C", b"x")["error"]["err_code"] == 10038
        assert ten.client.api(f"CONSUMER.DELETE.{ten.name}.C")["success"] is True
        assert ten.client.api(f"CONSUMER.DELETE.{ten.name}.C")["error"]["err_code"] == 10014
        assert ten.info("C")["error"]["err_code"] == 10014
        assert ten.client.request(ten.next_subject("C")).status == "503"

    def test_a_deleted_stream_takes_its_consumers(self, client: Client, name: str) -> None:
        client.api(f"STREAM.CREATE.{name}", {"name": name, "subjects": [f"{name}.>"]})
        stream = Reading(client, name)
        stream.made("C")
        sid = stream.ask("C", {"batch": 1, "expires": 30 * SECOND})
        eventually(lambda: stream.info("C")["num_waiting"] == 1)
        client.api(f"STREAM.DELETE.{name}")
        assert client.next(sid).status == "409 Consumer Deleted"
        assert client.request(stream.next_subject("C")).status == "503"

    def test_direct_consumers_are_not_seen(self, ten: Reading) -> None:
        config = {
            "name": "D",
            "direct": True,
            "ack_policy": "none",
            "deliver_subject": f"{ten.client.inbox}-d",
        }
        body = {"stream_name": ten.name, "config": config}
        assert "error" not in ten.client.api(f"CONSUMER.CREATE.{ten.name}.D", body)
        assert ten.client.api(f"CONSUMER.NAMES.{ten.name}")["consumers"] in ([], None)
        assert ten.state()["consumer_count"] == 0
        assert ten.info("D")["name"] == "D"


class TestPause:
    def test_nothing_until_it_is_over(self, ten: Reading) -> None:
        def pause(for_ns: int) -> tuple[int, dict[str, Any]]:
            until = time.time_ns() + for_ns
            text = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(until // SECOND)) + f".{until % SECOND:09}Z"
            return until, ten.client.api(f"CONSUMER.PAUSE.{ten.name}.C", {"pause_until": text})

        ten.made("C")
        _, paused = pause(3600 * SECOND)
        assert paused["paused"] is True
        assert 0 < paused["pause_remaining"] <= 3600 * SECOND
        assert ten.info("C")["paused"] is True
        assert ten.available("C")[0].status == "404 No Messages"
        until, _ = pause(400 * MS)
        assert seqs_of(ten.fetch("C", 1)) == [3]
        assert time.time_ns() >= until - MS
        assert "paused" not in ten.info("C")

    def test_resume_by_request(self, ten: Reading) -> None:
        inbox = f"{ten.client.inbox}-push"
        sid = ten.client.subscribe(inbox)
        ten.made("C", deliver_subject=inbox, pause_until="2100-01-01T00:00:00Z", idle_heartbeat=SECOND // 10)
        assert ten.client.next(sid).status == "100 Idle Heartbeat"
        answer = ten.client.api(f"CONSUMER.PAUSE.{ten.name}.C")
        assert (answer["paused"], answer["pause_until"]) == (False, "0001-01-01T00:00:00Z")
        assert eventually(lambda: ten.client.next(sid).reply)

    @pytest.mark.ours_only("A resumed push consumer delivers at once")
    def test_resume_starts_delivery(self, ten: Reading) -> None:
        inbox = f"{ten.client.inbox}-push"
        sid = ten.client.subscribe(inbox)
        ten.made("C", deliver_subject=inbox, pause_until="2100-01-01T00:00:00Z")
        ten.client.api(f"CONSUMER.PAUSE.{ten.name}.C")
        assert ack_of(ten.client.next(sid)).seq == 3

    def test_updates_do_not_touch_it(self, ten: Reading) -> None:
        ten.made("C", pause_until="2100-01-01T00:00:00Z")
        assert ten.made("C", description="x")["config"]["pause_until"] == "2100-01-01T00:00:00Z"


class TestInactivity:
    def test_a_push_consumer_nobody_listens_to(self, ten: Reading) -> None:
        started = time.monotonic()
        ten.made("C", durable_name=None, deliver_subject=f"{ten.client.inbox}-p", inactive_threshold=200 * MS)
        eventually(lambda: "error" in ten.info("C"))
        assert time.monotonic() - started >= 0.2

    def test_a_listener_keeps_it(self, ten: Reading) -> None:
        inbox = f"{ten.client.inbox}-p"
        sid = ten.client.subscribe(inbox)
        ten.made(
            "C", durable_name=None, ack_policy="none", deliver_subject=inbox, inactive_threshold=100 * MS
        )
        assert [ack_of(ten.client.next(sid)).seq for _ in range(8)] == list(range(3, 11))
        time.sleep(0.3)
        assert ten.info("C")["push_bound"] is True
        ten.client.unsubscribe(sid)
        eventually(lambda: "error" in ten.info("C"))

    def test_a_pull_consumer_nobody_asks(self, ten: Reading) -> None:
        events = ten.client.subscribe(f"$JS.EVENT.ADVISORY.CONSUMER.DELETED.{ten.name}.C")
        started = time.monotonic()
        ten.made("C", inactive_threshold=100 * MS)
        assert ten.client.next(events).json["action"] == "delete"
        assert time.monotonic() - started >= 0.2


class TestAdvisories:
    def test_creation_and_deletion(self, ten: Reading) -> None:
        events = ten.client.subscribe(f"$JS.EVENT.ADVISORY.CONSUMER.*.{ten.name}.>")
        ten.made("C")
        ten.made("C", description="an update is not announced")
        ten.client.api(f"CONSUMER.DELETE.{ten.name}.C")
        kinds = [ten.client.next(events).json for _ in range(2)]
        assert [event["action"] for event in kinds] == ["create", "delete"]
        assert {event["type"] for event in kinds} == {"io.nats.jetstream.advisory.v1.consumer_action"}
        assert kinds[0].keys() == {"type", "id", "timestamp", "stream", "consumer", "action"}

    def test_pause_and_its_end(self, ten: Reading) -> None:
        events = ten.client.subscribe(f"$JS.EVENT.ADVISORY.CONSUMER.PAUSE.{ten.name}.C")
        ten.made("C")
        ten.client.api(f"CONSUMER.PAUSE.{ten.name}.C", {"pause_until": "2100-01-01T00:00:00Z"})
        ten.client.api(f"CONSUMER.PAUSE.{ten.name}.C")
        assert [ten.client.next(events).json["paused"] for _ in range(2)] == [True, False]

    def test_refusal_termination_and_the_last_try(self, ten: Reading) -> None:
        events = ten.client.subscribe(f"$JS.EVENT.ADVISORY.CONSUMER.*.{ten.name}.C")
        ten.made("C", max_deliver=1)
        assert ten.client.next(events).json["action"] == "create"
        one, two, _ = ten.fetch("C", 3)
        ten.confirm(one, b"+TERM no good")
        event = ten.client.next(events).json
        assert (event["type"], event["stream_seq"], event["consumer_seq"], event["deliveries"], event["reason"]) == (
            "io.nats.jetstream.advisory.v1.terminated", 3, 1, 1, "no good",
        )  # fmt: skip
        ten.confirm(two, b"-NAK")
        event = ten.client.next(events).json
        assert (event["type"], event["stream_seq"]) == ("io.nats.jetstream.advisory.v1.nak", 4)
        ten.made("C", max_deliver=1, ack_wait=200 * MS)  # only now, so that the rest has enough time
        for seq in (5, 4):  # the message with the nak waits for a pull request
            event = ten.client.next(events).json
            assert (event["type"], event["stream_seq"], event["deliveries"]) == (
                "io.nats.jetstream.advisory.v1.max_deliver", seq, 1,
            )  # fmt: skip
            assert seqs_of(ten.fetch("C", 1)) == [11 - seq]

    def test_the_time_an_acknowledgement_took(self, ten: Reading) -> None:
        metrics = ten.client.subscribe(f"$JS.EVENT.METRIC.CONSUMER.ACK.{ten.name}.C")
        ten.made("C", sample_freq="100%")
        ten.confirm(ten.fetch("C", 1)[0])
        metric = ten.client.next(metrics).json
        assert metric["type"] == "io.nats.jetstream.metric.v1.consumer_ack"
        assert (metric["stream_seq"], metric["consumer_seq"], metric["deliveries"]) == (3, 1, 1)
        assert 0 < metric["ack_time"] < 30 * SECOND
