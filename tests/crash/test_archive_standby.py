"""`headrace serve --standby` with an archive: the server is killed or stopped, and a standby takes over with all of it."""

from __future__ import annotations

import json
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from claims.object_stores import Weed
from conformance.client import Client
from support.cluster import Cluster
from support.takeovers import (
    FOLLOWING,
    READY,
    DeliveryWatch,
    Load,
    Node,
    Nodes,
    find_lost,
    kill_leaders,
    set_up,
)

#: 20 s until the leader object counts as stale, and the start of a server on a machine that is busy.
TAKEOVER_S = 120.0


@pytest.mark.timeout(600)
def test_a_standby_takes_over_and_a_killed_leader_follows(tmp_path: Path, record_property: Any) -> None:
    takeovers = kill_leaders(tmp_path, f"file://{tmp_path / 'archive'}", 1)
    record_property("takeover, s", [round(each, 2) for each in takeovers])
    assert max(takeovers) < TAKEOVER_S, takeovers


@pytest.fixture
def weed(monkeypatch: pytest.MonkeyPatch) -> Iterator[Weed]:
    store = Weed()
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", store.KEYS["access_key_id"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", store.KEYS["secret_access_key"])
    monkeypatch.setenv("AWS_ENDPOINT_URL", store.endpoint)
    try:
        yield store
    finally:
        store.close()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_standby_takes_over_with_an_object_store(tmp_path: Path, weed: Weed) -> None:
    kill_leaders(tmp_path, f"s3://standby-{time.time_ns()}/prod", 2)


@pytest.mark.slow
@pytest.mark.xdist_group("cluster")
@pytest.mark.timeout(600)
def test_a_standby_takes_over_with_a_cluster(tmp_path: Path) -> None:
    with Cluster(tmp_path / "cluster") as cluster:
        hosts = ",".join(f"127.0.0.1:{node.port}" for node in cluster.nodes)
        kill_leaders(tmp_path, f"nats://{hosts}/STANDBY", 1, 300)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_woken_leader_neither_acknowledges_nor_delivers(tmp_path: Path) -> None:
    with Nodes(tmp_path, f"file://{tmp_path / 'archive'}", 3) as nodes:
        former = nodes.start_all()
        with Client(former.serving.port) as client:
            set_up(client)
            for number in range(50):
                client.request("w", b"%d" % number)
        watch = DeliveryWatch(former.serving.port)
        load = Load(former.serving.port, 0)
        load.start()
        load.wait_for(300)
        watch.start()
        former.serving.signal(signal.SIGSTOP)
        leader = nodes.wait_for_leader(former)
        stored = dict(load.stored)
        watch.request_more()
        watch.is_late.set()
        former.serving.signal(signal.SIGCONT)
        assert former.serving.ended() == 1, former.log
        load.join()
        assert load.stored == stored, "acknowledged after another server had taken over"
        assert watch.ended.wait(120)
        assert not watch.late, "delivered after another server had taken over"
        assert "stops and acknowledges nothing more" in former.log
        assert not find_lost(leader.serving.port, [load])
        others = [node for node in nodes.all if node not in (leader, former)]
        assert not any(node.is_ready for node in others), "exactly one standby takes over"
        former.start()
        former.wait_for(FOLLOWING)
        assert READY not in former.log
        assert others[0].health()["ready"]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_standby_that_was_restarted_continues_and_takes_over(tmp_path: Path) -> None:
    with Nodes(tmp_path, f"file://{tmp_path / 'archive'}", 2) as nodes:
        leader = nodes.start_all()
        standby = nodes.all[1]
        with Client(leader.serving.port) as client:
            set_up(client)
        load = Load(leader.serving.port, 0)
        load.start()
        load.wait_for(300)
        standby.kill()
        load.wait_for(600)
        standby.start()
        standby.wait_for("Standby: following ")
        assert standby.fetch("/healthz")[0] == 503
        assert standby.fetch("/varz")[0] == 200
        assert "headrace_standby_ready 1" in standby.fetch("/metrics")[1]
        load.wait_for(900)
        leader.serving.signal(signal.SIGTERM)  # everything is sent, and the standby need not wait
        assert leader.serving.ended() == 0, leader.log
        nodes.wait_for_leader(leader)
        load.join()
        assert not find_lost(standby.serving.port, [load])
        assert json.loads(standby.fetch("/varz")[1])["standby"] is False


def test_a_second_server_is_refused_and_a_copy_is_not_served(tmp_path: Path) -> None:
    with Nodes(tmp_path, f"file://{tmp_path / 'archive'}", 2) as nodes:
        leader = nodes.start_all()
        standby = nodes.all[1]
        standby.serving.signal(signal.SIGTERM)
        assert standby.serving.ended() == 0
        standby.start(is_standby=False)
        assert standby.serving.ended() == 1
        assert "start with --standby" in standby.log
        assert leader.is_ready


def _publish(node: Node, count: int) -> int:
    with Client(node.serving.port) as client:
        return [client.request("s", b"message").json["seq"] for _ in range(count)][-1]


@pytest.mark.timeout(300)
def test_a_disk_that_goes_back_is_not_served_but_rebuilt(tmp_path: Path) -> None:
    """A snapshot of the machine is put back: acknowledged messages are in the archive only."""
    with Nodes(tmp_path, f"file://{tmp_path / 'archive'}", 1) as nodes:
        node = nodes.start_all()
        data, copy = node.folder / "data", node.folder / "copy"
        with Client(node.serving.port) as client:
            set_up(client)
        assert _publish(node, 5) == 5
        node.serving.signal(signal.SIGSTOP)
        shutil.copytree(data, copy)
        node.serving.signal(signal.SIGCONT)
        assert _publish(node, 5) == 10
        node.serving.signal(signal.SIGTERM)
        assert node.serving.ended() == 0, node.log
        shutil.rmtree(data)
        copy.rename(data)
        for _ in range(2):
            node.start(is_standby=False)
            assert node.serving.ended() == 1, node.log
            assert "not on this disk" in node.log
        node.start()
        node.wait_for(READY)
        assert "rebuilds its stores from the archive" in node.log
        assert _publish(node, 1) == 11


@pytest.mark.timeout(300)
def test_a_waiting_standby_handles_the_signals_of_a_server(tmp_path: Path) -> None:
    with Nodes(tmp_path, f"file://{tmp_path / 'archive'}", 2) as nodes:
        leader, standby = nodes.start_all(), nodes.all[1]
        with (standby.folder / "server.conf").open("a") as file:
            file.write("max_payload: 54321\n")
        standby.serving.signal(signal.SIGHUP)
        standby.wait_for("Reloaded server configuration")
        with (standby.folder / "server.conf").open("a") as file:
            file.write("max_payload: -\n")
        standby.serving.signal(signal.SIGUSR1)
        standby.serving.signal(signal.SIGHUP)
        standby.wait_for("Failed to reload the configuration")
        leader.serving.signal(signal.SIGTERM)
        assert leader.serving.ended() == 0, leader.log
        nodes.wait_for_leader(leader)
        with Client(standby.serving.port) as client:
            assert client.info["max_payload"] == 54321
        leader.start()
        leader.wait_for(FOLLOWING)
        leader.serving.signal(signal.SIGUSR2)
        assert leader.serving.ended() == 0, leader.log
