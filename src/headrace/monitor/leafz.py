"""The page of leafnode connections, /leafz: the reference's field names. Owns the form and the query (`subs`, `acc`)."""

from __future__ import annotations

from typing import Any

from headrace.monitor.query import Query, asked


def leafz(leafs: list[dict[str, Any]], query: Query) -> dict[str, Any]:
    """Each entry has the fields of the page, `subscriptions_list` among them."""
    chosen = [leaf for leaf in leafs if query.get("acc", leaf["account"]) == leaf["account"]]
    if not asked(query, "subs"):
        chosen = [{key: leaf[key] for key in leaf if key != "subscriptions_list"} for leaf in chosen]
    return {"leafnodes": len(chosen), "leafs": chosen}
