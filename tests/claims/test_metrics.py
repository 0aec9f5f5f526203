"""Alert rules and dashboard against metrics that were really exported.

promtool (Debian package prometheus) tests the rules over hours in `deploy/claims.rules.test.yml`; where it is not
installed, the expressions are evaluated here, by a reading of PromQL that is just large enough for them.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from claims.faults import Faulty
from claims.world import LARGE, World
from headrace.claims import PRESETS, MemoryStore, NotFound, Received
from headrace.claims.stores import Plain, StoreError

DEPLOY = Path(__file__).parents[2] / "deploy"
RULES = yaml.safe_load((DEPLOY / "claims.rules.yml").read_text())
RECORDED = {
    rule["record"]: rule["expr"] for group in RULES["groups"] for rule in group["rules"] if "record" in rule
}
ALERTS = {rule["alert"]: rule for group in RULES["groups"] for rule in group["rules"] if "alert" in rule}
DASHBOARD = json.loads((DEPLOY / "claims.dashboard.json").read_text())
_NAME = re.compile(r"\bclaim_check_\w+")
_WINDOW_S = 300


def samples(claims: Any) -> dict[str, dict[str, float]]:
    """What a scrape sees: name -> namespace -> value."""
    found: dict[str, dict[str, float]] = {}
    text = generate_latest(claims.metrics.registry).decode()
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, {})[sample.labels["namespace"]] = sample.value
    for name, expression in RECORDED.items():
        (source,) = _NAME.findall(expression)
        found[name] = found.get(source, {})
    return found


def firing(name: str, before: dict[str, Any], after: dict[str, Any], namespace: str) -> bool:
    """Whether an alert's expression holds between two scrapes that are its window apart."""

    def rate(match: re.Match[str]) -> str:
        change = after[match[1]][namespace] - before[match[1]].get(namespace, 0)
        return repr(change / _WINDOW_S)

    expression = re.sub(r"rate\((\w+)\[5m\]\)", rate, ALERTS[name]["expr"])
    expression = expression.replace("unless on (namespace)", "and not").replace("max by (namespace)", "")
    # A series that does not exist equals nothing; no gauge or counter here is ever negative.
    expression = _NAME.sub(lambda match: repr(after.get(match[0], {}).get(namespace, -1.0)), expression)
    assert re.fullmatch(r"[\d\s.e+*()<>=andot-]+", expression), expression
    return bool(eval(expression))


async def nothing(_: Received) -> None:
    """A handler that is content."""


async def test_every_name_in_rules_and_dashboard_is_exported(world: World) -> None:
    claims = await world.claims(ttl=PRESETS["aggressive"])
    stream = await world.stream()
    await world.consumer(stream, "c")
    await claims.producer.publish(f"{stream}.a", LARGE)
    await claims.consumer.handle(await world.next(stream, "c"), nothing)
    await claims.collector.collect()
    exported = samples(claims)
    expressions = [rule["expr"] for rule in ALERTS.values()] + list(RECORDED.values())
    expressions += [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
    for name in {name for expression in expressions for name in _NAME.findall(expression)}:
        assert name in exported, name
        assert world.name in exported[name], f"{name} has a namespace"


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


@pytest.mark.parametrize("preset", list(PRESETS))
async def test_nothing_fires_while_all_is_well(world: World, preset: str) -> None:
    """Also when reading never deletes, where a leak alert on creations and deletions alone would never stop."""
    claims = await world.claims(ttl=PRESETS[preset])
    stream = await world.stream()
    await world.consumer(stream, "c")
    before = samples(claims)
    for number in range(10):
        await claims.producer.publish(f"{stream}.{number}", LARGE)
        await claims.consumer.handle(await world.next(stream, "c"), nothing)
    await claims.collector.collect()
    after = samples(claims)
    assert [name for name in ALERTS if firing(name, before, after, world.name)] == []


async def test_a_leak_fires(world: World) -> None:
    claims = await world.claims(ttl=PRESETS["conservative"])
    stream = await world.stream()
    before = samples(claims)
    await claims.producer.publish(f"{stream}.a", LARGE)
    await claims.store.put(f"{world.name}/t/2020010100/lost", b"x", Plain())
    await world.advance(3 * 3600)
    await claims.collector.collect(dry_run=True)
    after = samples(claims)
    assert firing("ClaimCheckStorageLeak", before, after, world.name)


async def test_a_leak_fires_when_nobody_sweeps(world: World) -> None:
    """Without a collector the figure of orphans does not exist."""
    claims = await world.claims(ttl=PRESETS["conservative"])
    stream = await world.stream()
    before = samples(claims)
    await claims.producer.publish(f"{stream}.a", LARGE)
    after = samples(claims)
    assert world.name not in after.get("claim_check_orphaned_claims", {})
    assert firing("ClaimCheckStorageLeak", before, after, world.name)


async def test_missing_claims_and_refused_deletions_fire(world: World) -> None:
    faulty = Faulty(MemoryStore(clock=world.clock))
    claims = await world.claims(objects=faulty, backend="memory", ttl=PRESETS["aggressive"])
    stream = await world.stream()
    await world.consumer(stream, "c")
    before = samples(claims)
    faulty.fail("delete", StoreError("503"))
    for number in range(40):
        sent = await claims.producer.publish(f"{stream}.{number}", LARGE)
        message = await world.next(stream, "c")
        if number % 10 == 0:
            assert sent.reference
            await faulty._store.delete([sent.reference.object_key])
            with pytest.raises(NotFound):
                await claims.consumer.read(message)
        else:
            await claims.consumer.handle(message, nothing)
    after = samples(claims)
    assert firing("ClaimCheckTTLTooShort", before, after, world.name)
    assert firing("ClaimCheckDeleteFailures", before, after, world.name)


@pytest.mark.skipif(not shutil.which("promtool"), reason="promtool is missing: apt-get install prometheus")
def test_promtool_agrees() -> None:
    for command in (["check", "rules", "claims.rules.yml"], ["test", "rules", "claims.rules.test.yml"]):
        done = subprocess.run(["promtool", *command], cwd=DEPLOY, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
