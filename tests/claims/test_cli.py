"""`headrace claims ...`, as a user runs it, on both servers."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from claims.claims_harness import LARGE, TIMEOUT_S, ClaimsHarness, wait_until_stored
from headrace.claims import FakeClock, load
from headrace.claims.clock import SECOND_NS
from headrace.cli.app import run
from headrace.testing import HostedServer
from support.ports import free_port

YAML = """
namespace: {name}
claim_check:
  threshold: 65536
  ttl:
    max_age: {max_age}
    retention_after_read: 0
    grace_period: 60
  store:
    path: {folder}
    sync: false
"""


def written(world: ClaimsHarness, tmp_path: Path, max_age: int = 7200) -> Path:
    path = tmp_path / "claims.yaml"
    path.write_text(YAML.format(name=world.name, folder=world.folder, max_age=max_age))
    return path


async def called(*arguments: Any) -> int:
    """Run a command in a thread, because it has its own event loop."""
    return await asyncio.to_thread(run, [str(item) for item in arguments])


async def offloaded(world: ClaimsHarness, path: Path, age_s: int = 0) -> tuple[Any, Any]:
    """Publish a claim with a producer's clock that is this far in the past."""
    config = load(path)
    then = FakeClock(world.clock.now_ns() - age_s * SECOND_NS)
    claims = await world.claims(ttl=config.ttl, clock=then if age_s else None)
    stream = await world.stream()
    sent = await claims.producer.publish(f"{stream}.a", LARGE)
    await wait_until_stored(world.connection)
    return claims, sent


async def test_show_ls_and_stats_tell_of_a_claim(world: ClaimsHarness, tmp_path: Path, capsys: Any) -> None:
    _, sent = await offloaded(world, written(world, tmp_path))
    claim_id = sent.reference.claim_id
    assert await called("claims", "show", claim_id, "-s", world.url) == 0
    shown = capsys.readouterr().out
    assert sent.reference.object_key in shown
    assert "event=created" in shown
    assert await called("claims", "ls", world.name, "--json", "-s", world.url) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line)["claim"] == claim_id
    assert json.loads(line)["state"] == "live"
    assert await called("claims", "stats", "--json", "-s", world.url) == 0
    lines = [json.loads(text) for text in capsys.readouterr().out.splitlines()]
    mine = next(item for item in lines if item["namespace"] == world.name)
    assert (mine["live"], mine["stored_bytes"], mine["created"]) == (1, len(LARGE), 1)
    assert await called("claims", "show", "nothing", "-s", world.url) == 1
    assert "claim 'nothing' not found" in capsys.readouterr().err


async def test_collect_dry_and_wet(world: ClaimsHarness, tmp_path: Path, capsys: Any) -> None:
    path = written(world, tmp_path, max_age=60)
    claims, sent = await offloaded(world, path, age_s=7200)
    await world.wire.api_request(f"STREAM.PURGE.{sent.stream}")
    assert await called("claims", "collect", "--dry-run", "-c", path, "-s", world.url) == 0
    said = capsys.readouterr().out
    assert "would remove 1 claims" in said
    assert sent.reference.object_key in said
    assert await claims.store.exists(sent.reference.object_key)
    assert await called("claims", "collect", "-c", path, "-s", world.url) == 0
    assert "removed 1 claims" in capsys.readouterr().out
    assert not await claims.store.exists(sent.reference.object_key)


async def test_lint_and_publish(world: ClaimsHarness, tmp_path: Path, capsys: Any) -> None:
    path = written(world, tmp_path)
    assert await called("claims", "publish", "-c", path, "-s", world.url) == 0
    assert await called("claims", "lint", "-c", path, "-s", world.url, "--stream", "NO-SUCH") == 1
    said = capsys.readouterr().out
    assert "stream NO-SUCH: it does not exist" in said
    other = written(world, tmp_path, max_age=3600)
    assert await called("claims", "lint", "-c", other, "-s", world.url) == 1
    assert "max_age is 3600, published is 7200" in capsys.readouterr().out


@pytest.mark.parametrize("world", ["nats-server"], indirect=True)
async def test_collect_watches_until_it_is_stopped(world: ClaimsHarness, tmp_path: Path) -> None:
    """A separate process collects, exports its metrics, and ends without an error message."""
    path = written(world, tmp_path, max_age=60)
    claims, sent = await offloaded(world, path, age_s=7200)
    await world.wire.api_request(f"STREAM.PURGE.{sent.stream}")
    port = free_port()
    command = ["claims", "collect", "--watch", "-c", path, "-s", world.url, "--metrics-port", port]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "headrace", *map(str, command), stderr=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(2 * TIMEOUT_S):
        while await claims.store.exists(sent.reference.object_key):
            await asyncio.sleep(0.05)
        line = f'claim_check_claims_expired_total{{namespace="{world.name}"}} 1.0'
        while line not in await exported(port):
            await asyncio.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, said = await process.communicate()
    assert process.returncode == 0, said.decode()
    assert b"Traceback" not in said


async def exported(port: int) -> str:
    answer = await asyncio.to_thread(urllib.request.urlopen, f"http://127.0.0.1:{port}/metrics")
    with answer:
        return str(answer.read().decode())


async def test_what_is_wrong_is_explained(tmp_path: Path, capsys: Any) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text("namespace: ns\nclaim_check:\n  ttl:\n    max_age: soon\n")
    with pytest.raises(Exception, match=r"claim_check\.ttl\.max_age: 'soon'"):
        load(path)
    assert await called("claims", "ls", "-s", "nats://127.0.0.1:1") == 1
    assert "cannot connect to" in capsys.readouterr().err


async def test_credentials_tls_and_contexts_are_those_of_other_commands(
    tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    (tmp_path / "config" / "nats" / "context").mkdir(parents=True)
    with HostedServer(port=-1, store_dir=tmp_path / "data", user="ann", password="pw") as server:
        context = {"url": server.url, "user": "ann", "password": "pw"}
        (tmp_path / "config" / "nats" / "context" / "prod.json").write_text(json.dumps(context))
        path = tmp_path / "claims.yaml"
        path.write_text(YAML.format(name="video", folder=tmp_path / "objects", max_age=7200))
        assert await called("claims", "publish", "-c", path, "-s", server.url) == 1
        assert "uthorization" in capsys.readouterr().err
        for options in (
            ("-s", server.url, "--user", "ann", "--password", "pw"),
            ("--context", "prod"),
        ):
            assert await called("claims", "publish", "-c", path, *options) == 0
            assert await called(*options, "claims", "publish", "-c", path) == 0
            assert capsys.readouterr().out == "published video\n" * 2
    assert await called("claims", "ls", "--context", "absent") != 0
    assert "absent" in capsys.readouterr().err
    missing = str(tmp_path / "missing")
    assert await called("claims", "ls", "-s", "nats://127.0.0.1:1", "--tlsca", missing) != 0
    assert missing in capsys.readouterr().err


async def test_metrics_are_served_on_the_chosen_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen: list[Any] = []
    monkeypatch.setattr(
        "prometheus_client.start_http_server", lambda port, addr, registry: chosen.append((port, addr))
    )
    with HostedServer(port=-1, store_dir=tmp_path / "data") as server:
        path = tmp_path / "claims.yaml"
        path.write_text(YAML.format(name="video", folder=tmp_path / "objects", max_age=7200))
        command = ("claims", "collect", "-c", path, "-s", server.url, "--metrics-port", 9000)
        assert await called(*command) == 0
        assert await called(*command, "--metrics-host", "0.0.0.0") == 0
    assert chosen == [(9000, "127.0.0.1"), (9000, "0.0.0.0")]
