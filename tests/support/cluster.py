"""A cluster of real nats-server processes on loopback, for tests of behaviour that only a cluster has.

Each node has a free port, its own folder and the name n1, n2, ...; nodes can be suspended and resumed, killed and
started again. `with Cluster(folder) as cluster` waits until there is a meta leader and ends every process it started.
"""

from __future__ import annotations

import json
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

from conformance.servers import nats_server_binary
from headrace.reader.blocking_connection import BlockingConnection, ConnectionFailed, ServerAddress
from support.ports import free_port

_DEADLINE_S = 120.0
_PAUSE_S = 0.05


class Node:
    """One server of a cluster."""

    def __init__(
        self, name: str, folder: Path, routes: list[int], port: int, route: int, domain: str = ""
    ) -> None:
        self.name = name
        self.port = port
        self.leaf_port = free_port() if domain else 0
        self.is_stopped = False
        self._folder = folder
        self._command = [
            *(nats_server_binary(), "-n", name, "-a", "127.0.0.1", "-p", str(port)),
            *("-js", "-sd", str(folder / "store")),
            *("--cluster_name", "tests", "--cluster", f"nats://127.0.0.1:{route}"),
            *("--routes", ",".join(f"nats://127.0.0.1:{each}" for each in routes)),
        ]
        if domain:
            folder.mkdir(parents=True, exist_ok=True)
            config = folder / "node.conf"
            config.write_text(
                f"jetstream {{ domain: {domain} }}\nleafnodes {{ listen: '127.0.0.1:{self.leaf_port}' }}\n"
            )
            self._command += ["-c", str(config)]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    @property
    def is_running(self) -> bool:
        return self._process is not None

    @property
    def address(self) -> ServerAddress:
        return ServerAddress(servers=(self.url,), timeout_s=2.0)

    @property
    def log(self) -> str:
        return (self._folder / "log").read_text(errors="replace")

    def start(self) -> None:
        """Start the process on its folder, with the state in it."""
        self._folder.mkdir(parents=True, exist_ok=True)
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                self._command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, cwd=self._folder
            )

    def stop(self) -> None:
        """Suspend the process: connections stay open, and it does not reply."""
        self._signal(signal.SIGSTOP)
        self.is_stopped = True

    def resume(self) -> None:
        """Resume the suspended process."""
        self._signal(signal.SIGCONT)
        self.is_stopped = False

    def kill(self) -> None:
        """Kill the process."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None, f"{self.name} is not running"
        self._process.send_signal(number)


class Cluster:
    """Several nodes with routes to each other; with a JetStream domain they also accept leafnode connections."""

    def __init__(self, folder: Path, size: int = 3, domain: str = "") -> None:
        routes = [free_port() for _ in range(size)]
        self.nodes = [
            Node(f"n{number}", folder / f"n{number}", routes, free_port(), route, domain)
            for number, route in enumerate(routes, 1)
        ]

    def __enter__(self) -> Cluster:
        try:
            for node in self.nodes:
                node.start()
            for node in self.nodes:
                self.await_meta_leader(node)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Kill every node, even suspended ones."""
        for node in self.nodes:
            node.kill()

    @property
    def urls(self) -> str:
        """The addresses of all nodes, in the form that clients accept."""
        return ",".join(node.url for node in self.nodes)

    def leader_of(self, stream: str) -> Node:
        """Return the node that leads a stream."""
        deadline = time.monotonic() + _DEADLINE_S
        while True:
            name = self._try(f"STREAM.INFO.{stream}").get("cluster", {}).get("leader")
            if name:
                return next(node for node in self.nodes if node.name == name)
            assert time.monotonic() < deadline, f"{stream} has no leader"
            time.sleep(_PAUSE_S)

    def followers_of(self, stream: str) -> list[Node]:
        """Return the other nodes."""
        leader = self.leader_of(stream)
        return [node for node in self.nodes if node is not leader]

    def api(self, verb: str, body: Any = None) -> dict[str, Any]:
        """Send an API request until a node accepts it; return the reply."""
        deadline = time.monotonic() + _DEADLINE_S
        while True:
            answer = self._try(verb, body)
            if answer and "error" not in answer:
                return answer
            assert time.monotonic() < deadline, f"{verb}: {answer}"
            time.sleep(_PAUSE_S)

    def _try(self, verb: str, body: Any = None) -> dict[str, Any]:
        """Send an API request through a node that is not suspended; return the reply, {} if there is none."""
        node = next(each for each in self.nodes if not each.is_stopped)
        try:
            link = BlockingConnection(node.address)
        except ConnectionFailed:
            return {}
        try:
            answer: dict[str, Any] = json.loads(link.request(f"$JS.API.{verb}", body).payload)
            return answer
        except ConnectionFailed:
            return {}
        finally:
            link.close()

    def await_meta_leader(self, node: Node) -> None:
        """Wait for a meta leader: a node replies to account info requests only if it knows one."""
        deadline = time.monotonic() + _DEADLINE_S
        while True:
            try:
                link = BlockingConnection(node.address)
                try:
                    if "error" not in json.loads(link.request("$JS.API.INFO").payload):
                        return
                finally:
                    link.close()
            except ConnectionFailed:
                pass
            assert time.monotonic() < deadline, f"no meta leader:\n{node.log}"
            time.sleep(_PAUSE_S)
