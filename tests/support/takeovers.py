"""Servers with `ack: remote` and `--standby` that share an archive, and a load that records what they confirmed."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from conformance.client import Client
from support.ports import free_port
from support.processes import Serving

READY, FOLLOWING = "Server is ready", "Standby: ready to take over"
WAIT_S = 150.0
#: Longer than a server on a busy machine waits for a processor; otherwise a standby replaces a healthy leader.
TAKEOVER_AFTER = "20s"


class Node:
    """One machine: a directory, and the process that runs there now."""

    def __init__(self, folder: Path, number: int, url: str, takeover_after: str = TAKEOVER_AFTER) -> None:
        self.folder = folder / f"node-{number}"
        self.folder.mkdir(parents=True, exist_ok=True)
        self.monitor_port = free_port()
        self.number = number
        self.lives = 0
        data = self.folder / "data"
        (self.folder / "server.conf").write_text(
            f'server_name: "node-{number}"\nport: -1\nhttp: {self.monitor_port}\n'
            f'jetstream {{ store_dir: "{data}"\n'
            f'  archive {{ url: "{url}", ack: remote, takeover_after: {takeover_after} }} }}\n'
        )
        self.serving: Serving

    def start(self, *, is_standby: bool = True) -> Serving:
        self.lives += 1
        log = self.folder / f"log-{self.lives}"
        flags = ["--standby"] if is_standby else []
        command = [sys.executable, "-m", "headrace", "serve", "-c", "server.conf", *flags]
        with log.open("wb") as stderr:
            process = subprocess.Popen(command, stderr=stderr, stdout=subprocess.DEVNULL, cwd=self.folder)
        self.serving = Serving(process, log)
        return self.serving

    @property
    def log(self) -> str:
        return self.serving.log

    def wait_for(self, text: str) -> None:
        """Wait until the log has a text; on a busy machine a start takes long."""
        deadline = time.monotonic() + WAIT_S
        while text not in self.log:
            assert self.serving.process.poll() is None or text in self.log, self.log
            assert time.monotonic() < deadline, f"{text!r} not in the log:\n{self.log}"
            time.sleep(0.02)

    @property
    def is_ready(self) -> bool:
        return READY in self.log and self.serving.process.poll() is None

    def kill(self) -> None:
        self.serving.process.kill()
        self.serving.process.wait()

    def fetch(self, page: str) -> tuple[int, Any]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.monitor_port}{page}", timeout=5) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def health(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.fetch("/healthz")[1])
        return found


class Nodes(contextlib.ExitStack):
    """The servers of a test; their processes are ended with it."""

    def __init__(self, folder: Path, url: str, count: int, takeover_after: str = TAKEOVER_AFTER) -> None:
        super().__init__()
        self.all = [Node(folder, number, url, takeover_after) for number in range(count)]
        self.callback(self._end)

    def _end(self) -> None:
        for node in self.all:
            with contextlib.suppress(AttributeError, ProcessLookupError):
                node.serving.signal(signal.SIGCONT)
                node.kill()

    def start_all(self) -> Node:
        """Start all, the first one before the others; return it."""
        self.all[0].start()
        self.all[0].wait_for(READY)
        for node in self.all[1:]:
            node.start()
        for node in self.all[1:]:
            node.wait_for(FOLLOWING)
        return self.all[0]

    def wait_for_leader(self, besides: Node) -> Node:
        """Return the node that serves after another one has gone."""
        deadline = time.monotonic() + WAIT_S
        while True:
            found = [node for node in self.all if node is not besides and node.is_ready]
            if found:
                return found[0]
            assert time.monotonic() < deadline, "\n".join(f"{each.number}:\n{each.log}" for each in self.all)
            time.sleep(0.01)


def set_up(client: Client) -> None:
    """Create a stream, and a work queue with a consumer."""
    client.api("STREAM.CREATE.S", {"name": "S", "subjects": ["s"], "allow_direct": True})
    client.api(
        "STREAM.CREATE.W",
        {"name": "W", "subjects": ["w"], "retention": "workqueue", "allow_direct": True},
    )
    consumer = {"durable_name": "c", "ack_policy": "explicit", "ack_wait": 3_000_000_000}
    client.api("CONSUMER.DURABLE.CREATE.W.c", {"stream_name": "W", "config": consumer})


class Load(threading.Thread):
    """Publishes and acknowledges until the server is gone; records what was confirmed."""

    def __init__(self, port: int, life: int) -> None:
        super().__init__(daemon=True)
        self._port, self._life = port, life
        self.stored: dict[int, bytes] = {}
        self.acked: set[int] = set()
        self.stopped = threading.Event()

    def run(self) -> None:
        with (
            contextlib.suppress(OSError, EOFError, TimeoutError, AssertionError, KeyError),
            Client(self._port) as client,
        ):
            for turn in range(1_000_000):
                if self.stopped.is_set():
                    return
                self._publish(client, turn)

    def _publish(self, client: Client, turn: int) -> None:
        asked = {}
        for number in range(30):
            size = 40_000 if (turn + number) % 50 == 0 else 100
            payload = b"%d.%d.%d " % (self._life, turn, number) + b"x" * size
            asked[client.ask("s", payload)] = payload
        for _ in asked:
            answer = client.next(client._answers)
            assert not answer.status, "the server stops: nobody responds"
            self.stored[answer.json["seq"]] = asked[answer.subject]
        client.request("w", b"%d.%d" % (self._life, turn))
        client.ask("$JS.API.CONSUMER.MSG.NEXT.W.c", b'{"batch":1,"no_wait":true}')
        message = client.next(client._answers)
        if message.reply:
            assert not client.request(message.reply, b"+ACK").status
            self.acked.add(int(message.reply.split(".")[5]))

    def wait_for(self, count: int) -> None:
        deadline = time.monotonic() + WAIT_S
        while len(self.stored) < count:
            assert self.is_alive(), "the load ended early"
            assert time.monotonic() < deadline
            time.sleep(0.005)


def find_lost(port: int, loads: list[Load]) -> list[str]:
    """Return what the servers have confirmed and this one does not have."""
    lost = []
    with Client(port) as client:
        for load in loads:
            for seq, payload in load.stored.items():
                if client.request("$JS.API.DIRECT.GET.S", b'{"seq":%d}' % seq).payload != payload:
                    lost.append(f"message {seq}")
            for seq in load.acked:
                found = client.request("$JS.API.DIRECT.GET.W", b'{"seq":%d}' % seq)
                if b"404" not in found.header:
                    lost.append(f"ack {seq}")
    return lost


class DeliveryWatch(threading.Thread):
    """A consumer that stays connected to a server, and notes what it delivers after a moment."""

    def __init__(self, port: int) -> None:
        super().__init__(daemon=True)
        self._client = Client(port)
        self.late: list[bytes] = []
        self.is_late = threading.Event()
        self.ended = threading.Event()

    def run(self) -> None:
        with contextlib.suppress(OSError, EOFError, TimeoutError, AssertionError), self._client as client:
            client.send(b"SUB inbox 9\r\n")
            for _ in range(3):  # requests of before and after the takeover
                client.send(b'PUB $JS.API.CONSUMER.MSG.NEXT.W.c inbox 11\r\n{"batch":9}\r\n')
            while (frame := client.frame(WAIT_S)) and frame != b"<EOF>":
                if self.is_late.is_set() and frame.startswith((b"MSG", b"HMSG")):
                    self.late.append(frame)
        self.ended.set()

    def request_more(self) -> None:
        """Request a message, and publish; the server may be suspended."""
        self._client.send(b'PUB $JS.API.CONSUMER.MSG.NEXT.W.c inbox 11\r\n{"batch":9}\r\n')
        self._client.send(b"PUB w inbox 4\r\nlate\r\n")


def kill_leaders(
    tmp_path: Path, url: str, rounds: int, count: int = 600, takeover_after: str = TAKEOVER_AFTER
) -> list[float]:
    """Kill the leader under load again and again; each becomes a standby. Return how long the takeovers lasted."""
    loads: list[Load] = []
    takeovers = []
    with Nodes(tmp_path, url, 2, takeover_after) as nodes:
        leader = nodes.start_all()
        with Client(leader.serving.port) as client:
            set_up(client)
        for number in range(rounds):
            load = Load(leader.serving.port, number)
            load.start()
            load.wait_for(count)
            killed = time.monotonic()
            leader.kill()
            former, leader = leader, nodes.wait_for_leader(leader)
            takeovers.append(time.monotonic() - killed)
            load.join()
            loads.append(load)
            lost = find_lost(leader.serving.port, [load])
            assert not lost, (lost[:10], leader.log)
            former.start()
            former.wait_for(FOLLOWING)
        assert not find_lost(leader.serving.port, loads), leader.log
    return takeovers
