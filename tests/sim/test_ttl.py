"""TTLs in virtual time: the guarantees of per-message TTL and delete markers, and a model to compare with."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from headrace.protocol import headers
from headrace.sim import SimClock, SimDisk
from headrace.sim.sim_broker import SimBroker
from headrace.storage import StoreOptions

from .store_sizes import SIZES

SECOND = 1_000_000_000
NEVER = 10**9


def start(
    disk: SimDisk | None = None, clock: SimClock | None = None, options: StoreOptions = SIZES[1]
) -> SimBroker:
    broker = SimBroker(disk or SimDisk(), options, clock)
    broker.start()
    broker.run_until_idle()
    return broker


def create(broker: SimBroker, **config: Any) -> None:
    answer = broker.call("STREAM.CREATE.S", name="S", subjects=["s.>"], allow_direct=True, **config)
    assert "error" not in answer, answer


def state(broker: SimBroker) -> dict[str, Any]:
    found: dict[str, Any] = broker.call("STREAM.INFO.S", subjects_filter=">")["state"]
    return found


def last(broker: SimBroker, subject: str) -> bytes:
    number = broker.publish(f"$JS.API.DIRECT.GET.S.{subject}")
    broker.run_until_idle()
    return broker.replies[number].header


class TestPromptness:
    def test_never_early_and_not_served_late(self) -> None:
        broker = start()
        create(broker, allow_msg_ttl=True)
        broker.publish("s.a", b"x", Nats_TTL="1")
        broker.run_until_idle()
        deadline_ns = broker.jetstream.streams["S"].log.last_time_ns + SECOND
        broker.clock.advance(deadline_ns - broker.clock.now_ns() - 1)  # no timer is run: the sweep is late
        assert state(broker)["messages"] == 1
        broker.clock.advance(1)
        assert state(broker)["messages"] == 0

    def test_gone_within_a_quarter_second_without_being_asked(self) -> None:
        broker = start()
        create(broker, allow_msg_ttl=True)
        broker.publish("s.a", b"x", Nats_TTL="1")
        broker.advance(SECOND + SECOND // 4)
        assert broker.jetstream.streams["S"].log.messages == 0

    def test_a_long_way_ahead(self) -> None:
        broker = start()
        create(broker, allow_msg_ttl=True)
        for days in (1, 30, 365):
            broker.publish(f"s.{days}", b"x", Nats_TTL=f"{24 * days}h")
        broker.run_until_idle()
        for days, left in ((1, 2), (30, 1), (365, 0)):
            broker.advance(days * 86_400 * SECOND - SECOND - (broker.clock.now_ns() - SimClock().now_ns()))
            assert broker.jetstream.streams["S"].log.messages == left + 1
            broker.advance(2 * SECOND)
            assert broker.jetstream.streams["S"].log.messages == left

    def test_switched_on_later(self) -> None:
        """Enabling TTLs applies to stored messages; expired ones are removed at once."""
        broker = start()
        create(broker)
        stream = broker.jetstream.streams["S"]
        stream.store(b"s.a", b"NATS/1.0\r\nNats-TTL: 2\r\n\r\n", b"x", broker.clock.now_ns(), 2)
        stream.mark_dirty()
        broker.advance(5 * SECOND)
        assert state(broker)["messages"] == 1
        broker.call("STREAM.UPDATE.S", name="S", subjects=["s.>"], allow_msg_ttl=True)
        assert state(broker)["messages"] == 0


class TestClockJumps:
    @pytest.mark.parametrize("jump", [-3600, 3600])
    def test_a_set_clock_is_followed(self, jump: int) -> None:
        broker = start()
        create(broker, allow_msg_ttl=True)
        broker.publish("s.before", b"x", Nats_TTL="10")
        broker.run_until_idle()
        broker.clock._now_ns += jump * SECOND
        broker.publish("s.after", b"x", Nats_TTL="10")
        broker.run_until_idle()
        assert ("s.before" in state(broker)["subjects"]) == (jump < 0)
        broker.advance(10 * SECOND + SECOND // 2)
        assert "s.after" not in state(broker).get("subjects", {})
        broker.advance(3601 * SECOND)
        assert state(broker)["messages"] == 0


class TestMarkers:
    def test_a_delete_marker_has_all_its_headers(self) -> None:
        broker = start()
        create(broker, subject_delete_marker_ttl=90 * SECOND, max_msgs_per_subject=1)
        broker.publish("s.a", b"x", Nats_TTL="1")
        broker.advance(2 * SECOND)
        assert last(broker, "s.a").startswith(
            b"NATS/1.0\r\nNats-Marker-Reason: MaxAge\r\nNats-TTL: 1m30s\r\nNats-Rollup: sub\r\n"
            b"Nats-Applied-Limit: MaxAge\r\nNats-Stream: S\r\n"
        )

    @pytest.mark.parametrize("option", ["", "purge,remove"])
    def test_purge_and_remove_by_option(self, option: str) -> None:
        broker = start()
        create(broker, subject_delete_marker_ttl=9 * SECOND, metadata={"headrace.markers": option})
        for subject in ("s.a", "s.b"):
            broker.publish(subject, b"x")
        broker.run_until_idle()
        assert broker.call("STREAM.PURGE.S", filter="s.a")["purged"] == 1
        assert broker.call("STREAM.MSG.DELETE.S", seq=2)["success"]
        if not option:
            assert state(broker)["messages"] == 0
            return
        assert b"Nats-Marker-Reason: Purge\r\n" in last(broker, "s.a")
        assert b"Nats-Marker-Reason: Remove\r\n" in last(broker, "s.b")

    def test_a_full_stream_still_gets_its_marker(self) -> None:
        broker = start()
        create(broker, subject_delete_marker_ttl=2 * SECOND, discard="new", max_msgs=1)
        broker.publish("s.a", b"x", Nats_TTL="2")
        broker.advance(3 * SECOND)
        assert b"Nats-Marker-Reason: MaxAge" in last(broker, "s.a")


@dataclass
class Entry:
    subject: str
    time: float
    ttl: int = 0
    marker: bool = False


@dataclass
class Model:
    """Messages by subject, with the second in which each expires."""

    max_age: int
    marker_ttl: int
    per_subject: int
    now: float = 0
    entries: list[Entry] = field(default_factory=list)

    def deadline(self, entry: Entry) -> float:
        """Return when an entry expires, by its own TTL or by the stream's maximum age."""
        ends = [entry.time + entry.ttl] if 0 < entry.ttl < NEVER else []
        if self.max_age and entry.ttl != NEVER:
            ends.append(entry.time + self.max_age)
        return min(ends, default=float("inf"))

    def publish(self, subject: str, ttl: int) -> None:
        if 0 < ttl < self.marker_ttl and self.per_subject != 1:
            ttl = self.marker_ttl
        self.entries.append(Entry(subject, self.now, ttl))
        same = [entry for entry in self.entries if entry.subject == subject]
        if self.per_subject > 0:
            for entry in same[: -self.per_subject]:
                self.entries.remove(entry)

    def purge(self, subject: str) -> None:
        self.entries = [entry for entry in self.entries if entry.subject != subject]

    def wait_half(self) -> None:
        """Advance the time by half a second."""
        self.wait(0.5)

    def wait(self, seconds: float) -> None:
        """Advance the time: expired messages are removed, the last one of a subject leaves a delete marker."""
        self.now += seconds
        for entry in sorted(self.entries, key=self.deadline):
            deadline = self.deadline(entry)
            if deadline > self.now:
                break
            self.entries.remove(entry)
            others = any(other.subject == entry.subject for other in self.entries)
            if self.marker_ttl and not entry.marker and not others:
                placed = max(deadline, self.now - seconds) + 0.1
                self.entries.append(Entry(entry.subject, placed, self.marker_ttl, marker=True))

    def shown(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for entry in self.entries:
            found[entry.subject] = found.get(entry.subject, 0) + 1
        return dict(sorted(found.items()))


subjects = st.sampled_from(["s.a", "s.b", "s.c"])
steps = st.one_of(
    st.tuples(st.just("publish"), subjects, st.sampled_from([0, 1, 2, 3, 5, NEVER])),
    st.tuples(st.just("purge"), subjects, st.just(0)),
    st.tuples(st.just("update"), st.just(""), st.sampled_from([0, 3, 6])),
    st.tuples(st.just("wait"), st.just(""), st.integers(1, 4)),
    st.tuples(st.just("restart"), st.just(""), st.just(0)),
)


# The model is exact to a tenth of a second. If a step and a deadline are closer than that, about once in 3,000
# examples, both are right and differ. So the examples are always the same ones.
@settings(max_examples=120, deadline=None, derandomize=True)
@given(
    max_age=st.sampled_from([0, 3, 6]),
    marker_ttl=st.sampled_from([0, 2, 4]),
    per_subject=st.sampled_from([-1, 1, 2]),
    story=st.lists(steps, max_size=25),
)
def test_any_story_agrees_with_the_model(
    max_age: int, marker_ttl: int, per_subject: int, story: list[tuple[str, str, int]]
) -> None:
    assume(sum(kind == "update" for kind, _, _ in story) <= 3)
    broker, model = start(), Model(max_age, marker_ttl, per_subject)
    config: dict[str, Any] = {
        "allow_msg_ttl": True,
        "subject_delete_marker_ttl": marker_ttl * SECOND,
        "max_msgs_per_subject": per_subject,
    }
    create(broker, max_age=max_age * SECOND, **config)
    for kind, subject, number in story:
        broker.advance(SECOND // 1000)  # so that nothing falls due at the very moment of a later step
        if kind == "publish":
            text = {0: "", NEVER: "never"}.get(number, f"{number}s")
            broker.publish(subject, b"x", Nats_TTL=text)
            model.publish(subject, number)
        elif kind == "purge":
            broker.call_nowait("STREAM.PURGE.S", filter=subject)
            model.purge(subject)
        elif kind == "update":
            # Away from deadlines: whether an expiry at the very last moment has been processed is not guaranteed.
            broker.advance(23 * SECOND // 100)
            model.wait(0.23)
            model.max_age = number
            changed = {**config, "max_age": number * SECOND}
            assert "error" not in broker.call("STREAM.UPDATE.S", name="S", subjects=["s.>"], **changed)
        broker.run_until_idle()
        if kind == "restart":
            broker = start(broker.disk.kill(), broker.clock)
        for _ in range(2 * number if kind == "wait" else 0):
            broker.advance(SECOND // 2)
            model.wait_half()
        broker.advance(SECOND // 2)
        model.wait_half()
        assert state(broker).get("subjects", {}) == model.shown()
        broker.advance(SECOND // 2)
        model.wait_half()


def test_what_is_overdue_when_the_limit_is_lifted_is_gone() -> None:
    broker = start()
    create(broker, max_age=SECOND)
    broker.publish("s.a", b"x")
    broker.run_until_idle()
    broker.clock.advance(SECOND + 1000)  # no timer is run: the sweep is late
    broker.call("STREAM.UPDATE.S", name="S", subjects=["s.>"], allow_direct=True, max_age=0)
    assert state(broker)["messages"] == 0


def test_a_sweep_comes_in_slices() -> None:
    broker = start(options=StoreOptions())
    broker.call(
        "STREAM.CREATE.K",
        name="K",
        subjects=["k.>"],
        max_msgs_per_subject=1,
        subject_delete_marker_ttl=60 * SECOND,
    )
    block = headers.build([(b"Nats-TTL", b"2")])
    for number in range(5_000):
        broker.router.publish(b"k.%d" % number, b"", block, b"v")
    broker.run_until_idle()
    broker.clock.advance(3 * SECOND)
    broker.timers.run_due()
    log = broker.jetstream.streams["K"].log
    assert 0 < log.last_seq - 5_000 <= 1_024
    broker.advance(SECOND)
    assert log.last_seq == 10_000


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("marker_ttl_s", [0, 60])
def test_a_message_dated_ahead_does_not_hold_up_others(marker_ttl_s: int, restarted: bool) -> None:
    broker = start()
    markers = {"subject_delete_marker_ttl": marker_ttl_s * SECOND} if marker_ttl_s else {}
    create(broker, max_age=10 * SECOND, **markers)
    broker.publish("s.ahead", b"x")
    broker.run_until_idle()
    broker.clock._now_ns -= 3600 * SECOND
    for number in range(5):
        broker.publish(f"s.{number}", b"x")
    broker.run_until_idle()
    if restarted:
        broker = start(broker.disk.kill(), broker.clock)
    broker.advance(11 * SECOND)
    log = broker.jetstream.streams["S"].log
    assert log.messages == 1 + (5 if marker_ttl_s else 0)
    assert log.last_seq == 6 + (5 if marker_ttl_s else 0)
    broker.advance(100 * SECOND)
    assert list(state(broker)["subjects"]) == ["s.ahead"]
    broker.advance(3700 * SECOND)
    assert state(broker)["messages"] == 0
