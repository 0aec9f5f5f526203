"""Backup and restore in virtual time: a restored stream becomes visible only when it is complete, in spite of faults."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import pytest

from headrace.broker.handlers import backup_send, restore_receiver, restore_writer
from headrace.jetstream_api.account_limits import JetStreamLimits
from headrace.jetstream_api.advisories import ClientInfo
from headrace.jetstream_api.requests import SnapshotRequest
from headrace.protocol.backup_archive import END_ENTRY, ArchiveWriter, BackupEntry
from headrace.sim import OUTCOMES, SimClock, SimDisk
from headrace.sim.disk.crash_outcomes import Outcome

from .broker_harness import Box, Client, Delivery
from .store_sizes import SIZES

SECOND = 1_000_000_000


def start(disk: SimDisk | None = None, clock: SimClock | None = None) -> Box:
    return Box(disk or SimDisk(), clock or SimClock(), SIZES[0])


def filled(box: Box, name: str = "S", count: int = 60) -> Client:
    client = box.client()
    client.send(b"SUB _B.> 7\r\n")
    config = {"name": name, "subjects": [f"{name}.>"]}
    assert "error" not in client.api(f"STREAM.CREATE.{name}", config)
    for number in range(count):
        client.publish(f"{name}.{number % 4}".encode(), b"payload %d " % number * 20)
    box.run()
    return client


def answers(client: Client) -> list[Delivery]:
    return [delivery for delivery in client.take() if delivery.sid == b"7"]


def back_up(box: Box, client: Client, name: str = "S", **options: Any) -> bytes:
    client.api(f"STREAM.SNAPSHOT.{name}", {"deliver_subject": "_B.s", **options})
    data = b""
    while True:
        arrived = answers(client)
        for delivery in arrived:
            data += delivery.payload
            if delivery.reply:
                client.publish(delivery.reply)
        if arrived and not arrived[-1].payload:
            return data
        box.run()


def begin(client: Client, name: str = "R", **config: Any) -> bytes:
    answer = client.api(f"STREAM.RESTORE.{name}", {"config": {"name": name, **config}})
    assert "error" not in answer, answer
    subject: bytes = answer["deliver_subject"].encode()
    return subject


def pieces(data: bytes, size: int) -> list[bytes]:
    return [data[at : at + size] for at in range(0, len(data), size)]


def rows(box: Box, name: str) -> list[Any]:
    log = box.jetstream.streams[name].log
    return [log.get(seq) for seq in log.find_seqs(None, log.first_seq, log.last_seq).tolist()]


@pytest.mark.parametrize("outcome", OUTCOMES, ids=lambda outcome: outcome.name)
def test_a_crash_at_any_moment(outcome: Outcome) -> None:
    """The stream is complete (always, once that was reported), or it does not exist at all."""
    rng = Random(outcome.name)
    for attempt in range(6):
        box = start()
        client = filled(box)
        client.api(
            "CONSUMER.CREATE.S.D",
            {"stream_name": "S", "config": {"durable_name": "D", "ack_policy": "explicit"}},
        )
        data = back_up(box, client)
        subject = begin(client, subjects=["r"])
        for piece in [*pieces(data, len(data) // 5), b""]:
            client.publish(subject, piece, b"_B.r")
        said = False
        for _ in range(rng.randrange(160) if attempt else 10_000):
            if not box.step():
                break
            said = said or any(b"stream_create_response" in delivery.payload for delivery in answers(client))
        expected = rows(box, "S")
        again = start(box.disk.crash(outcome, attempt), box.clock)
        again.run()
        assert not said or "R" in again.jetstream.streams
        if "R" in again.jetstream.streams:
            assert rows(again, "R") == expected
            assert list(again.jetstream.streams["R"].consumers) == ["D"]
        else:
            assert "R" not in again.store.logs
            assert list(again.store.metadata.items(b"consumer/2/")) == []
        assert list(again.store.metadata.items(restore_writer.UNFINISHED_KEY)) == []
        assert said or attempt


def test_nobody_else_gets_the_name() -> None:
    box = start()
    client = filled(box)
    data = back_up(box, client)
    subject = begin(client)
    client.publish(subject, data, b"_B.r")
    box.run()
    assert client.api("STREAM.CREATE.R", {"name": "R"})["error"]["err_code"] == 10058
    assert client.api("STREAM.RESTORE.R", {"config": {"name": "R"}})["error"]["err_code"] == 10130
    client.publish(subject, b"", b"_B.r")
    box.run()
    assert box.jetstream.streams["R"].log.messages == 60
    assert box.jetstream.restores == {}


def test_subjects_that_were_taken_meanwhile() -> None:
    box = start()
    client = filled(box)
    data = back_up(box, client)
    subject = begin(client, subjects=["r.>"])
    client.publish(subject, data, b"_B.r")
    assert "error" not in client.api("STREAM.CREATE.T", {"name": "T", "subjects": ["r.a"]})
    client.publish(subject, b"", b"_B.r")
    box.run()
    assert json.loads(answers(client)[-1].payload)["error"]["err_code"] == 10062
    assert "R" not in box.store.logs


def test_a_restore_that_falls_silent_leaves_nothing() -> None:
    box = start()
    client = filled(box, count=600)
    data = back_up(box, client)
    subject = begin(client)
    client.publish(subject, data[:-100], b"_B.r")
    box.advance(4 * SECOND)
    assert "R" in box.store.logs
    box.advance(2 * SECOND)
    assert "R" not in box.store.logs
    assert box.jetstream.restores == {}
    client.publish(subject, b"", b"_B.r")
    box.run()
    taken, late = answers(client)
    assert (taken.header, taken.payload) == (b"", b"")
    assert late.header.startswith(b"NATS/1.0 503")


def test_a_chunk_without_a_reply() -> None:
    box = start()
    client = filled(box)
    subject = begin(client)
    client.publish(subject, b"x")
    client.publish(subject, b"x", b"_B.r")
    box.run()
    assert json.loads(answers(client)[0].payload)["error"]["err_code"] == 10062
    assert box.jetstream.restores == {}


def test_whoever_does_not_wait_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restore_receiver, "_QUEUE_MAX", 1000)
    box = start()
    client = filled(box)
    subject = begin(client)
    for _ in range(5):
        client.publish(subject, bytes(400), b"_B.r")
    box.run()
    assert b"too many unacknowledged chunks" in answers(client)[0].payload


def test_the_restores_of_an_account_hold_only_so_much_together(monkeypatch: pytest.MonkeyPatch) -> None:
    box = start()
    client = filled(box, count=600)
    data = back_up(box, client)
    monkeypatch.setattr(restore_receiver, "BUFFERED_MAX", 1000)
    large, small = begin(client, "R"), begin(client, "Q")
    client.publish(large, data[:700], b"_B.r")  # not one whole block: it must wait for the rest
    box.run()
    assert (large_restore := box.jetstream.restores["R"]).buffered_bytes > 650
    client.publish(small, data[:400], b"_B.q")
    box.run()
    assert list(box.jetstream.restores) == ["Q"]
    assert large_restore.buffered_bytes == 0
    client.publish(large, data[700:], b"_B.r")
    box.run()
    refused = [delivery.payload for delivery in answers(client) if delivery.subject == b"_B.r"][-1]
    assert b"buffer too much data" in refused
    assert "R" not in box.store.logs


def test_what_is_unpacked_and_not_yet_whole_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    box = start()
    client = filled(box, count=1)
    packer = ArchiveWriter()
    data = packer.add(state(messages=1, last_seq=1)) + packer.add(message(payload=bytes(6_000_000)))
    monkeypatch.setattr(restore_receiver, "BUFFERED_MAX", 1_000_000)
    subject = begin(client, "R")
    client.publish(subject, data[: len(data) // 2], b"_B.r")  # small, but it grows
    box.run()
    assert not box.jetstream.restores
    client.publish(subject, data[len(data) // 2 :], b"_B.r")
    box.run()
    assert b"buffer too much data" in answers(client)[-1].payload


def state(**fields: Any) -> BackupEntry:
    return BackupEntry(
        b"state.json", 1, 0, b"", json.dumps({"first_seq": 1, "last_seq": 0, **fields}).encode()
    )


def message(
    seq: int = 1, name: bytes = b"a", header: bytes = b"", payload: bytes = b"x", time_ns: int = 1
) -> BackupEntry:
    return BackupEntry(name, time_ns, seq, header, payload)


def restored(entries: list[BackupEntry], **config: Any) -> tuple[dict[str, Any], Box]:
    box = start()
    client = box.client()
    client.send(b"SUB _B.> 7\r\n")
    packer = ArchiveWriter()
    data = b"".join(packer.add(entry) for entry in entries) + packer.finish()
    subject = begin(client, **config)
    client.publish(subject, data, b"_B.r")
    client.publish(subject, b"", b"_B.r")
    box.run()
    found: dict[str, Any] = json.loads(answers(client)[-1].payload)
    return found, box


CONSUMER = {"config": {"durable_name": "D", "ack_policy": "explicit"}, "state": {}}


def consumer(name: str = "D", **fields: Any) -> BackupEntry:
    return BackupEntry(f"consumers/{name}".encode(), 1, 0, b"", json.dumps({**CONSUMER, **fields}).encode())


@pytest.mark.parametrize(
    "entries",
    [
        [message()],
        [state(first_seq=2**63)],
        [state(last_seq=2**62 + 1)],
        [BackupEntry(b"state.json", 1, 0, b"", b"[]")],
        [state(), message(0)],
        [state(), message(2), message(2)],
        [state(first_seq=5, last_seq=4), message(3)],
        [state(), message(2**63)],
        [state(), message(name=b"")],
        [state(), message(name=b"a..b")],
        [state(), message(name=b"a b")],
        [state(), message(header=b"x")],
        [state(), message(header=b"NATS/1.0\r\n")],
        [state(), message(header=b"NATS/1.0\r\n" + b"A: b\r\n" * 20_000 + b"\r\n")],
        [state(), message(time_ns=-1)],
        [state(), message(header=b"NATS/1.0\r\nNats-TTL: x\r\n\r\n")],
        [state(), message(payload=bytes(200))],
        [state(consumer_count=1), message()],
        [state(consumer_count=1), END_ENTRY],
        [state(consumer_count=-1)],
        [state(consumer_count=2), consumer(), consumer()],
        [state(consumer_count=1), consumer(config={"durable_name": "D", "ack_policy": "some"})],
        [state(consumer_count=1), consumer(config={"durable_name": "D", "deliver_subject": "a.*"})],
        [state(consumer_count=1), consumer(state=7)],
        [state(consumer_count=1), consumer(state={"delivered": {"stream_seq": -1}})],
        [state(consumer_count=1), consumer(state={"delivered": {"stream_seq": 2**64}})],
        [state(consumer_count=1), consumer(state={"pending": {"1": {"Sequence": 2**63}}})],
        [state(consumer_count=1), consumer(state={"headrace": {"initial": [-1]}})],
    ],
)
def test_what_cannot_be_restored(entries: list[BackupEntry]) -> None:
    answer, box = restored(
        entries, allow_msg_ttl=True, max_msg_size=190_000 if len(entries[-1].payload) != 200 else 100
    )
    assert answer["error"]["err_code"] == 10062, answer
    assert "R" not in box.store.logs
    assert list(box.store.metadata.items(restore_writer.UNFINISHED_KEY)) == []


def test_times_never_go_back() -> None:
    answer, box = restored([state(last_seq=2), message(1, time_ns=50), message(2, time_ns=40)])
    assert "error" not in answer
    assert [row[0] for row in rows(box, "R")] == [50, 50]


def test_what_has_expired_is_not_restored() -> None:
    header = b"NATS/1.0\r\nNats-TTL: 1\r\n\r\n"
    answer, box = restored([state(last_seq=2), message(1, header=header), message(2)], allow_msg_ttl=True)
    assert (answer["state"]["messages"], answer["state"]["first_seq"]) == (1, 2)
    assert box.jetstream.streams["R"].log.last_seq == 2


def test_ttls_of_a_stream_without_ttls_are_restored_for_later() -> None:
    """Copies may have them. They count once TTLs are enabled."""
    texts, clock = ("1", "never", "x"), SimClock()
    entries = [
        message(seq, header=b"NATS/1.0\r\nNats-TTL: %s\r\n\r\n" % text.encode(), time_ns=clock.now_ns())
        for seq, text in enumerate(texts, 1)
    ]
    config = {"max_age": 1000 * SECOND}
    answer, box = restored([state(last_seq=3), *entries], **config)
    assert answer["state"]["messages"] == 3
    client = box.client()
    assert "error" not in client.api("STREAM.UPDATE.R", {"name": "R", **config, "allow_msg_ttl": True})
    box.advance(2 * SECOND)
    assert [row[2].split()[2] for row in rows(box, "R")] == [b"never", b"x"]
    box.advance(2000 * SECOND)
    assert [row[2].split()[2] for row in rows(box, "R")] == [b"never"]


def test_a_start_with_the_last_of_each_subject_goes_on() -> None:
    """The format of nats-server's consumer records cannot express this."""
    box = start()
    client = filled(box)
    config = {
        "durable_name": "D",
        "ack_policy": "explicit",
        "deliver_policy": "last_per_subject",
        "filter_subject": "S.>",
    }
    client.api("CONSUMER.CREATE.S.D", {"stream_name": "S", "config": config})
    client.publish(b"$JS.API.CONSUMER.MSG.NEXT.S.D", b"2", b"_B.m")
    box.run()
    first = [delivery.subject for delivery in answers(client)]
    data = back_up(box, client)
    client.api("STREAM.DELETE.S")
    subject = begin(client, "S", subjects=["S.>"])
    client.publish(subject, data, b"_B.r")
    client.publish(subject, b"", b"_B.r")
    box.run()
    answers(client)
    client.publish(b"$JS.API.CONSUMER.MSG.NEXT.S.D", b"9", b"_B.m")
    box.run()
    assert sorted(first + [delivery.subject for delivery in answers(client)]) == [
        b"S.0",
        b"S.1",
        b"S.2",
        b"S.3",
    ]


class TestSending:
    def test_publishers_continue_meanwhile(self) -> None:
        """Messages stored after the start are not in the backup, nor those removed before they are read."""
        box = start()
        client = filled(box, count=600)
        client.send(b"SUB _B.s 8\r\n")
        client.publish(
            b"$JS.API.STREAM.SNAPSHOT.S",
            b'{"deliver_subject":"_B.s","chunk_size":1024,"window_size":1024}',
            b"_B.a",
        )
        box.step()
        for _ in range(50):
            client.publish(b"S.new", b"new")
        client.api("STREAM.PURGE.S", {"filter": "S.1"})
        data = b""
        while True:
            box.run()
            arrived = [delivery for delivery in client.take() if delivery.sid == b"8"]
            for delivery in arrived:
                data += delivery.payload
                if delivery.reply:
                    client.publish(delivery.reply)
            if arrived and not arrived[-1].payload:
                break
        subject = begin(client)
        client.publish(subject, data, b"_B.r")
        client.publish(subject, b"", b"_B.r")
        box.run()
        log = box.jetstream.streams["R"].log
        assert log.get_subject_count(b"S.new") == 0
        assert log.get_subject_count(b"S.2") == 150
        assert log.last_seq == 600

    def test_a_backup_ends_when_its_receiver_leaves(self) -> None:
        box = start()
        client = filled(box, count=600)
        other = box.client()
        other.send(b"SUB far 9\r\n")
        client.api("STREAM.SNAPSHOT.S", {"deliver_subject": "far", "chunk_size": 1024, "window_size": 1024})
        box.run()
        other.send(b"UNSUB 9\r\n")
        box.advance(4 * SECOND)
        assert box.jetstream.backups == set()

    def test_a_backup_without_receiver_ends(self) -> None:
        box = start()
        client = filled(box)
        client.api("STREAM.SNAPSHOT.S", {"deliver_subject": "_B.x.y.z"})
        box.advance(SECOND)
        client.send(b"UNSUB 7\r\n")
        client.api("STREAM.SNAPSHOT.S", {"deliver_subject": "nobody"})
        box.advance(3 * SECOND)
        assert box.jetstream.backups == set()

    def test_it_waits_for_its_receiver(self) -> None:
        box = start()
        client = filled(box)
        client.api("STREAM.SNAPSHOT.S", {"deliver_subject": "late"})
        box.advance(SECOND)
        client.send(b"SUB late 9\r\n")
        box.advance(SECOND)
        assert [bool(delivery.payload) for delivery in client.take() if delivery.sid == b"9"] == [True, False]

    def test_a_backup_ends_when_its_stream_is_deleted(self) -> None:
        box = start()
        client = filled(box, count=600)
        client.api("STREAM.SNAPSHOT.S", {"deliver_subject": "_B.o", "chunk_size": 1024, "window_size": 1024})
        box.run()
        client.api("STREAM.DELETE.S")
        first = answers(client)[0]
        client.publish(first.reply)
        box.run()
        assert answers(client)[-1].header == b"NATS/1.0 500 stream closed\r\n\r\n"
        assert box.jetstream.backups == set()

    def test_not_too_many_at_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(backup_send, "CONCURRENT_MAX", 1)
        monkeypatch.setattr(restore_receiver, "CONCURRENT_MAX", 1)
        box = start()
        client = filled(box)
        client.api("STREAM.SNAPSHOT.S", {"deliver_subject": "nobody"})
        assert client.api("STREAM.SNAPSHOT.S", {"deliver_subject": "x"})["error"]["err_code"] == 10064
        begin(client)
        assert client.api("STREAM.RESTORE.Q", {"config": {"name": "Q"}})["error"]["err_code"] == 10062


def test_the_server_ends_meanwhile() -> None:
    """No timer fires any more, and the next start finds nothing of the restore."""
    box = start()
    client = filled(box, count=600)
    data = back_up(box, client)
    client.api("STREAM.SNAPSHOT.S", {"deliver_subject": "_B.o", "chunk_size": 1024, "window_size": 1024})
    subject = begin(client)
    client.publish(subject, data[:-100], b"_B.r")
    box.run()
    assert "R" in box.store.logs
    box.jetstream.backups.add(
        backup_send.BackupSender(
            box.jetstream.streams["S"], SnapshotRequest(deliver_subject="x"), ClientInfo()
        )
    )
    box.jetstream.close()
    assert box.jetstream.backups == set()
    box.advance(20 * SECOND)
    again = start(box.disk, box.clock)
    again.run()
    assert list(again.jetstream.streams) == list(again.store.logs) == ["S"]


def test_a_full_account_takes_no_restore() -> None:
    box = start()
    client = filled(box, count=600)
    data = back_up(box, client)
    used = box.jetstream.quota.usage("file")[0]
    box.jetstream.quota.set_limits(JetStreamLimits(max_storage=used + used // 2))
    subject = begin(client)
    client.publish(subject, data, b"_B.r")
    client.publish(subject, b"", b"_B.r")
    box.run()
    assert json.loads(answers(client)[-1].payload)["error"]["err_code"] == 10062
    assert "R" not in box.store.logs
