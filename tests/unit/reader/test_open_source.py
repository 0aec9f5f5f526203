"""One function chooses how a stream is read; a partition contains everything needed to read it."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from headrace.reader import stream_admin
from headrace.reader.batch_cast import SeqRange
from headrace.reader.broker_sources import HttpSource, ServerSource, SharedDiskSource
from headrace.reader.http_snapshot import PinAccess
from headrace.reader.last_per_subject import SubjectsPartition
from headrace.reader.offline_source import OfflineSource
from headrace.reader.open_source import open_source
from headrace.reader.options import parse_read_options
from headrace.reader.partitions import Partition, ServerPartition, SnapshotPartition
from headrace.reader.read_method import ReadMethod
from headrace.reader.snapshot_reader import DiskPin
from headrace.reader.stream_admin import StreamInfo

SERVER = {"servers": "nats://127.0.0.1:1"}


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        ({}, ServerSource),
        (SERVER, ServerSource),
        ({**SERVER, "path": "."}, SharedDiskSource),
        ({**SERVER, "path": "http://127.0.0.1:1"}, HttpSource),
        ({"path": "."}, OfflineSource),
    ],
)
def test_options_select_the_source_without_a_request(given: dict[str, str], kind: type) -> None:
    source = open_source(parse_read_options({"stream": "S", **given}))
    assert type(source) is kind
    assert type(pickle.loads(pickle.dumps(source))) is kind


@pytest.mark.parametrize(
    "partition",
    [
        ServerPartition(SeqRange(1, 9, 1)),
        SubjectsPartition(SeqRange(1, 9), ("a", "b")),
        SnapshotPartition(SeqRange(1, 9), DiskPin("/store", "S", "p1"), b"\1" * 8),
        SnapshotPartition(SeqRange(1, 9), PinAccess("http://h", "S", "p1", "secret")),
    ],
)
def test_a_partition_is_a_value_that_can_be_sent_and_shown(partition: Partition) -> None:
    assert pickle.loads(pickle.dumps(partition)) == partition
    assert "secret" not in repr(partition)


def test_a_source_plans_partitions_of_its_own_kind() -> None:
    for given, files in (
        ({**SERVER, "path": "."}, DiskPin(".", "S", "p1")),
        ({"path": "."}, DiskPin(".", "S", "p1")),
    ):
        source = open_source(parse_read_options({"stream": "S", "minPartitions": "2", **given}))
        halves = [SnapshotPartition(SeqRange(1, 5, 1), files), SnapshotPartition(SeqRange(5, 9, 1), files)]
        assert source.plan(SeqRange(1, 9, 1), "p1") == halves


@pytest.mark.parametrize(
    ("config", "method"),
    [
        ({"allow_direct": True, "retention": "workqueue"}, ReadMethod.DIRECT_GET),
        ({"allow_direct": False, "retention": "limits"}, ReadMethod.PULL),
        ({"retention": "interest"}, ReadMethod.LEADER),
    ],
)
def test_a_server_is_read_in_the_fastest_way_that_the_stream_allows(
    monkeypatch: pytest.MonkeyPatch, config: dict[str, Any], method: ReadMethod
) -> None:
    stream_info = StreamInfo("S", "", 1, 9, 8, 80, config)
    monkeypatch.setattr(stream_admin, "fetch_info", lambda options: stream_info)
    source = open_source(parse_read_options({"stream": "S", **SERVER}))
    assert source.plan(SeqRange(1, 9, 1), "") == [ServerPartition(SeqRange(1, 9, 1), method)]
    assert source.plan(SeqRange(9, 9, 1), "") == []
    assert not source.has_pin("p1"), "a pin of an earlier run with files means nothing to direct gets"


def test_a_pin_that_is_gone_is_not_found_in_the_cache(pin: Any, make_rows: Any) -> None:
    pin.segment(make_rows(1, 10))
    manifest = pin.folder / "manifest"
    manifest.write_bytes(pin.manifest().encode())
    (pin.root / "lock").touch()
    source = open_source(parse_read_options({"stream": "S", "path": str(pin.root)}))
    files = DiskPin(str(pin.root), "S", "p1")
    assert files.open() is files.open()
    assert source.has_pin("p1")
    manifest.unlink()
    assert not source.has_pin("p1")
