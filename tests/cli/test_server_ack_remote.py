"""Servers with `ack: remote`: what they acknowledged is in the archive, whatever happens to the server or the store."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from claims.object_stores import Weed
from conformance.client import EOF, Client
from support.cluster import Cluster
from support.processes import headrace, serving

from .test_server_archive import WAIT_S, configure, read_health, read_metrics
from .test_server_backup import STREAMS, Load, run_tool, set_up

REMOTE = ", ack: remote"


class StoppingLoad(Load):
    """A load on a server that stops: the end of its streams, "no responders" without a body, is the end of the load."""

    def run(self) -> None:
        with contextlib.suppress(json.JSONDecodeError):
            super().run()


def read_messages(port: int) -> dict[tuple[str, int], bytes]:
    """Return the messages of the streams without removals."""
    found = {}
    with Client(port) as client:
        for name in STREAMS[:2]:
            state = client.api(f"STREAM.INFO.{name}")["state"]
            for seq in range(state["first_seq"], state["last_seq"] + 1):
                got = client.request(f"$JS.API.DIRECT.GET.{name}", b'{"seq":%d}' % seq)
                found[name, seq] = got.payload
    return found


def kill_and_restore(tmp_path: Path, url: str, count: int = 1500) -> None:
    """Kill a server under load, delete its directory, restore the archive: all that was acknowledged is there."""
    with serving(tmp_path, *configure(tmp_path, url, REMOTE)) as server:
        with Client(server.port) as client:
            set_up(client)
        loads = [Load(server.port, number) for number in range(3)]
        for load in loads:
            load.start()
        for load in loads:
            load.wait_for(count // 3)
        server.signal(signal.SIGKILL)
        server.ended()
        for load in loads:
            load.join()
    shutil.rmtree(tmp_path / "data")
    run_tool("archive", "restore", url, tmp_path / "restored")
    logs = tmp_path / "logs"
    logs.mkdir()
    with serving(logs, "-js", "-sd", str(tmp_path / "restored")) as server:
        found = read_messages(server.port)
    for load in loads:
        lost = {key for key, payload in load.acked.items() if found.get(key) != payload}
        assert not lost, (len(lost), len(load.acked), min(lost))


def test_a_server_killed_under_load_is_restored_from_the_archive_alone(tmp_path: Path) -> None:
    kill_and_restore(tmp_path, f"file://{tmp_path / 'archive'}")


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
def test_a_server_killed_under_load_is_restored_from_s3(tmp_path: Path, weed: Weed) -> None:
    url = f"s3://remote-{os.getpid()}/prod"
    assert run_tool("archive", "check", url)["rounds"] == 20
    kill_and_restore(tmp_path, url)


@pytest.mark.slow
@pytest.mark.xdist_group("cluster")
@pytest.mark.timeout(600)
def test_a_server_killed_under_load_is_restored_from_a_nats_cluster(tmp_path: Path) -> None:
    with Cluster(tmp_path / "cluster") as cluster:
        hosts = ",".join(f"127.0.0.1:{node.port}" for node in cluster.nodes)
        kill_and_restore(tmp_path, f"nats://{hosts}/REMOTE{os.getpid()}", 600)


def wait_until_stalled(load: Load) -> int:
    """Wait until nothing has been acknowledged for a second; return the number of acknowledgements."""
    deadline = time.monotonic() + 20
    count, since = -1, time.monotonic()
    while time.monotonic() - since < 1:
        if len(load.acked) != count:
            count, since = len(load.acked), time.monotonic()
        assert time.monotonic() < deadline, "acknowledged without the store"
        time.sleep(0.02)
    return count


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_store_that_hangs_delays_acknowledgements(tmp_path: Path, weed: Weed) -> None:
    """SeaweedFS is suspended for three seconds under load: no reply meanwhile, all of them afterwards."""
    with serving(tmp_path, *configure(tmp_path, f"s3://hang-{os.getpid()}/p", REMOTE)) as server:
        with Client(server.port) as client:
            set_up(client)
        load = Load(server.port)
        load.start()
        load.wait_for(200)
        weed._process.send_signal(signal.SIGSTOP)
        stalled = wait_until_stalled(load)  # replies to requests that were stored before may be on their way
        time.sleep(2.5)
        assert len(load.acked) == stalled
        weed._process.send_signal(signal.SIGCONT)
        load.wait_for(stalled + 400)
        load.stop()


def test_a_server_that_another_one_replaced_acknowledges_and_delivers_nothing_more(tmp_path: Path) -> None:
    url = f"file://{tmp_path / 'archive'}"
    with serving(tmp_path, *configure(tmp_path, url, REMOTE), may_stall=True) as first:  # noqa: SIM117
        with Client(first.port) as client, Client(first.port) as idle:
            client.api("STREAM.CREATE.S", {"name": "S", "subjects": ["s"]})
            client.request("s", b"1")
            sid = idle.subscribe("delivered")
            config = {"durable_name": "c", "deliver_subject": "delivered", "ack_policy": "none"}
            client.api("CONSUMER.DURABLE.CREATE.S.c", {"stream_name": "S", "config": config})
            assert idle.next(sid).payload == b"1"
            first.signal(signal.SIGSTOP)  # the copy has all that is archived
            other = tmp_path / "other"
            shutil.copytree(tmp_path / "data", other / "data")
            with serving(other, *configure(other, url, REMOTE)) as second:
                client.ask("s", b"2")
                first.signal(signal.SIGCONT)
                assert read_until_closed(client) == read_until_closed(idle) == []
                assert first.ended() == 1
                assert "fenced: group" in first.log
                with Client(second.port) as reader:
                    assert reader.api("STREAM.INFO.S")["state"]["last_seq"] == 1
    result = headrace("serve", *configure(tmp_path, url, REMOTE), "-p", "-1")
    assert result.returncode == 1


def read_until_closed(client: Client) -> list[bytes]:
    """Return the messages that come until the server closes the connection."""
    found = []
    while (frame := client.frame()) != EOF:
        if frame.startswith((b"MSG", b"HMSG")):
            found.append(frame)
    return found


def test_an_idle_server_notices_that_it_was_replaced(tmp_path: Path) -> None:
    url = f"file://{tmp_path / 'archive'}"
    with serving(tmp_path, *configure(tmp_path, url, REMOTE), may_stall=True) as first:
        first.signal(signal.SIGSTOP)
        other = tmp_path / "other"
        shutil.copytree(tmp_path / "data", other / "data")
        with serving(other, *configure(other, url, REMOTE)):
            first.signal(signal.SIGCONT)
            assert first.ended() == 1


def test_what_was_not_archived_when_a_server_was_killed_is_archived_before_the_next_start(
    tmp_path: Path,
) -> None:
    """The message is on the disk, and recovery shows it; so it must be in the archive before a client can see it."""
    url, folder = f"file://{tmp_path / 'archive'}", tmp_path / "archive"
    with serving(tmp_path, *configure(tmp_path, url, REMOTE + ", max_lag: 100ms")) as server:
        with Client(server.port) as client:
            client.api("STREAM.CREATE.S", {"name": "S", "subjects": ["s"], "allow_direct": True})
            folder.rename(tmp_path / "away")
            folder.write_text("not a folder")
            client.ask("s", b"unconfirmed")
            deadline = time.monotonic() + WAIT_S
            while not read_metrics(server)["headrace_archive_late"]:
                assert time.monotonic() < deadline, server.log
            assert "publishers wait for it" in str(read_health(server).get("complaints"))
        server.signal(signal.SIGKILL)
        server.ended()
    folder.unlink()
    (tmp_path / "away").rename(folder)
    logs = tmp_path / "logs"
    logs.mkdir()
    with serving(logs, *configure(tmp_path, url, REMOTE)) as server:
        with Client(server.port) as client:
            assert client.request("$JS.API.DIRECT.GET.S", b'{"seq":1}').payload == b"unconfirmed"
        server.signal(signal.SIGKILL)
        server.ended()
    run_tool("archive", "restore", url, tmp_path / "restored")
    logs = tmp_path / "more-logs"
    logs.mkdir()
    with serving(logs, "-js", "-sd", str(tmp_path / "restored")) as server, Client(server.port) as client:
        assert client.api("STREAM.INFO.S")["state"]["last_seq"] == 1


@pytest.mark.parametrize("is_down", [False, True])
def test_a_stop_confirms_what_it_acknowledges(tmp_path: Path, is_down: bool) -> None:
    """With a store that is down the server ends all the same, and acknowledges nothing that is not archived."""
    url, folder = f"file://{tmp_path / 'archive'}", tmp_path / "archive"
    with serving(tmp_path, *configure(tmp_path, url, REMOTE), may_stall=is_down) as server:
        with Client(server.port) as client:
            set_up(client)
        load = StoppingLoad(server.port)
        load.start()
        load.wait_for(100)
        if is_down:
            folder.rename(tmp_path / "away")
            folder.write_text("not a folder")
        threading.Timer(0.2, lambda: server.signal(signal.SIGTERM)).start()
        assert server.ended() == 0
        load.join()
        if is_down:
            folder.unlink()
            (tmp_path / "away").rename(folder)
    shutil.rmtree(tmp_path / "data")
    run_tool("archive", "restore", url, tmp_path / "restored")
    logs = tmp_path / "logs"
    logs.mkdir()
    with serving(logs, "-js", "-sd", str(tmp_path / "restored")) as server:
        found = read_messages(server.port)
    assert {key for key, payload in load.acked.items() if found.get(key) != payload} == set()


def test_an_account_that_is_added_by_a_reload_needs_a_restart(tmp_path: Path) -> None:
    """With `ack: remote` a base has to have its store before a client can use it."""
    accounts = "accounts { A { jetstream: enabled, users: [{user: a, password: a}] }"
    flags = configure(tmp_path, f"file://{tmp_path / 'archive'}", REMOTE)
    config = Path(flags[1])
    text = config.read_text()
    config.write_text(f"{text}{accounts} }}\n")
    with serving(tmp_path, *flags) as server:
        more = ", B { jetstream: enabled, users: [{user: b, password: b}] }"
        config.write_text(f"{text}{accounts}{more} }}\n")
        server.signal(signal.SIGHUP)
        server.wait_for("Enabling JetStream for account B requires a restart")


def test_nothing_is_acknowledged_while_the_store_is_down(tmp_path: Path) -> None:
    url, folder = f"file://{tmp_path / 'archive'}", tmp_path / "archive"
    with (
        serving(tmp_path, *configure(tmp_path, url, REMOTE + ", max_lag: 300ms")) as server,
        Client(server.port) as client,
        Client(server.port) as reader,
    ):
        client.api("STREAM.CREATE.S", {"name": "S", "subjects": ["s"], "allow_direct": True})
        assert client.request("s", b"1").json["seq"] == 1
        folder.rename(tmp_path / "away")
        folder.write_text("not a folder")
        asked = [client.ask("s", b"%d" % number) for number in range(2, 10)]
        deadline = time.monotonic() + WAIT_S
        while not read_metrics(server)["headrace_archive_late"]:
            assert reader.request("$JS.API.DIRECT.GET.S", b'{"seq":1}').payload == b"1"
            assert time.monotonic() < deadline, server.log
        folder.unlink()
        (tmp_path / "away").rename(folder)
        answers = {
            answer.subject: answer.json["seq"] for answer in (client.next(client._answers) for _ in asked)
        }
        assert answers == {subject: seq for seq, subject in enumerate(asked, 2)}
    run_tool("archive", "restore", url, tmp_path / "restored")
    logs = tmp_path / "logs"
    logs.mkdir()
    with serving(logs, "-js", "-sd", str(tmp_path / "restored")) as server, Client(server.port) as client:
        assert client.api("STREAM.INFO.S")["state"]["messages"] == 9
