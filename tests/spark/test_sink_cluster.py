"""The sink on a cluster of three nats-servers, while nodes are killed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from headrace.reader.blocking_connection import ServerAddress, drop_connection
from headrace.reader.stream_admin import with_retry
from headrace.spark.write.direct_writer import DirectWriter
from headrace.spark.write.encode_rows import RawMessage
from headrace.spark.write.epoch_publisher import EpochPublisher
from headrace.spark.write.stored_rows import iter_target
from headrace.spark.write.window_sender import SentWindow, Window, WindowSender
from headrace.spark.write.write_options import WriteOptions, adapt_to_stream
from headrace.spark.write.write_target import WriteTarget
from spark.sink_cases import rows, stage
from support.cluster import Cluster

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("cluster")) as made:
        yield made


@pytest.fixture
def place(cluster: Cluster, name: str) -> Iterator[WriteTarget]:
    config = {
        "name": name,
        "subjects": [f"{name}.>"],
        "num_replicas": 3,
        "allow_atomic": True,
        "allow_direct": True,
    }
    cluster.api(f"STREAM.CREATE.{name}", config)
    address = ServerAddress(servers=tuple(cluster.urls.split(",")), timeout_s=5.0)
    options = adapt_to_stream(WriteOptions(address, name, reconnect_s=90.0))
    yield replace(options.make_target("q", 4), batch_messages=20)
    for connection in ("", "headrace-staging", "headrace-progress"):
        drop_connection(replace(address, name=connection))


def stored(place: WriteTarget) -> list[int]:
    found = with_retry(
        place.address,
        60.0,
        lambda connection: [int(each.payload) for each in iter_target(connection, place, 0)],
    )
    return sorted(found)


def kill_leader(cluster: Cluster, stream: str) -> None:
    """Kill the node that leads a stream, and start it again."""
    node = cluster.leader_of(stream)
    node.kill()
    node.start()


def test_staged_rows_are_written_once_while_leaders_are_killed(
    cluster: Cluster, place: WriteTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = cluster.api(f"STREAM.INFO.{place.staging_stream}")["config"]
    assert info["num_replicas"] == 3

    def interrupted() -> Iterator[RawMessage]:
        for number, each in enumerate(rows(3000, place.stream)):
            if number == 1500:
                kill_leader(cluster, place.staging_stream)
            yield each

    attempts = stage(place, interrupted())
    send, sent = WindowSender.send, 0

    def killing(sender: WindowSender, window: Window) -> SentWindow:
        nonlocal sent
        sent += 1
        if sent == 40:
            found = send(sender, window)
            kill_leader(cluster, place.stream)
            return found
        return send(sender, window)

    monkeypatch.setattr(WindowSender, "send", killing)
    EpochPublisher(place).commit(attempts)
    assert stored(place) == list(range(3000))
    EpochPublisher(place).commit([])
    assert stored(place) == list(range(3000))


def test_rows_with_ids_are_written_once_while_the_leader_is_killed(
    cluster: Cluster, place: WriteTarget
) -> None:
    def interrupted() -> Iterator[RawMessage]:
        for number, (subject, _, payload) in enumerate(rows(2500, place.stream)):
            if number == 1200:
                kill_leader(cluster, place.stream)
            yield subject, b"Nats-Msg-Id: %d\r\n" % number, payload

    DirectWriter(place, needs_ids=True).publish(interrupted())
    assert stored(place) == list(range(2500))
