"""`headrace serve --tables`: the worker of tables runs beside the server, and ends with it."""

from __future__ import annotations

import os
import re
import signal
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from conformance.client import Client
from headrace.tables.catalog import create_table, open_catalog
from headrace.tables.config import TableConfig, save_tables
from support.ports import free_port
from support.processes import Serving, headrace, serving
from support.tables import make_config, read_seqs

_DEADLINE_S = 120.0


def write_tables(folder: Path, connection: dict[str, str] | None = None) -> TableConfig:
    """Create a table and write the file; return the table."""
    config = make_config(folder, commit_interval="2s")
    create_table(open_catalog(config), config)
    path = folder / "tables.yaml"
    path.write_text(yaml.safe_dump({"connection": connection or {}}))
    save_tables(path, {"ORDERS": config})
    return config


def wait_until(is_so: Callable[[], object], server: Serving) -> None:
    deadline_s = time.monotonic() + _DEADLINE_S
    while not is_so():
        assert time.monotonic() < deadline_s, server.log
        time.sleep(0.02)


def find_workers(server: Serving) -> list[int]:
    return [int(pid) for pid in re.findall(r"Tables: worker started, process (\d+)", server.log)]


def is_running(pid: int) -> bool:
    """Return whether a process is there that has not ended; one that nobody waited for has."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def publish(client: Client, count: int) -> None:
    for number in range(count):
        client.store(f"orders.{number}", b"%d" % number)


def make_flags(folder: Path, *more: str) -> tuple[str, ...]:
    return ("-js", "-sd", str(folder / "store"), "--tables", "tables.yaml", *more)


def test_rows_land_and_a_killed_worker_is_started_again(tmp_path: Path) -> None:
    config = write_tables(tmp_path)
    with serving(tmp_path, *make_flags(tmp_path)) as server:
        with Client(server.port) as client:
            client.api("STREAM.CREATE.ORDERS", {"name": "ORDERS", "subjects": ["orders.*"]})
            publish(client, 3)
            wait_until(lambda: read_seqs(config) == [1, 2, 3], server)
            wait_until(lambda: "Tables: table ORDERS: 3 rows up to sequence 3" in server.log, server)
            os.kill(find_workers(server)[0], signal.SIGKILL)
            wait_until(lambda: len(find_workers(server)) == 2, server)
            publish(client, 2)
            wait_until(lambda: read_seqs(config) == [1, 2, 3, 4, 5], server)
        server.signal(signal.SIGTERM)
        assert server.ended() == 0
        assert not any(is_running(pid) for pid in find_workers(server))
        ended = server.log.index("Tables: worker ended with exit code 0")
        assert ended < server.log.index("Initiating Shutdown")
        assert "Tables: worker ended with exit code -9" in server.log


def test_the_worker_serves_metrics_on_the_port_of_the_file(tmp_path: Path) -> None:
    write_tables(tmp_path)
    port = free_port()
    with (tmp_path / "tables.yaml").open("a") as file:
        file.write(f"metrics_port: {port}\n")

    def has_metrics() -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as response:
                return 'headrace_table_lag_messages{table="ORDERS"}' in response.read().decode()
        except OSError:
            return False

    with serving(tmp_path, *make_flags(tmp_path)) as server:
        wait_until(has_metrics, server)
        server.signal(signal.SIGTERM)
        assert server.ended() == 0


def test_the_worker_ends_with_a_server_that_is_killed(tmp_path: Path) -> None:
    write_tables(tmp_path)
    with serving(tmp_path, *make_flags(tmp_path)) as server:
        wait_until(lambda: find_workers(server), server)
        server.process.kill()
        server.process.wait()
        wait_until(lambda: not is_running(find_workers(server)[0]), server)


def test_the_file_has_the_credentials_of_the_worker(tmp_path: Path) -> None:
    config = write_tables(tmp_path, {"user": "tables", "password": "secret"})
    flags = make_flags(tmp_path, "--user", "tables", "--pass", "secret")
    with serving(tmp_path, *flags) as server:
        with Client(server.port, user="tables", **{"pass": "secret"}) as client:
            client.api("STREAM.CREATE.ORDERS", {"name": "ORDERS", "subjects": ["orders.*"]})
            publish(client, 1)
            wait_until(lambda: read_seqs(config) == [1], server)
        server.signal(signal.SIGTERM)
        assert server.ended() == 0
        assert "secret" not in server.log


@pytest.mark.parametrize("flag", ["", "-t"])
@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("tables: {ORDERS: {table: shop.orders}}", "Object missing required field `catalog`"),
        (
            "connection: {host: a}\ntables: {O: {table: s.o, catalog: 'http://c'}}",
            "connection.host is unknown",
        ),
        ("", "has no tables"),
        (None, "tables.yaml does not exist"),
    ],
)
def test_a_file_with_an_error_refuses_the_start(
    tmp_path: Path, text: str | None, error: str, flag: str
) -> None:
    path = tmp_path / "tables.yaml"
    if text is not None:
        path.write_text(text)
    flags = [
        "-p",
        "-1",
        "-js",
        "-sd",
        str(tmp_path / "store"),
        "--tables",
        str(path),
        *([flag] if flag else []),
    ]
    done = headrace("serve", *flags, timeout_s=_DEADLINE_S)
    assert done.returncode == 1
    assert error in done.stderr
    assert "Traceback" not in done.stderr


def test_a_configuration_with_tables_is_checked(tmp_path: Path) -> None:
    write_tables(tmp_path)
    conf = tmp_path / "server.conf"
    conf.write_text(f'jetstream {{ store_dir: "{tmp_path}/store" }}\ntables: "{tmp_path}/tables.yaml"\n')
    done = headrace("serve", "-c", str(conf), "-t", timeout_s=_DEADLINE_S)
    assert (done.returncode, "is valid" in done.stdout) == (0, True), done.stderr
    conf.write_text(f'tables: "{tmp_path}/tables.yaml"\n')
    done = headrace("serve", "-c", str(conf), "-t", timeout_s=_DEADLINE_S)
    assert "requires JetStream" in done.stderr
