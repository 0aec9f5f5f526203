"""TTLs, delete markers and whole batches in copies, in virtual time: what a copy stores, and when it takes effect."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.protocol import headers
from headrace.sim import SimDisk
from headrace.sim.sim_broker import SimBroker

from .store_sizes import SIZES

SECOND = 1_000_000_000
WAYS = {"source": {"sources": [{"name": "O"}]}, "mirror": {"mirror": {"name": "O"}}}
BATCH = {"Nats_Batch_Id": "B"}


def start(**upstream: Any) -> SimBroker:
    broker = SimBroker(SimDisk(), SIZES[1])
    broker.start()
    broker.run_until_idle()
    call(broker, "STREAM.CREATE.O", name="O", subjects=["o.>"], **upstream)
    return broker


def call(broker: SimBroker, endpoint: str, **body: Any) -> Any:
    answer = broker.call(endpoint, **body)
    assert "error" not in answer, answer
    return answer


def restart(broker: SimBroker) -> SimBroker:
    broker.run_until_idle()
    after = SimBroker(broker.disk.kill(), SIZES[1], broker.clock)
    after.start()
    after.run_until_idle()
    return after


def messages(broker: SimBroker, name: str = "A") -> list[tuple[bytes, bytes]]:
    """Return header and payload of each message."""
    log = broker.jetstream.streams[name].log
    found = [log.get(seq) for seq in log.find_seqs(None, log.first_seq, log.last_seq).tolist()]
    return [(message[2], message[3]) for message in found if message is not None]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("restarted", [False, True])
class TestSwitchedOnLater:
    """A copy without TTLs stores them; they count once it has TTLs."""

    def copy(self, way: str, ttl: str, *, restarted: bool) -> SimBroker:
        broker = start(allow_msg_ttl=True)
        call(broker, "STREAM.CREATE.A", name="A", max_age=100 * SECOND, **WAYS[way])
        broker.advance(SECOND)
        broker.publish("o.x", b"ttl", Nats_TTL=ttl)
        broker.publish("o.y", b"plain")
        broker.advance(SECOND)
        assert [payload for _, payload in messages(broker)] == [b"ttl", b"plain"]
        return restart(broker) if restarted else broker

    def switch_on(self, broker: SimBroker, way: str) -> None:
        call(broker, "STREAM.UPDATE.A", name="A", max_age=100 * SECOND, allow_msg_ttl=True, **WAYS[way])

    def test_never(self, way: str, restarted: bool) -> None:
        broker = self.copy(way, "never", restarted=restarted)
        self.switch_on(broker, way)
        broker.advance(300 * SECOND)
        assert [payload for _, payload in messages(broker)] == [b"ttl"]

    def test_seconds(self, way: str, restarted: bool) -> None:
        broker = self.copy(way, "30", restarted=restarted)
        broker.advance(10 * SECOND)
        self.switch_on(broker, way)
        assert len(messages(broker)) == 2
        broker.advance(25 * SECOND)
        assert [payload for _, payload in messages(broker)] == [b"plain"]

    @pytest.mark.parametrize("ttl", ["never", "1000"])
    def test_without_ttls_only_the_age_counts(self, way: str, restarted: bool, ttl: str) -> None:
        broker = self.copy(way, ttl, restarted=restarted)
        broker.advance(200 * SECOND)
        assert messages(broker) == []


class TestMarkers:
    def is_marker(self, header: bytes) -> bool:
        return bool(headers.get(header, b"Nats-Marker-Reason"))

    @pytest.mark.parametrize("rollup", [False, True])
    @pytest.mark.parametrize("way", WAYS)
    def test_copied_to_a_stream_without_ttls(self, way: str, rollup: bool) -> None:
        """It stays, and replaces the message only if the copy allows rollups."""
        broker = start(subject_delete_marker_ttl=5 * SECOND, max_msgs_per_subject=1)
        call(broker, "STREAM.CREATE.A", name="A", allow_rollup_hdrs=rollup, **WAYS[way])
        broker.publish("o.x", b"1", Nats_TTL="1")
        broker.advance(20 * SECOND)
        assert messages(broker, "O") == []
        found = messages(broker)
        assert [self.is_marker(header) for header, _ in found] == ([True] if rollup else [False, True])
        broker = restart(broker)
        broker.advance(1000 * SECOND)
        assert messages(broker) == found

    def test_copied_to_a_source_with_ttls(self) -> None:
        """It ends by its own TTL, counted from its arrival, and leaves no marker."""
        broker = start(subject_delete_marker_ttl=5 * SECOND, max_msgs_per_subject=1)
        call(broker, "STREAM.CREATE.A", name="A", allow_msg_ttl=True, **WAYS["source"])
        broker.publish("o.x", b"1", Nats_TTL="1")
        broker.advance(2 * SECOND)
        assert [self.is_marker(header) for header, _ in messages(broker)][-1:] == [True]
        broker.advance(10 * SECOND)
        assert messages(broker) == []
        assert broker.jetstream.streams["A"].log.last_seq == 2

    @pytest.mark.parametrize("upstream_markers", [False, True])
    @pytest.mark.parametrize("restarted", [False, True])
    def test_a_source_with_markers_of_its_own(self, upstream_markers: bool, restarted: bool) -> None:
        """It places its own; a marker of the upstream that arrives later replaces it."""
        markers = {"subject_delete_marker_ttl": 60 * SECOND, "max_msgs_per_subject": 1}
        broker = start(**(markers if upstream_markers else {"allow_msg_ttl": True}))
        call(broker, "STREAM.CREATE.A", name="A", **markers, **WAYS["source"])
        broker.advance(SECOND)
        broker.publish("o.x", b"1", Nats_TTL="2")
        broker.advance(SECOND)
        if restarted:
            broker = restart(broker)
        broker.advance(5 * SECOND)
        ((header, payload),) = messages(broker)
        assert self.is_marker(header)
        assert payload == b""
        assert bool(headers.get(header, b"Nats-Stream-Source")) == upstream_markers
        broker.advance(100 * SECOND)
        assert messages(broker) == []

    def test_a_marker_meets_a_newer_message(self) -> None:
        """A message published to the source itself is replaced by the marker of the upstream, as by any rollup."""
        broker = start(subject_delete_marker_ttl=60 * SECOND, max_msgs_per_subject=1)
        markers = {"subject_delete_marker_ttl": 60 * SECOND, "max_msgs_per_subject": 5}
        call(broker, "STREAM.CREATE.A", name="A", subjects=["a.>"], **markers, **WAYS["source"])
        broker.publish("o.x", b"1", Nats_TTL="90")
        broker.advance(80 * SECOND)
        broker.publish("o.y", b"2")
        broker.advance(20 * SECOND)
        found = messages(broker)
        assert [self.is_marker(header) for header, _ in found] == [False, True]


class TestFullStreams:
    """A sourced batch is visible as a whole, also in a stream that accepts nothing more."""

    def batch(self, broker: SimBroker, size: int, *subjects: str) -> None:
        for position in range(1, size + 1):
            last = {"Nats_Batch_Commit": "1"} if position == size else {}
            subject = subjects[(position - 1) % len(subjects)] if subjects else "o.b"
            broker.publish(subject, b"batch", Nats_Batch_Sequence=str(position), **BATCH, **last)

    def watch(self, broker: SimBroker, seconds: int) -> set[int]:
        """How many members of the batch a reader could have seen, over some seconds."""
        seen = set()
        log = broker.jetstream.streams["A"].log
        for _ in range(seconds * 10):
            while broker.step():
                visible = log.find_seqs(None, log.first_seq, log.committed_seq).tolist()
                found = [log.get(seq) for seq in visible]
                seen.add(sum(message is not None and message[3] == b"batch" for message in found))
            broker.advance(SECOND // 10)
        return seen

    @pytest.mark.parametrize(
        "limit",
        [
            {"max_msgs": 5},
            {"max_bytes": 500},
            {"max_msgs_per_subject": 4, "discard_new_per_subject": True, "max_msgs": 100},
        ],
        ids=["messages", "bytes", "per-subject"],
    )
    @pytest.mark.parametrize("restarted", [False, True])
    @pytest.mark.parametrize("managed", [False, True])
    def test_it_waits_for_space(self, limit: dict[str, Any], restarted: bool, managed: bool) -> None:
        broker = start(allow_atomic=True)
        consumer = {"consumer": {"name": "D", "server_managed": True}} if managed else {}
        sources = [{"name": "O", **consumer}]
        call(broker, "STREAM.CREATE.A", name="A", allow_atomic=True, discard="new", sources=sources, **limit)
        broker.advance(SECOND)
        for _ in range(3):
            broker.publish("o.b", b"single")
        broker.advance(SECOND)
        assert len(messages(broker)) == 3
        self.batch(broker, 4)
        assert self.watch(broker, 30) <= {0}
        if restarted:
            broker = restart(broker)
            assert self.watch(broker, 30) <= {0}
        broker.publish("o.b", b"later")
        broker.run_until_idle()
        call(broker, "STREAM.PURGE.A")
        assert self.watch(broker, 30) <= {0, 4}
        assert [payload for _, payload in messages(broker)][:4] == [b"batch"] * 4

    def test_one_that_never_fits_is_stored_in_parts(self) -> None:
        broker = start(allow_atomic=True)
        call(
            broker,
            "STREAM.CREATE.A",
            name="A",
            allow_atomic=True,
            discard="new",
            max_msgs=3,
            **WAYS["source"],
        )
        broker.advance(SECOND)
        self.batch(broker, 4)
        broker.advance(30 * SECOND)
        assert len(messages(broker)) == 3
        call(broker, "STREAM.PURGE.A")
        broker.advance(30 * SECOND)
        assert len(messages(broker)) == 1

    def test_members_that_replace_others_need_no_space(self) -> None:
        broker = start(allow_atomic=True)
        limits = {"max_msgs": 2, "max_msgs_per_subject": 1}
        call(
            broker, "STREAM.CREATE.A", name="A", allow_atomic=True, discard="new", **limits, **WAYS["source"]
        )
        broker.advance(SECOND)
        for subject in ("o.a", "o.b"):
            broker.publish(subject, b"single")
        broker.advance(SECOND)
        self.batch(broker, 5, "o.a", "o.b")
        broker.advance(30 * SECOND)
        assert [payload for _, payload in messages(broker)] == [b"batch"] * 2
