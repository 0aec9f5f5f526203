"""A wildcard address is one for IPv4 and IPv6, for clients, WebSocket, leafnodes and monitoring."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from conformance.client import Client
from conformance.consumer_client import eventually
from conformance.servers import OURS, nats_server_binary
from support.ports import free_port

pytestmark = pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="no IPv6 here")

CONFIG = """
port: {port}
http: "{host}:{http}"
leafnodes {{ listen: "{host}:{leaf}" }}
websocket {{ listen: "{host}:{web}", no_tls: true }}
authorization {{ users: [{{user: u, password: p}}] }}
host: "{host}"
"""
PORTS = ("port", "http", "leaf", "web")


@pytest.fixture(params=["0.0.0.0", "::"])
def ports(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[dict[str, int]]:
    ports = {name: free_port() for name in PORTS}
    path, log = tmp_path / "server.conf", tmp_path / "log"
    host = "[::]" if request.param == "::" else request.param
    text = CONFIG.format(host=host, **ports).replace('host: "[::]"', 'host: "::"')
    path.write_text(text)
    # Without `allow_insecure` the monitoring port, which needs no password, is on loopback only.
    ours = [sys.executable, "-m", "headrace", "serve", "--allow_insecure"]
    program = ours if kind == OURS else [nats_server_binary()]
    with log.open("wb") as output, subprocess.Popen([*program, "-c", str(path)], stderr=output) as process:
        try:
            eventually(lambda: "Server is ready" in log.read_text())
            yield ports
        finally:
            process.kill()


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_both_protocols_reach_every_port(ports: dict[str, int], address: str) -> None:
    for port in ports.values():
        socket.create_connection((address, port), timeout=60).close()
    with Client(ports["port"], host=address, user="u", **{"pass": "p"}) as client:
        assert client.info["client_ip"] == address
        host = f"[{address}]" if ":" in address else address
        with urllib.request.urlopen(f"http://{host}:{ports['http']}/connz", timeout=60) as page:
            addresses = [each["ip"] for each in json.load(page)["connections"]]
        assert addresses == [address]


def test_a_port_in_use_is_an_error(kind: str, tmp_path: Path) -> None:
    with socket.create_server(("0.0.0.0", 0)) as taken:
        program = [sys.executable, "-m", "headrace", "serve"] if kind == OURS else [nats_server_binary()]
        users = tmp_path / "server.conf"
        users.write_text("authorization { users: [{user: u, password: p}] }")
        command = [*program, "-c", str(users), "-a", "0.0.0.0", "-p", str(taken.getsockname()[1])]
        result = subprocess.run(command, capture_output=True, text=True, timeout=150, check=False)
    assert result.returncode == 1
    assert re.search("address already in use", result.stderr)
