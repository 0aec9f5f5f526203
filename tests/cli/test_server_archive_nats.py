"""Servers with an archive in a cluster of three nats-servers: nodes are killed in the middle, nothing is missing."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from conformance.client import Client
from support.cluster import Cluster
from support.processes import headrace, serving

from .test_server_archive import check_moments, configure, note_moment, wait_archived
from .test_server_backup import Load, run_tool, set_up

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("cluster"), pytest.mark.timeout(600)]

_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("cluster")) as made:
        yield made


@pytest.fixture
def url(cluster: Cluster) -> str:
    hosts = ",".join(f"127.0.0.1:{node.port}" for node in cluster.nodes)
    return f"nats://{hosts}/ARCHIVE{os.getpid()}_{next(_numbers)}"


def test_a_node_is_killed_under_load_and_everything_is_restored(
    tmp_path: Path, cluster: Cluster, url: str
) -> None:
    stream = url.rpartition("/")[2]
    assert run_tool("archive", "check", url)["rounds"] == 20
    with serving(tmp_path, *configure(tmp_path, url)) as server:
        with Client(server.port) as client:
            set_up(client)
        assert cluster.api(f"STREAM.INFO.{stream}")["config"]["num_replicas"] == 3
        load = Load(server.port)
        load.start()
        load.wait_for(500)
        load.stop()
        moments = [note_moment(server)]
        load = Load(server.port, 1)
        load.start()
        load.wait_for(500)
        for name in (stream, f"{stream}_objects"):
            node = cluster.leader_of(name)
            node.kill()
            load.wait_for(len(load.acked) + 500)
            node.start()
            cluster.await_meta_leader(node)
        load.stop()
        moments.append(note_moment(server))
        server.signal(signal.SIGKILL)
        server.ended()
    shutil.rmtree(tmp_path / "data")
    assert run_tool("archive", "verify", url)["problems"] == []
    (listed,) = {
        (each["server"], each["last_epoch"])
        for each in json.loads(headrace("archive", "list", url, "--json").stdout)
    }
    assert listed[1] == 1
    check_moments(tmp_path, url, moments)
    assert run_tool("archive", "trim", url, "--keep", "1s")["floor"] >= 0
    assert run_tool("archive", "verify", url)["problems"] == []


def test_a_second_server_needs_a_stream_of_its_own(tmp_path: Path, url: str) -> None:
    with serving(tmp_path, *configure(tmp_path, url)) as server:
        wait_archived(server)
    other = tmp_path / "other"
    other.mkdir()
    result = headrace("serve", *configure(other, url), "-p", "-1")
    assert result.returncode == 1
    assert "use another stream for each server" in result.stdout + result.stderr


def test_a_stream_with_one_replica_is_refused(tmp_path: Path, cluster: Cluster, url: str) -> None:
    stream = url.rpartition("/")[2]
    subjects = [f"headrace.archive.{stream}.log.*"]
    cluster.api(f"STREAM.CREATE.{stream}", {"name": stream, "subjects": subjects, "discard": "new"})
    result = headrace("archive", "check", url)
    assert result.returncode != 0
    assert "has 1 replicas" in result.stderr
