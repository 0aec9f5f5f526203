"""Tables of work-queue and interest streams, on both servers: messages leave the stream when they are in the table."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conformance.client import Client
from conformance.servers import Server
from headrace.errors import HeadraceError, StreamGap
from headrace.tables.stream_range import StreamRangeReader, make_consumer_name
from headrace.tables.worker import TableWorker
from support.table_landing import Landing, run_cli
from support.tables import read_seqs

MakeStream = Callable[..., dict[str, Any]]


@pytest.fixture
def landing(server: Server, client: Client, name: str, tmp_path: Path) -> Landing:
    return Landing(server, client, name, tmp_path)


def count_messages(landing: Landing) -> int:
    return int(landing.client.api(f"STREAM.INFO.{landing.name}")["state"]["messages"])


def register(landing: Landing) -> None:
    reader = StreamRangeReader(landing.config, landing.connection, landing.name)
    reader.check_stream()
    reader.close()


@pytest.mark.parametrize("retention", ["workqueue", "interest"])
@pytest.mark.parametrize("allow_direct", [True, False], ids=["direct", "leader"])
def test_messages_leave_the_stream_when_they_are_in_the_table(
    landing: Landing, make_stream: MakeStream, retention: str, allow_direct: bool
) -> None:
    make_stream(retention=retention, allow_direct=allow_direct)
    landing.make_table()
    register(landing)
    landing.publish(5)
    assert count_messages(landing) == 5
    assert landing.land().rows == 5
    assert count_messages(landing) == 0
    assert landing.land().rows == 0
    landing.publish(3)
    assert landing.land().rows == 3
    assert read_seqs(landing.config) == list(range(1, 9))
    assert landing.verify() == []


@pytest.mark.parametrize("retention", ["workqueue", "interest"])
def test_a_range_with_several_commits_is_complete(
    landing: Landing, make_stream: MakeStream, retention: str
) -> None:
    """The messages of a commit are acknowledged while the server sends the next block."""
    make_stream(retention=retention, allow_direct=True)
    landing.make_table(commit_bytes="1MiB")
    register(landing)
    landing.publish(60, size=400_000)
    # Without a reconnect: a request whose replies were taken away would fail.
    landing.connection |= {"reconnect": "0s", "timeout": "60s"}
    stats = landing.land()
    assert (stats.rows, stats.commits >= 3) == (60, True)
    assert read_seqs(landing.config) == list(range(1, 61))
    assert count_messages(landing) == 0


def test_a_worker_that_dies_before_it_acknowledges_duplicates_nothing(
    landing: Landing, make_stream: MakeStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_stream(retention="workqueue", allow_direct=True)
    landing.make_table()
    landing.publish(5)

    def die(reader: StreamRangeReader, position: Any) -> None:
        raise ConnectionError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(StreamRangeReader, "on_committed", die)
        with pytest.raises(ConnectionError):
            landing.land()
    assert (read_seqs(landing.config), count_messages(landing)) == ([1, 2, 3, 4, 5], 5)
    landing.publish(2)
    assert landing.land().rows == 2
    assert (read_seqs(landing.config), count_messages(landing)) == (list(range(1, 8)), 0)


def test_nothing_is_acknowledged_that_is_not_in_the_table(
    landing: Landing, make_stream: MakeStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_stream(retention="workqueue", allow_direct=True)
    landing.make_table()
    landing.publish(5)

    def fail(worker: TableWorker, *arguments: Any) -> None:
        raise ConnectionError("the catalog is away")

    with monkeypatch.context() as patch:
        patch.setattr(TableWorker, "_commit", fail)
        with pytest.raises(ConnectionError):
            landing.land()
    assert count_messages(landing) == 5
    landing.land()
    assert (read_seqs(landing.config), count_messages(landing)) == ([1, 2, 3, 4, 5], 0)


@pytest.mark.parametrize("step", ["plan", "read"])
def test_what_a_second_worker_wrote_meanwhile_is_no_gap(
    landing: Landing, make_stream: MakeStream, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """It commits and acknowledges before the first worker asks the stream, or before it reads the rows."""
    make_stream(retention="workqueue", allow_direct=True)
    landing.make_table()
    landing.publish(2)
    landing.land()
    landing.publish(3)
    original = getattr(StreamRangeReader, step)
    second: list[int] = []

    def overtake(reader: StreamRangeReader, *arguments: Any) -> Any:
        if not second:
            second.append(0)
            second[0] = landing.land().rows
        return original(reader, *arguments)

    monkeypatch.setattr(StreamRangeReader, step, overtake)
    assert (landing.land().rows, second) == (0, [3])
    assert (read_seqs(landing.config), count_messages(landing)) == ([1, 2, 3, 4, 5], 0)


def test_messages_that_another_program_took_are_a_gap(landing: Landing, make_stream: MakeStream) -> None:
    make_stream(retention="workqueue", allow_direct=True)
    landing.make_table()
    landing.publish(2)
    landing.land()
    landing.publish(3)
    landing.client.api(f"STREAM.MSG.DELETE.{landing.name}", {"seq": 3})
    with pytest.raises(StreamGap, match="3 to 3 were removed"):
        landing.land()


def test_messages_that_are_acknowledged_meanwhile_do_not_disturb_a_verification(
    landing: Landing, make_stream: MakeStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_stream(retention="workqueue", allow_direct=True)
    landing.make_table()
    landing.publish(5)
    with monkeypatch.context() as patch:
        patch.setattr(StreamRangeReader, "on_committed", lambda reader, position: None)
        landing.land()
    read = StreamRangeReader.read_stored

    def acknowledge_first(reader: StreamRangeReader, *arguments: Any, **options: Any) -> Any:
        monkeypatch.setattr(StreamRangeReader, "read_stored", read)
        landing.land()
        return read(reader, *arguments, **options)

    monkeypatch.setattr(StreamRangeReader, "read_stored", acknowledge_first)
    assert landing.verify() == []
    assert count_messages(landing) == 0


@pytest.mark.parametrize("first", [5, 6])
def test_messages_that_are_removed_before_they_are_read_are_a_gap(
    landing: Landing, make_stream: MakeStream, monkeypatch: pytest.MonkeyPatch, first: int
) -> None:
    """A purge of some or all of a range, after it was planned: they were not acknowledged for the table."""
    make_stream(retention="workqueue", allow_direct=True)
    landing.make_table()
    landing.publish(2)
    landing.land()
    landing.publish(3)
    read = StreamRangeReader.read

    def purge_once(reader: StreamRangeReader, *arguments: Any) -> Any:
        monkeypatch.setattr(StreamRangeReader, "read", read)
        landing.client.api(f"STREAM.PURGE.{landing.name}", {"seq": first})
        return read(reader, *arguments)

    monkeypatch.setattr(StreamRangeReader, "read", purge_once)
    with pytest.raises(StreamGap, match=f"3 to {first - 1} were removed"):
        landing.land()
    assert read_seqs(landing.config) == [1, 2]


def test_a_work_queue_with_another_consumer_is_refused(landing: Landing, make_stream: MakeStream) -> None:
    make_stream(retention="workqueue", allow_direct=True)
    landing.make_table()
    config = {"durable_name": "other", "ack_policy": "explicit"}
    landing.client.api(
        f"CONSUMER.CREATE.{landing.name}.other", {"stream_name": landing.name, "config": config}
    )
    landing.publish(2)
    with pytest.raises(HeadraceError, match="workqueue"):
        landing.land()
    assert (read_seqs(landing.config), count_messages(landing)) == ([], 2)


def test_the_command_line_registers_and_removes_the_consumer(
    landing: Landing, make_stream: MakeStream
) -> None:
    make_stream(retention="interest", allow_direct=True)
    name = landing.name
    where = ["--catalog", "sqlite:///lake/catalog.db", "--warehouse", "lake/files"]
    assert run_cli(landing, "add", name, "--table", "shop.orders", *where)[0] == 0
    landing.publish(3)
    assert count_messages(landing) == 3
    assert run_cli(landing, "run", "--once")[0] == 0
    assert count_messages(landing) == 0
    names = landing.client.api(f"CONSUMER.NAMES.{name}")["consumers"]
    assert names == [make_consumer_name(name)]
    assert run_cli(landing, "rm", name)[0] == 0
    assert landing.client.api(f"CONSUMER.NAMES.{name}")["consumers"] in ([], None)
