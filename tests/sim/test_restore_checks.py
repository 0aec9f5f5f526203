"""Restores of archives with unusual content are rejected as a whole, or do no harm."""

from __future__ import annotations

import json
from typing import Any

import pytest

from headrace.broker.commit.server_quota import ServerQuota
from headrace.broker.handlers.api_dispatch import MANY_PATTERNS
from headrace.broker.operation_runner import run_at_once
from headrace.protocol import headers
from headrace.protocol.backup_archive import ArchiveWriter, BackupEntry
from headrace.sim import SimDisk
from headrace.sim.sim_broker import SimBroker

from .store_sizes import SIZES

SECOND = 1_000_000_000


def start() -> SimBroker:
    broker = SimBroker(SimDisk(), SIZES[0])
    broker.start()
    broker.run_until_idle()
    return broker


def restored(broker: SimBroker, *entries: BackupEntry, **config: Any) -> Any:
    """Restore these entries; return the final reply."""
    packer = ArchiveWriter()
    data = b"".join(packer.add(entry) for entry in entries) + packer.finish()
    wanted = {"name": "R", "subjects": ["r"], **config}
    subject = broker.call("STREAM.RESTORE.R", config=wanted)["deliver_subject"]
    broker.publish(subject, data)
    number = broker.publish(subject, b"")
    broker.run_until_idle()
    return broker.replies[number].json


def state(last_seq: int, consumers: int = 0) -> BackupEntry:
    fields = {"first_seq": 1, "last_seq": last_seq, "messages": last_seq, "consumer_count": consumers}
    return BackupEntry(b"state.json", 0, 0, b"", json.dumps(fields).encode())


def test_a_message_that_cannot_be_stored_fails_the_restore() -> None:
    broker = start()
    answer = restored(
        broker, state(2), BackupEntry(b"r" * 70_000, 1, 1, b"", b"lost?"), BackupEntry(b"r", 2, 2, b"", b"")
    )
    assert answer["error"]["err_code"] == 10062
    assert broker.jetstream.streams == broker.jetstream.restores == broker.store.logs == {}


@pytest.mark.parametrize("seq", ["²", "9" * 30, "9" * 5000])
def test_a_copy_that_names_no_position_is_a_message_like_others(seq: str) -> None:
    broker = start()
    block = headers.build([(b"Nats-Stream-Source", f"S {seq} x > >".encode())])
    assert "error" not in restored(broker, state(1), BackupEntry(b"r", 1, 1, block, b"x"))
    number = broker.publish("r", b"more")
    broker.run_until_idle()
    assert broker.replies[number].json["seq"] == 2


def test_a_schedule_that_asks_for_nonsense_does_not_stop_the_others() -> None:
    broker = start()
    bad = [(b"Nats-Schedule", b"@every 1s"), (b"Nats-Schedule-Target", b"r.t"), (b"Nats-Schedule-TTL", b"?")]
    entry = BackupEntry(b"r.bad", broker.clock.now_ns(), 1, headers.build(bad), b"")
    config = {
        "subjects": ["r.>"],
        "allow_msg_schedules": True,
        "allow_msg_ttl": True,
        "allow_rollup_hdrs": True,
    }
    assert "error" not in restored(broker, state(1), entry, **config)
    broker.publish("r.good", b"", Nats_Schedule="@every 2s", Nats_Schedule_Target="r.told")
    broker.advance(5 * SECOND)
    assert broker.jetstream.streams["R"].log.get_subject_count(b"r.told") == 2


def test_a_restore_stays_within_what_the_server_may_keep() -> None:
    broker = start()
    quota = broker.jetstream.quota
    quota.server_quota.remove_account(quota)
    quota.server_quota = ServerQuota(storage=5000)
    quota.server_quota.add_account(quota)
    messages = [BackupEntry(b"r", seq, seq, b"", bytes(1000)) for seq in range(1, 11)]
    assert restored(broker, state(10), *messages)["error"]["err_code"] == 10062
    assert broker.store.logs == {}
    assert "error" not in restored(broker, state(3), *messages[:3])


SUBJECTS = [f"r.{number}.*" for number in range(MANY_PATTERNS + 1)]


def start_large_restore(broker: SimBroker, monkeypatch: pytest.MonkeyPatch) -> tuple[int, list[Any]]:
    """Restore a stream of many subjects up to its last validation; return its reply's number, and the call to make."""
    packer, calls = ArchiveWriter(), list[Any]()
    data = b"".join(packer.add(entry) for entry in (state(1), BackupEntry(b"r.1.x", 1, 1, b"", b"x")))
    config = {"name": "R", "subjects": SUBJECTS}
    subject = broker.call("STREAM.RESTORE.R", config=config)["deliver_subject"]
    broker.publish(subject, data + packer.finish())
    monkeypatch.setattr(broker.jetstream, "run_off_loop", lambda *call: calls.append(call))
    number = broker.publish(subject, b"")
    broker.run_until_idle()
    assert number not in broker.replies
    return number, calls


def make_call(broker: SimBroker, calls: list[Any]) -> None:
    call, on_done = calls.pop()
    run_at_once(call, on_done)
    broker.run_until_idle()


def test_many_subjects_are_validated_off_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = start()
    number, calls = start_large_restore(broker, monkeypatch)
    assert "error" in broker.call("STREAM.CREATE.R", name="R", subjects=["other"]), "the name is taken"
    make_call(broker, calls)
    assert broker.replies[number].json["config"]["subjects"] == SUBJECTS
    assert broker.call("STREAM.INFO.R")["state"]["messages"] == 1
    assert not calls


def test_subjects_that_are_taken_during_the_validation_fail_the_restore(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broker = start()
    assert "error" not in broker.call("STREAM.CREATE.T", name="T", subjects=["t"])
    number, calls = start_large_restore(broker, monkeypatch)
    assert "error" not in broker.call("STREAM.UPDATE.T", name="T", subjects=["t", "r.7.x"])
    make_call(broker, calls)
    assert number not in broker.replies, "it is validated again"
    make_call(broker, calls)
    assert broker.replies[number].json["error"]["err_code"] == 10062
    assert list(broker.jetstream.streams) == list(broker.store.logs) == ["T"]


def test_a_restore_that_ends_during_the_validation_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = start()
    number, calls = start_large_restore(broker, monkeypatch)
    broker.jetstream.restores["R"].fail("stopped")
    make_call(broker, calls)
    assert broker.replies[number].json["error"]["err_code"] == 10062
    assert broker.jetstream.streams == broker.jetstream.restores == broker.store.logs == {}
