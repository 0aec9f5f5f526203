"""Files in deploy/: rules and dashboard use metrics that exist, and the server accepts the configurations."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import nats
import pytest
import yaml

import headrace
from headrace.archive.follower import FollowerStats
from headrace.config.archive_options import ArchiveOptions
from headrace.monitor import metrics as prometheus
from support.certificates import make
from support.processes import headrace as command

DEPLOY = Path(__file__).parents[2] / "deploy"
_NAME = re.compile(r"\bheadrace_\w+")


def expressions() -> list[str]:
    rules = yaml.safe_load((DEPLOY / "headrace.rules.yml").read_text())
    board = json.loads((DEPLOY / "headrace.dashboard.json").read_text())
    found = [rule["expr"] for group in rules["groups"] for rule in group["rules"]]
    return found + [target["expr"] for panel in board["panels"] for target in panel["targets"]]


async def test_every_metric_that_is_watched_is_exported(tmp_path: Path) -> None:
    archive = ArchiveOptions(f"file://{tmp_path / 'archive'}")
    async with headrace.Server(store_dir=tmp_path / "data", archive=archive) as server:
        client = await nats.connect(server.url)
        js = client.jetstream()
        await js.add_stream(name="A", subjects=["a"])
        await js.add_stream(name="B", mirror=nats.js.api.StreamSource(name="A"))
        await js.add_consumer("A", durable_name="c", ack_policy="explicit")
        text = prometheus.render_metrics(server.stats(), server.accounts, "").decode()
        assert server.archive is not None
        text += prometheus.render_archive(server.archive.read_stats()).decode()
        text += prometheus.render_standby(FollowerStats()).decode()
        await client.close()
    text += prometheus.render_standby(FollowerStats()).decode()
    exported = {line.split("{")[0].split(" ")[0] for line in text.splitlines() if not line.startswith("#")}
    for name in {name for expression in expressions() for name in _NAME.findall(expression)}:
        assert name in exported, name


@pytest.mark.skipif(not shutil.which("promtool"), reason="promtool is missing: apt-get install prometheus")
def test_promtool_accepts_rules_and_their_tests() -> None:
    lines = [
        line
        for name in ("headrace", "tables")
        for line in (["check", "rules", f"{name}.rules.yml"], ["test", "rules", f"{name}.rules.test.yml"])
    ]
    for line in lines:
        done = subprocess.run(["promtool", *line], cwd=DEPLOY, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", ["development", "production", "edge-leaf", "container"])
def test_configurations_are_accepted(name: str, tmp_path: Path) -> None:
    made = make(tmp_path)
    text = (DEPLOY / f"{name}.conf").read_text()
    text = text.replace("/etc/headrace/server.pem", made.cert)
    text = text.replace("/etc/headrace/server.key", made.key).replace("/var/lib/headrace", str(tmp_path))
    (tmp_path / "edge.creds").write_text("")
    text = text.replace("/etc/headrace/edge.creds", str(tmp_path / "edge.creds"))
    written = tmp_path / "headrace.conf"
    written.write_text(text)
    done = command("serve", "-t", "-c", str(written))
    assert done.returncode == 0, done.stderr
