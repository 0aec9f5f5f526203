"""Servers with an archive: restored after their directory is gone, to a moment, fenced, and with a store that is down."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from claims.object_stores import Weed
from conformance.client import Client
from support.processes import Serving, headrace, serving

from .test_server_backup import Digest, Load, check_restored, digest, run_tool, set_up

#: Maximum wait for the archive of a server on a machine that is busy.
WAIT_S = 150.0


def configure(folder: Path, url: str, more: str = "") -> tuple[str, ...]:
    path = folder / "server.conf"
    path.write_text(
        f'jetstream {{ store_dir: "{folder / "data"}"\n'
        f'  archive {{ url: "{url}", group_delay: 20ms, group_bytes: 262144 {more} }} }}\nhttp: -1\n'
    )
    return ("-c", str(path))


def read_metrics(server: Serving) -> dict[str, float]:
    found = server.log.rpartition("Starting http monitor on ")[2].split()[0]
    port = found.rpartition(":")[2]
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as response:
        lines = response.read().decode().splitlines()
    return {line.split()[0]: float(line.split()[1]) for line in lines if line.startswith("headrace_archive")}


def wait_archived(server: Serving) -> dict[str, float]:
    """Wait until everything is archived, and a base was made."""
    deadline = time.monotonic() + WAIT_S
    while True:
        found = read_metrics(server)
        if found["headrace_archive_bases_total"] and not found["headrace_archive_lag_seconds"]:
            return found
        assert time.monotonic() < deadline, (found, server.log)
        time.sleep(0.02)


def wait_unpinned(store: Path) -> None:
    """Wait until a store has no pins: their files are removed after the request that releases them."""
    deadline = time.monotonic() + WAIT_S
    while any((store / "pins").glob("*")):
        assert time.monotonic() < deadline, list((store / "pins").glob("*"))
        time.sleep(0.02)


def note_moment(server: Serving) -> tuple[str, Digest]:
    """Return the present moment, as `restore --at` takes it, and what a client sees; all of it is archived."""
    expected = digest(server.port)
    wait_archived(server)
    moment = time.time_ns() // 1000
    text = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(moment // 1_000_000))
    return f"{text}.{moment % 1_000_000:06d}Z", expected


def check_moments(tmp_path: Path, url: str, moments: list[tuple[str, Digest]]) -> None:
    """Restore the newest state and those at earlier moments: each is equal to what a client saw."""
    run_tool("archive", "restore", url, tmp_path / "restored")
    check_restored(tmp_path / "restored", tmp_path, moments[-1][1])
    for number, (moment, expected) in enumerate(moments[:-1]):
        run_tool("archive", "restore", url, tmp_path / f"moment-{number}", "--at", moment)
        check_restored(tmp_path / f"moment-{number}", tmp_path, expected)


def lose_and_restore(tmp_path: Path, url: str) -> None:
    """Fill a server, kill it, delete its directory, restore it to the last group and to a moment: everything is equal."""
    moments = []
    with serving(tmp_path, *configure(tmp_path, url)) as server:
        with Client(server.port) as client:
            set_up(client)
        for life in range(2):
            load = Load(server.port, life)
            load.start()
            load.wait_for(1000)
            load.stop()
            moments.append(note_moment(server))
        assert moments[0][1] != moments[1][1]
        server.signal(signal.SIGKILL)
        server.ended()
    shutil.rmtree(tmp_path / "data")
    assert run_tool("archive", "verify", url)["problems"] == []
    check_moments(tmp_path, url, moments)


def test_a_server_whose_directory_is_gone_is_restored(tmp_path: Path) -> None:
    lose_and_restore(tmp_path, f"file://{tmp_path / 'archive'}")


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
def test_a_server_is_restored_from_s3(tmp_path: Path, weed: Weed) -> None:
    url = f"s3://archive-{os.getpid()}/prod"
    assert run_tool("archive", "check", url)["rounds"] == 20
    lose_and_restore(tmp_path, url)


def test_a_moment_is_restored_and_restarts_continue_the_archive(tmp_path: Path) -> None:
    url = f"file://{tmp_path / 'archive'}"
    moments = []
    for number in range(2):
        logs = tmp_path / f"run-{number}"
        logs.mkdir()
        with serving(logs, *configure(tmp_path, url)) as server:
            with Client(server.port) as client:
                if not number:
                    client.api("STREAM.CREATE.S", {"name": "S", "subjects": ["s"]})
                wait_archived(server)
                for _ in range(3):
                    for _ in range(10):
                        client.request("s", b"x")
                    count = client.api("STREAM.INFO.S")["state"]["messages"]
                    wait_archived(server)
                    moments.append((time.time(), count))
                    time.sleep(0.05)
            server.signal(signal.SIGKILL)
            server.ended()
    for number, (moment, count) in enumerate(moments):
        folder = tmp_path / f"restored-{number}"
        text = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(moment)) + f".{int(moment % 1 * 1e6):06d}Z"
        run_tool("archive", "restore", url, folder, "--at", text)
        logs = tmp_path / f"logs-{number}"
        logs.mkdir()
        with serving(logs, "-js", "-sd", str(folder)) as server, Client(server.port) as client:
            assert client.api("STREAM.INFO.S")["state"]["messages"] == count
    listed = json.loads(headrace("archive", "list", url, "--json").stdout)
    assert {each["epoch"] for each in listed} == {1, 2}
    assert "not empty" in headrace("archive", "restore", url, str(tmp_path / "restored-0")).stderr
    assert run_tool("archive", "trim", url, "--keep", "1s", "--dry-run")["groups"] >= 0


def read_health(server: Serving) -> dict[str, object]:
    port = server.log.rpartition("Starting http monitor on ")[2].split()[0].rpartition(":")[2]
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz") as response:
        found: dict[str, object] = json.loads(response.read())
    return found


def test_a_store_that_is_down_delays_the_archive_only(tmp_path: Path) -> None:
    url, folder = f"file://{tmp_path / 'archive'}", tmp_path / "archive"
    with (
        serving(tmp_path, *configure(tmp_path, url, ", max_lag: 300ms")) as server,
        Client(server.port) as client,
    ):
        client.api("STREAM.CREATE.S", {"name": "S", "subjects": ["s"]})
        wait_archived(server)
        assert "complaints" not in read_health(server)
        folder.rename(tmp_path / "away")
        folder.write_text("not a folder")
        deadline = time.monotonic() + WAIT_S
        while "behind" not in str(read_health(server).get("complaints")):
            assert client.request("s", b"x" * 100).json["seq"]
            assert time.monotonic() < deadline, server.log
        assert read_metrics(server)["headrace_archive_late"] == 1
        server.wait_for("The archive is not available")
        folder.unlink()
        (tmp_path / "away").rename(folder)
        wait_archived(server)
        count = client.api("STREAM.INFO.S")["state"]["messages"]
    run_tool("archive", "restore", url, tmp_path / "restored")
    logs = tmp_path / "logs"
    logs.mkdir()
    with serving(logs, "-js", "-sd", str(tmp_path / "restored")) as server, Client(server.port) as client:
        assert client.api("STREAM.INFO.S")["state"]["messages"] == count


def test_a_disk_that_lacks_archived_frames_is_refused(tmp_path: Path) -> None:
    """An earlier state of the store, for example after a power loss that a disk hid: the archive has the rest."""
    url = f"file://{tmp_path / 'archive'}"
    for number in range(2):
        logs = tmp_path / f"run-{number}"
        logs.mkdir()
        with serving(logs, *configure(tmp_path, url)) as server:
            with Client(server.port) as client:
                if not number:
                    client.api("STREAM.CREATE.S", {"name": "S", "subjects": ["s"]})
                wait_archived(server)
                if number:
                    wait_unpinned(tmp_path / "data" / "headrace")
                    server.signal(signal.SIGSTOP)  # no file may come or go during the copy
                    shutil.copytree(tmp_path / "data" / "headrace", tmp_path / "earlier")
                    server.signal(signal.SIGCONT)
                for _ in range(20):
                    client.request("s", b"x")
                wait_archived(server)
            server.signal(signal.SIGKILL)
            server.ended()
    shutil.rmtree(tmp_path / "data" / "headrace")
    (tmp_path / "earlier").rename(tmp_path / "data" / "headrace")
    result = headrace("serve", *configure(tmp_path, url), "-p", "-1")
    assert result.returncode == 1
    assert "is not on this disk" in result.stdout + result.stderr
    run_tool("archive", "restore", url, tmp_path / "restored")
    logs = tmp_path / "logs"
    logs.mkdir()
    with serving(logs, "-js", "-sd", str(tmp_path / "restored")) as server, Client(server.port) as client:
        assert client.api("STREAM.INFO.S")["state"]["messages"] == 40


def test_a_server_that_another_one_replaced_stops(tmp_path: Path) -> None:
    """A copy of the directory takes the archive over; the first server is fenced, and cannot start again."""
    url = f"file://{tmp_path / 'archive'}"
    with serving(tmp_path, *configure(tmp_path, url)) as first:
        with Client(first.port) as client:
            client.api("STREAM.CREATE.S", {"name": "S", "subjects": ["s"]})
            client.request("s", b"1")
        wait_archived(first)
        other = tmp_path / "other"
        wait_unpinned(tmp_path / "data" / "headrace")
        first.signal(signal.SIGSTOP)  # the copy has all that is archived, also until the other server starts
        shutil.copytree(tmp_path / "data", other / "data")
        with serving(other, *configure(other, url)) as second:
            wait_archived(second)
            first.signal(signal.SIGCONT)
            with Client(first.port) as client:
                client.send(b"PUB s 1\r\n2\r\n")
                first.wait_for("fenced: group")
            assert first.ended() == 1
    result = headrace("serve", *configure(tmp_path, url), "-p", "-1")
    assert result.returncode == 1
    assert "headrace archive restore" in result.stdout + result.stderr
