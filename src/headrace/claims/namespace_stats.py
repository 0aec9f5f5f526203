"""Statistics of each namespace, from its published configuration, the registry and the audit trail."""

from __future__ import annotations

from collections import Counter
from typing import Any

from headrace.claims.audit_trail import Audit
from headrace.claims.jetstream_client import JetStreamClient
from headrace.claims.published_config import list_published
from headrace.claims.registry import Registry


async def collect_stats(jetstream: JetStreamClient) -> list[dict[str, Any]]:
    """Return one mapping per namespace: live claims and bytes, by state, and events so far."""
    found = []
    for config in await list_published(jetstream):
        namespace = config["namespace"]
        states: Counter[str] = Counter()
        stored = 0
        async for page in Registry(jetstream).scan(namespace):
            states.update(entry.state for entry in page)
            stored += sum(entry.stored_size for entry in page)
        events = Counter([event.event async for event in Audit(jetstream).events(namespace)])
        found.append(
            {
                "namespace": namespace,
                "live": states.total(),
                "stored_bytes": stored,
                **{f"state_{state}": count for state, count in sorted(states.items())},
                **dict(sorted(events.items())),
            }
        )
    return found
