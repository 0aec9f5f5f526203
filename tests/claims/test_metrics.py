"""Alert rules and dashboard, evaluated by Prometheus on metrics that a program really exported.

promtool (Debian package prometheus) gets the exported metrics, one scrape per minute, and evaluates the rules and the
expressions of the dashboard. `deploy/claims.rules.test.yml` tests the same with synthetic series.
"""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from claims.claims_harness import LARGE, ClaimsHarness
from claims.faulty_store import Faulty
from headrace.claims import (
    PRESETS,
    ClaimNotFound,
    MemoryStore,
    Received,
)
from headrace.claims.stores import ObjectStoreError, StaticAttributes

DEPLOY = Path(__file__).parents[2] / "deploy"
RULES = yaml.safe_load((DEPLOY / "claims.rules.yml").read_text())
RECORDED = {
    rule["record"]: rule["expr"] for group in RULES["groups"] for rule in group["rules"] if "record" in rule
}
ALERTS = {rule["alert"]: rule for group in RULES["groups"] for rule in group["rules"] if "alert" in rule}
DASHBOARD = json.loads((DEPLOY / "claims.dashboard.json").read_text())
PANELS = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
_NAME = re.compile(r"\bclaim_check_\w+")
#: Metrics belong to the program, so one server is enough for tests of metrics only.
on_one_server = pytest.mark.parametrize("world", ["headrace"], indirect=True)


def promtool(*arguments: str) -> None:
    """Run promtool; its output is the failure message."""
    if shutil.which("promtool") is None:
        pytest.fail("promtool is missing; on Debian: apt-get install prometheus")
    command = ["promtool", *arguments]
    done = subprocess.run(command, cwd=DEPLOY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


class Scrapes:
    """A program's metrics as Prometheus would see them: one sample per minute."""

    def __init__(self, claims: Any, folder: Path) -> None:
        self._claims = claims
        self._path = folder / "scrapes.test.yml"
        self._values: dict[str, list[str]] = {}
        self.minutes = 0

    def take(self) -> None:
        text = generate_latest(self._claims.metrics.registry).decode()
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                labels = ",".join(f"{name}={json.dumps(value)}" for name, value in sample.labels.items())
                values = self._values.setdefault(f"{sample.name}{{{labels}}}", ["_"] * self.minutes)
                values.append(repr(sample.value))
        self.minutes += 1

    @property
    def names(self) -> set[str]:
        return {series.partition("{")[0] for series in self._values}

    def fires(self, namespace: str, expected: dict[str, list[int]]) -> None:
        """Check that exactly these alerts fire at these minutes (negative: do not fire)."""
        checks = []
        for alert, minutes in expected.items():
            labels = {"severity": "warning", "namespace": namespace}
            texts = {
                name: text.replace("{{ $labels.namespace }}", namespace)
                for name, text in ALERTS[alert]["annotations"].items()
            }
            firing = [{"exp_labels": labels, "exp_annotations": texts}]
            checks += [
                {
                    "alertname": alert,
                    "eval_time": f"{abs(minute)}m",
                    "exp_alerts": firing if minute > 0 else [],
                }
                for minute in minutes
            ]
        self._evaluate({"alert_rule_test": checks})

    def has_values(self, expressions: list[str]) -> None:
        """Check that each expression has a value."""
        minute = f"{self.minutes - 1}m"
        checks = [
            {
                "expr": f"count({text}) > bool 0",
                "eval_time": minute,
                "exp_samples": [{"labels": "{}", "value": 1}],
            }
            for text in expressions
        ]
        self._evaluate({"promql_expr_test": checks})

    def _evaluate(self, checks: dict[str, Any]) -> None:
        series = [{"series": name, "values": " ".join(values)} for name, values in self._values.items()]
        document = {
            "rule_files": [str(DEPLOY / "claims.rules.yml")],
            "evaluation_interval": "1m",
            "tests": [{"interval": "1m", "input_series": series, **checks}],
        }
        self._path.write_text(yaml.safe_dump(document))
        promtool("test", "rules", str(self._path))


async def scraped(claims: Any, folder: Path, minutes: int, work: Callable[[int], Awaitable[Any]]) -> Scrapes:
    """Scrape a working program minute by minute."""
    scrapes = Scrapes(claims, folder)
    scrapes.take()
    for minute in range(1, minutes):
        await work(minute)
        scrapes.take()
    return scrapes


async def nothing(_: Received) -> None:
    """Succeed without doing anything."""


async def test_every_name_in_rules_and_dashboard_is_exported_and_evaluates(
    world: ClaimsHarness, tmp_path: Path
) -> None:
    claims = await world.claims(ttl=PRESETS["aggressive"])
    stream = await world.stream()
    await world.consumer(stream, "c")

    async def work(minute: int) -> None:
        await claims.producer.publish(f"{stream}.{minute}", LARGE)
        await claims.consumer.handle(await world.next(stream, "c"), nothing)
        await claims.collector.collect()

    scrapes = await scraped(claims, tmp_path, 8, work)
    sources = [rule["expr"] for rule in ALERTS.values()] + list(RECORDED.values()) + PANELS
    used = {name for text in sources for name in _NAME.findall(text)}
    assert used - scrapes.names - RECORDED.keys() == set()
    await asyncio.to_thread(scrapes.has_values, [*RECORDED, *RECORDED.values(), *PANELS])


def test_the_seeds_names_are_there() -> None:
    plain = {"claims_created", "claims_deleted", "claims_retrieved", "claims_expired"}
    plain |= {"claim_delete_failures", "claim_not_found_errors"}
    assert {f"claim_check_{name}" for name in plain} == RECORDED.keys()
    assert {name: rule["for"] for name, rule in ALERTS.items()} == {
        "ClaimCheckStorageLeak": "30m",
        "ClaimCheckTTLTooShort": "10m",
        "ClaimCheckDeleteFailures": "10m",
    }
    assert all(rule["labels"] == {"severity": "warning"} for rule in ALERTS.values())
    titles = [panel["title"] for panel in DASHBOARD["panels"]]
    assert titles[:5] == [
        "Claims created",
        "Claims removed",
        "Outstanding claims",
        "Stored bytes",
        "Median lifetime",
    ]


@on_one_server
@pytest.mark.parametrize("preset", list(PRESETS))
async def test_nothing_fires_while_all_is_well(world: ClaimsHarness, preset: str, tmp_path: Path) -> None:
    """Also if reading never deletes: an alert on creations and deletions alone would never stop."""
    claims = await world.claims(ttl=PRESETS[preset])
    stream = await world.stream()
    await world.consumer(stream, "c")

    async def work(minute: int) -> None:
        await claims.producer.publish(f"{stream}.{minute}", LARGE)
        await claims.consumer.handle(await world.next(stream, "c"), nothing)
        await claims.collector.collect()

    scrapes = await scraped(claims, tmp_path, 42, work)
    await asyncio.to_thread(scrapes.fires, world.name, {alert: [-15, -41] for alert in ALERTS})


@on_one_server
async def test_leaked_claims_fire_the_alert(world: ClaimsHarness, tmp_path: Path) -> None:
    """A sweep finds claims beyond their max_age but may not delete them."""
    claims = await world.claims(ttl=PRESETS["conservative"])
    stream = await world.stream()
    await claims.store.put(f"{world.name}/t/2020010100/lost", b"x", StaticAttributes())
    await world.advance(3 * 3600)

    async def work(minute: int) -> None:
        await claims.producer.publish(f"{stream}.{minute}", LARGE)
        await claims.collector.collect(dry_run=True)

    scrapes = await scraped(claims, tmp_path, 42, work)
    await asyncio.to_thread(scrapes.fires, world.name, {"ClaimCheckStorageLeak": [-20, 41]})


@on_one_server
async def test_a_leak_fires_when_nobody_sweeps(world: ClaimsHarness, tmp_path: Path) -> None:
    """Without a collector there is no metric of orphans."""
    claims = await world.claims(ttl=PRESETS["conservative"])
    stream = await world.stream()
    scrapes = await scraped(
        claims, tmp_path, 42, lambda minute: claims.producer.publish(f"{stream}.{minute}", LARGE)
    )
    await asyncio.to_thread(scrapes.fires, world.name, {"ClaimCheckStorageLeak": [-20, 41]})


@on_one_server
async def test_missing_claims_and_refused_deletions_fire(world: ClaimsHarness, tmp_path: Path) -> None:
    faulty = Faulty(MemoryStore(clock=world.clock))
    claims = await world.claims(objects=faulty, backend="memory", ttl=PRESETS["aggressive"])
    stream = await world.stream()
    await world.consumer(stream, "c")
    faulty.fail("delete", ObjectStoreError("503"))

    async def work(minute: int) -> None:
        for number in range(8):
            sent = await claims.producer.publish(f"{stream}.{number}", LARGE)
            message = await world.next(stream, "c")
            if number:
                await claims.consumer.handle(message, nothing)
                continue
            assert sent.reference
            await faulty._store.delete([sent.reference.object_key])
            with pytest.raises(ClaimNotFound):
                await claims.consumer.read(message)

    scrapes = await scraped(claims, tmp_path, 17, work)
    alerts = {"ClaimCheckTTLTooShort": [-5, 16], "ClaimCheckDeleteFailures": [-5, 16]}
    await asyncio.to_thread(scrapes.fires, world.name, alerts)


def test_promtool_accepts_rules_and_their_tests() -> None:
    promtool("check", "rules", "claims.rules.yml")
    promtool("test", "rules", "claims.rules.test.yml")


async def test_what_age_removes_is_counted_as_expired(world: ClaimsHarness) -> None:
    claims = await world.claims(ttl=PRESETS["conservative"])
    stream = await world.stream()
    sent = await claims.producer.publish(f"{stream}.a", LARGE)
    await world.pass_ttl(claims, sent, 86401)
    await claims.collector.collect()
    value = claims.metrics.registry.get_sample_value
    labels = {"namespace": world.name}
    assert value("claim_check_claims_created_total", labels) == 1
    assert value("claim_check_claims_deleted_total", labels) == 0
    assert value("claim_check_claims_expired_total", labels) == 1


async def test_live_bytes_are_a_gauge(world: ClaimsHarness) -> None:
    claims = await world.claims()
    stream = await world.stream()
    for number in range(3):
        await claims.producer.publish(f"{stream}.{number}", LARGE)
    await claims.collector.collect()
    value = claims.metrics.registry.get_sample_value
    assert value("claim_check_live_bytes", {"namespace": world.name}) == 3 * len(LARGE)
    assert value("claim_check_live_claims", {"namespace": world.name}) == 3
