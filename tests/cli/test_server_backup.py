"""`headrace backup` and `restore` with real servers: under load, killed, on S3, and compared message by message."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from claims.object_stores import Weed
from conformance.client import Client
from headrace.cli import main
from support.processes import Serving, headrace, serving

STREAMS = ("PLAIN", "PACKED", "WORK", "KV_B")
Digest = dict[str, Any]
#: Maximum wait for a load on a machine that is busy.
WAIT_S = 150.0


def flags(folder: Path) -> tuple[str, ...]:
    return ("-js", "-sd", str(folder), "-m", "-1")


def set_up(client: Client) -> None:
    """Create streams of several kinds and consumers."""
    for name, more in (
        ("PLAIN", {}),
        ("PACKED", {"compression": "s2"}),
        ("WORK", {"retention": "workqueue"}),
        ("KV_B", {"max_msgs_per_subject": 3, "subjects": ["$KV.B.>"], "allow_rollup_hdrs": True}),
    ):
        config = {"name": name, "subjects": [f"{name}.>"], "allow_direct": True, **more}
        client.api(f"STREAM.CREATE.{name}", config)
        consumer = {"stream_name": name, "config": {"durable_name": "c", "ack_policy": "explicit"}}
        client.api(f"CONSUMER.DURABLE.CREATE.{name}.c", consumer)


class Load(threading.Thread):
    """Publishes to all streams, acknowledges some messages, and records what the server confirmed."""

    def __init__(self, port: int, life: int = 0) -> None:
        super().__init__(daemon=True)
        self._port = port
        self._life = life
        self.acked: dict[tuple[str, int], bytes] = {}
        self.sent: set[bytes] = set()
        self.stopped = threading.Event()

    def run(self) -> None:
        try:
            with Client(self._port) as client:
                for turn in range(1_000_000):
                    if self.stopped.is_set():
                        return
                    self._publish(client, turn)
        except (OSError, EOFError, TimeoutError, AssertionError):
            return  # the server was killed

    def _publish(self, client: Client, turn: int) -> None:
        asked = {}
        for number in range(40):
            name = STREAMS[number % 2]
            size = 40_000 if random.random() < 0.02 else random.randrange(600)
            payload = b"%d.%d.%d " % (self._life, turn, number) + b"x" * size
            self.sent.add(payload)
            asked[client.ask(f"{name}.{number % 7}", payload)] = (name, payload)
        for _ in asked:
            answer = client.next(client._answers)
            name, payload = asked[answer.subject]
            self.acked[name, answer.json["seq"]] = payload
        client.request(f"$KV.B.k{turn % 5}", b"%d" % turn)
        client.request("WORK.a", b"%d" % turn)
        for name in ("WORK", "PLAIN"):
            client.ask(f"$JS.API.CONSUMER.MSG.NEXT.{name}.c", b'{"batch":1,"no_wait":true}')
            message = client.next(client._answers)
            if message.reply:
                client.request(message.reply, b"+ACK")

    def wait_for(self, count: int) -> None:
        deadline = time.monotonic() + WAIT_S
        while len(self.acked) < count:
            assert self.is_alive(), "the load ended early"
            assert time.monotonic() < deadline
            time.sleep(0.005)

    def stop(self) -> None:
        self.stopped.set()
        self.join()


def digest(port: int) -> Digest:
    """Return all that a client can see: messages, positions, deleted sequences, consumers, configurations."""
    found: Digest = {}
    with Client(port) as client:
        for name in STREAMS:
            info = client.api(f"STREAM.INFO.{name}", {"deleted_details": True})
            state = {key: value for key, value in info["state"].items() if key != "consumer_count"}
            messages = []
            for seq in range(state["first_seq"], state["last_seq"] + 1):
                got = client.request(f"$JS.API.DIRECT.GET.{name}", b'{"seq":%d}' % seq)
                messages.append(
                    (seq, got.headers.get("Nats-Subject"), got.headers.get("Nats-Time-Stamp"), got.payload)
                )
            consumer = client.api(f"CONSUMER.INFO.{name}.c")
            kept = ("delivered", "ack_floor", "num_ack_pending", "num_pending", "config", "created")
            positions = {key: consumer[key] for key in kept}
            for key in ("delivered", "ack_floor"):
                positions[key] = {each: positions[key][each] for each in ("consumer_seq", "stream_seq")}
            found[name] = (info["config"], info["created"], state, messages, positions)
    return found


def run_tool(*arguments: object) -> dict[str, Any]:
    result = headrace(*map(str, arguments), "--json")
    assert result.returncode == 0, result.stderr
    values: dict[str, Any] = json.loads(result.stdout)
    return values


def start_tool(*arguments: object) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "headrace", *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def back_up(server: Serving, target: object, *more: object) -> dict[str, Any]:
    return run_tool("backup", "create", target, "--server", server.url, *more)


def check_restored(folder: Path, tmp_path: Path, expected: Digest) -> None:
    logs = tmp_path / f"logs-{folder.name}"
    logs.mkdir()
    with serving(logs, *flags(folder)) as server:
        assert digest(server.port) == expected


def test_a_restored_server_equals_the_original(tmp_path: Path) -> None:
    with serving(tmp_path, *flags(tmp_path / "data")) as server:
        with Client(server.port) as client:
            set_up(client)
        load = Load(server.port)
        load.start()
        load.wait_for(1500)
        first = back_up(server, tmp_path / "target")
        load.wait_for(3000)
        load.stop()
        expected = digest(server.port)
        second = back_up(server, tmp_path / "target")
        assert second["messages"] == sum(len(found[3]) for found in expected.values()) - count_missing(
            expected
        )
        assert second["sent_bytes"] < second["bytes"]
    listed = run_tool("backup", "ls", tmp_path / "target")
    assert [each["backup"] for each in listed] == [first["backup"], second["backup"]]  # type: ignore[call-overload]
    run_tool("restore", tmp_path / "target", "--to", tmp_path / "restored")
    check_restored(tmp_path / "restored", tmp_path, expected)
    prune = ("backup", "prune", tmp_path / "target", "--keep", 1)
    planned = run_tool(*prune, "--dry-run")
    assert planned["dropped"] == [first["backup"]]
    assert len(run_tool("backup", "ls", tmp_path / "target")) == 2
    assert run_tool(*prune) == planned
    assert run_tool(*prune)["dropped"] == []
    assert run_tool("backup", "verify", tmp_path / "target")["problems"] == {}
    run_tool("restore", tmp_path / "target", "--to", tmp_path / "restored-again")
    check_restored(tmp_path / "restored-again", tmp_path, expected)
    nothing = headrace("backup", "prune", str(tmp_path / "nothing"), "--keep", "1")
    assert (nothing.returncode, "there are no backups" in nothing.stderr) == (1, True)


def count_missing(found: Digest) -> int:
    return sum(1 for each in found.values() for message in each[3] if message[1] is None)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_backup_under_load_has_all_that_was_acknowledged_before(tmp_path: Path) -> None:
    """And nothing that was not sent before its end."""
    with serving(tmp_path, *flags(tmp_path / "data")) as server:
        with Client(server.port) as client:
            set_up(client)
        load = Load(server.port)
        load.start()
        moments = []
        for number in range(1, 4):
            load.wait_for(1200 * number)
            before = dict(load.acked)
            made = back_up(server, tmp_path / "target")
            moments.append((made["backup"], before, set(load.sent)))
        load.stop()
    assert run_tool("backup", "verify", tmp_path / "target")["problems"] == {}
    for number, (name, before, sent) in enumerate(moments):
        folder = tmp_path / f"restored-{number}"
        run_tool("restore", tmp_path / "target", "--to", folder, "--backup", name)
        logs = tmp_path / f"logs-{number}"
        logs.mkdir()
        with serving(logs, *flags(folder)) as server:
            found = digest(server.port)
        messages = {(each, row[0]): row[3] for each in STREAMS[:2] for row in found[each][3]}
        assert messages.items() >= before.items()
        assert set(messages.values()) <= sent


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_killed_backup_leaves_nothing_that_counts(tmp_path: Path) -> None:
    rng = random.Random(5)
    with serving(tmp_path, *flags(tmp_path / "data"), may_stall=True) as server:
        with Client(server.port) as client:
            set_up(client)
        load = Load(server.port)
        load.start()
        load.wait_for(2000)
        for _ in range(5):
            tool = start_tool("backup", "create", tmp_path / "target", "--server", server.url)
            time.sleep(0.5 + rng.random())
            tool.kill()
            tool.communicate()
        load.stop()
        expected = digest(server.port)
        back_up(server, tmp_path / "target", "--keep", 1)
    assert run_tool("backup", "verify", tmp_path / "target")["problems"] == {}
    run_tool("restore", tmp_path / "target", "--to", tmp_path / "restored")
    check_restored(tmp_path / "restored", tmp_path, expected)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_server_killed_during_a_backup(tmp_path: Path) -> None:
    """The backup is complete or does not count; after the restart the next one is complete."""
    rng = random.Random(7)
    acked: dict[tuple[str, int], bytes] = {}
    for life in range(3):
        with serving(tmp_path, *flags(tmp_path / "data"), may_stall=True) as server:
            if life == 0:
                with Client(server.port) as client:
                    set_up(client)
            load = Load(server.port, life)
            load.start()
            load.wait_for(1000)
            before = dict(load.acked)
            tool = start_tool("backup", "create", tmp_path / "target", "--server", server.url)
            time.sleep(0.6 + rng.random() * 0.6)
            server.process.kill()
            tool.communicate()
            load.stop()
            if tool.returncode == 0:
                acked |= before
    with serving(tmp_path, *flags(tmp_path / "data")) as server:
        expected = digest(server.port)
        back_up(server, tmp_path / "target")
    assert run_tool("backup", "verify", tmp_path / "target")["problems"] == {}
    run_tool("restore", tmp_path / "target", "--to", tmp_path / "restored")
    check_restored(tmp_path / "restored", tmp_path, expected)
    messages = {(each, row[0]): row[3] for each in STREAMS[:2] for row in expected[each][3]}
    assert messages.items() >= acked.items()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_killed_restore_is_refused_by_the_server_and_completed(tmp_path: Path) -> None:
    with serving(tmp_path, *flags(tmp_path / "data")) as server:
        with Client(server.port) as client:
            set_up(client)
        load = Load(server.port)
        load.start()
        load.wait_for(3000)
        load.stop()
        expected = digest(server.port)
        back_up(server, tmp_path / "target")
    folder, refused = tmp_path / "restored", 0
    for delay in (0.45, 0.5, 0.55, 0.6, 0.7):
        tool = start_tool("restore", tmp_path / "target", "--to", folder)
        time.sleep(delay)
        tool.kill()
        tool.communicate()
        if (folder / "headrace" / "restoring").exists():
            started = headrace("serve", "-p", "-1", *flags(folder))
            assert started.returncode == 1
            assert "restore of a backup was not completed" in started.stderr
            refused += 1
        if tool.returncode == 0 or not (folder / "headrace-restore").exists():
            break
    if (folder / "headrace-restore").exists() or not (folder / "headrace").exists():
        run_tool("restore", tmp_path / "target", "--to", folder)
    check_restored(folder, tmp_path, expected)


@pytest.fixture(scope="module")
def weed() -> Iterator[Weed]:
    running = Weed()
    yield running
    running.close()


@pytest.mark.xdist_group("weed")
def test_backups_on_s3(tmp_path: Path, weed: Weed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", weed.KEYS["access_key_id"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", weed.KEYS["secret_access_key"])
    target = f"s3://backups-{os.getpid()}/servers/one?endpoint={weed.endpoint}"
    with serving(tmp_path, *flags(tmp_path / "data")) as server:
        with Client(server.port) as client:
            set_up(client)
        load = Load(server.port)
        load.start()
        for number in range(1, 4):
            load.wait_for(800 * number)
            made = back_up(server, target, "--keep", 2)
        load.stop()
        assert len(made["dropped"]) == 1
        expected = digest(server.port)
        back_up(server, target)
    assert run_tool("backup", "verify", target) | {"objects": 0, "bytes": 0} == {
        "backups": 3,
        "objects": 0,
        "bytes": 0,
        "problems": {},
    }
    run_tool("restore", target, "--to", tmp_path / "restored")
    check_restored(tmp_path / "restored", tmp_path, expected)


def test_a_backup_over_http(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(tmp_path, *flags(tmp_path / "data")) as server:
        with Client(server.port) as client:
            set_up(client)
        load = Load(server.port)
        load.start()
        load.wait_for(1500)
        load.stop()
        expected = digest(server.port)
        # As on another machine: the folder cannot be read.
        monkeypatch.setattr("headrace.backup.pinned_stores.os.access", lambda path, mode: False)
        assert main(["backup", "create", str(tmp_path / "target"), "--server", server.url]) == 0
        assert "4 streams" in capsys.readouterr().out
    run_tool("restore", tmp_path / "target", "--to", tmp_path / "restored")
    check_restored(tmp_path / "restored", tmp_path, expected)


def test_a_backup_of_a_stopped_server(tmp_path: Path) -> None:
    with serving(tmp_path, *flags(tmp_path / "data")) as server:
        with Client(server.port) as client:
            set_up(client)
        load = Load(server.port)
        load.start()
        load.wait_for(1500)
        load.stop()
        expected = digest(server.port)
        used = headrace("backup", "offline", str(tmp_path / "data"), str(tmp_path / "target"))
        assert used.returncode == 1
        assert "in use by another process" in used.stderr
        server.process.kill()
        server.process.wait()
        run_tool("backup", "offline", tmp_path / "data", tmp_path / "target")
    run_tool("restore", tmp_path / "target", "--to", tmp_path / "restored")
    check_restored(tmp_path / "restored", tmp_path, expected)


def test_errors_say_what_to_do(tmp_path: Path) -> None:
    for arguments, code, text in (
        (("backup", "ls", tmp_path / "none"), 1, "there are no backups"),
        (("backup", "ls", "ftp://x/y"), 1, "is not a target"),
        (("backup", "ls", "s3://user:secret@bucket/x"), 1, "no credentials"),
        (("backup", "ls", "s3://bucket/x?secret_access_key=1"), 1, "unknown parameter"),
        (("restore", tmp_path / "none", "--to", tmp_path / "x"), 1, "there are no backups"),
        (("backup", "offline", tmp_path / "none", tmp_path / "t"), 1, "there is no store"),
        (("backup", "create", tmp_path / "t", "--server", "nats://127.0.0.1:1"), 5, "no server"),
    ):
        result = headrace(*map(str, arguments))
        assert (result.returncode, text in result.stderr) == (code, True), (arguments, result.stderr)
