"""Replacing the `nats-server` executable: flags, files and pages that launchers and scripts rely on."""

from __future__ import annotations

import json
import re
import signal
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from conformance.client import Client, Wire
from conformance.servers import Server, Setup, monitoring_status

Launch = Callable[[Setup], Server]


@pytest.fixture(scope="module")
def monitored(kind: str) -> Iterator[Server]:
    with Server(kind, Setup(flags=("-m", "-1"))) as running:
        yield running


def page(server: Server, path: str) -> Any:
    with urllib.request.urlopen(server.monitoring_url(path), timeout=90) as answer:
        assert answer.status == 200
        return json.load(answer)


class TestFlags:
    @pytest.mark.parametrize(
        "flags",
        [
            ("-server_name", "mill"),
            ("--server_name", "mill"),
            ("-server_name=mill",),
            ("--server_name=mill",),
            ("-n", "mill"),
            ("--name", "mill"),
        ],
        ids=" ".join,
    )
    def test_one_or_two_dashes_blank_or_equals(self, launch: Launch, flags: tuple[str, ...]) -> None:
        with Wire(launch(Setup(flags=flags, jetstream=False)).port) as wire:
            assert wire.info["server_name"] == "mill"

    def test_the_last_one_wins(self, launch: Launch) -> None:
        with Wire(launch(Setup(flags=("-n", "a", "-n", "b"), jetstream=False)).port) as wire:
            assert wire.info["server_name"] == "b"

    @pytest.mark.parametrize("flag", ["-D", "-V", "-DV", "--debug", "--trace", "-D=true"])
    def test_debug_and_trace_flags_are_accepted(self, launch: Launch, flag: str) -> None:
        with Client(launch(Setup(flags=(flag,), jetstream=False)).port) as client:
            client.flush()

    def test_passwords_are_never_logged(self, launch: Launch) -> None:
        server = launch(Setup(flags=("-DV", "--user", "ivan", "--pass", "s3cr3t-word"), jetstream=False))
        with Client(server.port, **{"user": "ivan", "pass": "s3cr3t-word"}) as client:
            client.flush()
        assert "s3cr3t-word" not in server.log_text()


class TestFiles:
    def test_the_pid_file_holds_the_process_id(self, launch: Launch, tmp_path: Path) -> None:
        file = tmp_path / "pid"
        server = launch(Setup(flags=("-P", str(file)), jetstream=False))
        assert int(file.read_text()) == server.pid

    def test_the_ports_file_holds_every_port(self, launch: Launch, tmp_path: Path) -> None:
        server = launch(Setup(flags=("--ports_file_dir", str(tmp_path), "-m", "-1"), jetstream=False))
        deadline = time.monotonic() + 90
        while not ((files := list(tmp_path.glob("*.ports"))) and files[0].read_text().endswith("}")):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert files[0].name == f"nats-server_{server.pid}.ports"
        ports = json.loads(files[0].read_text())
        assert ports["nats"] == [server.url]
        assert ports["monitoring"][0].startswith("http://127.0.0.1:")
        server.signal(signal.SIGTERM)
        server.wait()
        assert list(tmp_path.glob("*.ports")) == []

    def test_the_log_file_holds_the_log(self, launch: Launch, tmp_path: Path) -> None:
        log = tmp_path / "server.log"
        launch(Setup(flags=("-l", str(log)), jetstream=False))
        assert "[INF] Server is ready" in log.read_text()


class TestLogLines:
    def test_log_lines_have_the_form_of_nats_server(self, server: Server) -> None:
        lines = server.log_text().splitlines()
        form = rf"\[{server.pid}\] \d{{4}}/\d\d/\d\d \d\d:\d\d:\d\d\.\d{{6}} \[(INF|WRN|DBG)\] .*"
        assert all(re.fullmatch(form, line) for line in lines), lines
        said = [line for line in lines if "[INF]" in line]  # a slow machine may cause a warning
        assert said[-1].endswith("[INF] Server is ready")


class TestMonitoring:
    def test_healthz_is_ok(self, monitored: Server) -> None:
        assert page(monitored, "/healthz") == {"status": "ok"}

    def test_varz_counts_messages_and_connections(self, monitored: Server) -> None:
        with Client(monitored.port) as client:
            before = page(monitored, "/varz")
            client.publish("a", b"12345")
            client.flush()
            after = page(monitored, "/varz")
        assert after["in_msgs"] == before["in_msgs"] + 1
        assert after["in_bytes"] == before["in_bytes"] + 5
        assert after["connections"] >= 1
        assert (after["version"], after["port"]) == ("2.15.1", monitored.port)
        assert (after["max_payload"], after["proto"]) == (1048576, 1)

    @pytest.mark.parametrize(
        "field",
        [
            *("server_id", "start", "now", "uptime", "mem", "cores", "subscriptions"),
            *("leaf", "cluster", "gateway", "mqtt"),
        ],
    )
    def test_varz_has_every_field(self, monitored: Server, field: str) -> None:
        assert field in page(monitored, "/varz")

    def test_varz_shows_leafnodes_without_credentials(self, launch: Launch) -> None:
        url, deny = "nats-leaf://u:p@127.0.0.1:9", 'deny_imports: ["a"], deny_exports: ["b"]'
        config = f'server_name: x\nleafnodes {{ host: "127.0.0.1", port: -1, remotes: [{{url: "{url}", {deny}}}] }}'
        server = launch(Setup(flags=("-m", "-1"), config=config, jetstream=False))
        leaf = page(server, "/varz")["leaf"]
        assert (leaf["host"], leaf["auth_timeout"], leaf["tls_timeout"]) == ("127.0.0.1", 2, 2)
        assert leaf["port"] > 0
        denied = {"exports": ["b"], "imports": ["a"]}
        assert leaf["remotes"] == [{"local_account": "$G", "urls": ["127.0.0.1:9"], "deny": denied}]

    def test_connz_shows_a_connection_and_its_subscriptions(self, monitored: Server) -> None:
        with Client(monitored.port, name="probe") as client:
            client.subscribe("a.b")
            client.flush()
            cid = client.info["client_id"]
            shown = page(monitored, f"/connz?subs=1&cid={cid}")["connections"]
        assert [c["name"] for c in shown] == ["probe"]
        assert sorted(shown[0]["subscriptions_list"]) == sorted(["a.b", f"{client.inbox}.*"])
        assert shown[0]["subscriptions"] == 2

    def test_an_unknown_page_is_404(self, monitored: Server) -> None:
        assert monitoring_status(monitored, "/nothing") == 404
