"""Schedules in virtual time fire on time and once, even if the server crashes meanwhile."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from headrace.jetstream_api import times
from headrace.protocol import headers
from headrace.sim import OUTCOMES, SimClock, SimDisk
from headrace.sim.disk.crash_outcomes import Outcome
from headrace.sim.sim_broker import SimBroker

from .store_sizes import SIZES

SECOND = 1_000_000_000
CONFIG = {"name": "P", "subjects": ["p.>"], "allow_msg_schedules": True, "allow_msg_ttl": True}


def start(disk: SimDisk | None = None, clock: SimClock | None = None, **config: Any) -> SimBroker:
    broker = SimBroker(disk or SimDisk(), SIZES[0], clock)
    broker.start()
    broker.run_until_idle()
    if "P" not in broker.jetstream.streams:
        answer = broker.call("STREAM.CREATE.P", **CONFIG, **config)
        assert "error" not in answer, answer
    return broker


def again(broker: SimBroker) -> SimBroker:
    """Kill the server and start it again."""
    return start(broker.disk.kill(), broker.clock)


def plan(
    broker: SimBroker, pattern: str, subject: str = "p.plan", target: str = "p.out", **fields: str
) -> None:
    number = broker.publish(subject, b"x", Nats_Schedule=pattern, Nats_Schedule_Target=target, **fields)
    broker.run_until_idle()
    assert "error" not in broker.replies[number].json, broker.replies[number].json


def at(broker: SimBroker, seconds: float) -> str:
    return "@at " + times.format_time(broker.clock.now_ns() + int(seconds * SECOND))


def fired(broker: SimBroker, subject: bytes = b"p.out") -> list[int]:
    """Return when the copies on a subject were published."""
    log = broker.jetstream.streams["P"].log
    return [
        log.get_time_ns(seq)
        for seq in log.find_seqs(log.get_filter((subject,)), log.first_seq, log.last_seq).tolist()
    ]


def count(broker: SimBroker, subject: bytes) -> int:
    return broker.jetstream.streams["P"].log.get_subject_count(subject)


def test_once_and_on_time() -> None:
    broker = start()
    due_ns = broker.clock.now_ns() + 5 * SECOND
    plan(broker, at(broker, 5))
    broker.advance(5 * SECOND - 1_000)
    assert fired(broker) == []
    broker.advance(SECOND)
    assert len(fired(broker)) == 1
    assert 0 <= fired(broker)[0] - due_ns < SECOND // 4
    assert count(broker, b"p.plan") == 0
    broker.advance(3600 * SECOND)
    assert len(fired(broker)) == 1


def test_every_so_often() -> None:
    broker = start()
    plan(broker, "@every 10s")
    broker.advance(61 * SECOND)
    assert len(fired(broker)) == 6
    gaps = {round((b - a) / SECOND) for a, b in zip(fired(broker), fired(broker)[1:], strict=False)}
    assert gaps == {10}
    assert count(broker, b"p.plan") == 1


def test_a_cron_schedule_fires_daily_in_its_time_zone() -> None:
    broker = start()
    plan(broker, "0 0 3 * * *", Nats_Schedule_Time_Zone="Europe/Vienna")
    broker.advance(3 * 86_400 * SECOND)
    shown = [times.format_time(moment)[11:19] for moment in fired(broker)]
    assert len(shown) == 3
    assert set(shown) <= {"01:00:00", "02:00:00"}


def test_it_survives_a_restart() -> None:
    broker = start()
    plan(broker, at(broker, 60))
    plan(broker, "@every 25s", "p.often", "p.tick")
    broker.advance(30 * SECOND)
    broker = again(broker)
    assert len(fired(broker, b"p.tick")) == 1
    broker.advance(31 * SECOND)
    assert len(fired(broker)) == 1
    assert len(fired(broker, b"p.tick")) == 2
    broker = again(again(broker))
    broker.advance(15 * SECOND)
    assert len(fired(broker, b"p.tick")) == 3
    assert len(fired(broker)) == 1


def test_what_was_missed_comes_once() -> None:
    broker = start()
    plan(broker, at(broker, 5))
    plan(broker, "@every 10s", "p.often", "p.tick")
    broker.clock.advance(3600 * SECOND)  # it was down meanwhile
    broker = again(broker)
    broker.advance(SECOND // 2)
    assert (len(fired(broker)), len(fired(broker, b"p.tick"))) == (1, 1)
    broker.advance(30 * SECOND)
    assert (len(fired(broker)), len(fired(broker, b"p.tick"))) == (1, 4)


def test_a_replaced_one_is_forgotten() -> None:
    broker = start()
    plan(broker, at(broker, 5))
    plan(broker, at(broker, 50))
    broker.advance(10 * SECOND)
    assert fired(broker) == []
    broker = again(broker)
    broker.advance(50 * SECOND)
    assert len(fired(broker)) == 1


def test_a_plain_message_ends_it_for_good() -> None:
    broker = start()
    plan(broker, "@every 5s")
    broker.publish("p.plan", b"plain")
    broker.run_until_idle()
    broker = again(broker)
    broker.advance(60 * SECOND)
    assert fired(broker) == []
    assert list(broker.store.metadata.items(b"schedule/")) == []


def test_a_schedule_may_expire() -> None:
    broker = start()
    plan(broker, "@every 5s", Nats_TTL="12")
    broker.advance(60 * SECOND)
    assert len(fired(broker)) == 2
    assert list(broker.store.metadata.items(b"schedule/")) == []


def test_a_deleted_stream_leaves_nothing() -> None:
    broker = start()
    plan(broker, "@every 5s")
    broker.call("STREAM.DELETE.P")
    broker.advance(20 * SECOND)
    assert list(broker.store.metadata.items(b"schedule/")) == []


def test_a_sealed_stream_is_silent() -> None:
    broker = start()
    plan(broker, "@every 5s")
    config = broker.call("STREAM.INFO.P")["config"]
    assert "error" not in broker.call("STREAM.UPDATE.P", **{**config, "sealed": True})
    broker.advance(60 * SECOND)
    assert fired(broker) == []


def test_a_fired_message_without_interest_is_not_kept() -> None:
    """The copy is not stored, and the schedule is finished."""
    broker = start(retention="interest")
    answer = broker.call(
        "CONSUMER.CREATE.P.C",
        stream_name="P",
        config={"name": "C", "filter_subject": "p.plan", "ack_policy": "explicit"},
    )
    assert "error" not in answer, answer
    plan(broker, at(broker, 2))
    assert count(broker, b"p.plan") == 1
    broker.advance(3 * SECOND)
    assert (count(broker, b"p.plan"), fired(broker)) == (0, [])


def test_a_full_disk_puts_it_off() -> None:
    broker = start()
    plan(broker, at(broker, 2))
    broker.disk.capacity = broker.disk.used() + 1000
    broker.store.update_space()
    broker.advance(5 * SECOND)
    assert fired(broker) == []
    broker.disk.capacity = None
    broker.store.update_space()
    broker.advance(5 * SECOND)
    assert len(fired(broker)) == 1


def test_many_at_once() -> None:
    broker = start()
    for number in range(600):
        broker.publish(
            f"p.plan.{number}", b"x", Nats_Schedule=at(broker, 5), Nats_Schedule_Target=f"p.out.{number % 7}"
        )
    broker.advance(6 * SECOND)
    assert sum(len(fired(broker, b"p.out.%d" % number)) for number in range(7)) == 600
    assert broker.jetstream.streams["P"].log.num_subjects == 7


@pytest.mark.parametrize("outcome", OUTCOMES, ids=lambda outcome: outcome.name)
def test_a_crash_at_any_moment(outcome: Outcome) -> None:
    """Each schedule is either still pending or has fired once."""
    rng = Random(outcome.name)
    broker = start()
    planned: list[int] = []
    for life in range(5):
        for number in range(life * 20, life * 20 + 20):
            broker.publish(
                f"p.plan.{number}",
                bytes(rng.randrange(400)),
                Nats_Schedule=at(broker, rng.randrange(1, 9) / 4),
                Nats_Schedule_Target=f"p.out.{number}",
            )
        broker.run_until_idle()
        planned += range(life * 20, life * 20 + 20)
        for _ in range(rng.randrange(40)):
            broker.clock.advance(SECOND // 50)
            broker.timers.run_due()
            for _ in range(rng.randrange(4)):
                broker.step()
        broker = start(broker.disk.crash(outcome, life), broker.clock)
        both = [
            (count(broker, b"p.plan.%d" % number), count(broker, b"p.out.%d" % number)) for number in planned
        ]
        assert set(both) <= {(1, 0), (0, 1)}
    broker.advance(30 * SECOND)
    assert all(count(broker, b"p.out.%d" % number) == 1 for number in planned)


def test_the_copy_says_where_it_comes_from() -> None:
    broker = start()
    plan(broker, at(broker, 1), Nats_Schedule_TTL="60", Own="kept")
    broker.advance(2 * SECOND)
    log = broker.jetstream.streams["P"].log
    message = log.get(log.get_last_seq(b"p.out"))
    assert message is not None
    assert message[4] == 60
    assert headers.parse_pairs(message[2]) == [
        (b"Own", b"kept"),
        (b"Nats-Scheduler", b"p.plan"),
        (b"Nats-Schedule-Next", b"purge"),
        (b"Nats-TTL", b"60"),
    ]
