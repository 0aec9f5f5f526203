"""The leafnode page, /leafz, with nats-server's field names. Owns the format and the query (`subs`, `acc`)."""

from __future__ import annotations

from typing import Any

from headrace.monitor.query import Query, has_flag


def leafz(leafs: list[dict[str, Any]], query: Query) -> dict[str, Any]:
    """Return the page; each entry of `leafs` has all its fields, including `subscriptions_list`."""
    selected = [leaf for leaf in leafs if query.get("acc", leaf["account"]) == leaf["account"]]
    if not has_flag(query, "subs"):
        selected = [{key: leaf[key] for key in leaf if key != "subscriptions_list"} for leaf in selected]
    return {"leafnodes": len(selected), "leafs": selected}
