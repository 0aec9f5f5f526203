"""/subsz counts matching subscriptions in steps, and shows a part of them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from headrace.monitor.sliced_page import PageTotal, iter_json
from headrace.monitor.subsz import subsz

CLIENTS, SUBS = 3, 200


def make_connection(cid: int) -> Any:
    subs = {
        number: SimpleNamespace(pattern=b"a.%d" % (number % 4), queue=None, sid=b"%d" % number, delivered=0)
        for number in range(SUBS)
    }
    return SimpleNamespace(session=SimpleNamespace(identity=None, subs=subs, cid=cid))


@pytest.mark.parametrize(("test", "total"), [("", CLIENTS * SUBS), ("a.1", CLIENTS * SUBS // 4), ("b", 0)])
@pytest.mark.parametrize(("offset", "limit"), [(0, 10), (140, 20), (0, 10_000), (10_000, 5)])
def test_a_part_of_what_matches_is_shown(test: str, total: int, offset: int, limit: int) -> None:
    connections = {cid: make_connection(cid) for cid in range(CLIENTS)}
    query = {"subs": "1", "offset": str(offset), "limit": str(limit)} | ({"test": test} if test else {})
    page = subsz([], connections, query)
    assert isinstance(page["total"], PageTotal)
    assert len(list(page["total"])) > CLIENTS, "it is counted in steps"
    shown = msgspec.json.decode(b"".join(iter_json(page)))
    assert shown["total"] == total
    assert len(shown["subscriptions_list"]) == max(0, min(total - offset, limit))
    expected = [
        (cid, str(number))
        for cid in range(CLIENTS)
        for number in range(SUBS)
        if test in ("", f"a.{number % 4}")
    ]
    found = [(each["cid"], each["sid"]) for each in shown["subscriptions_list"]]
    assert found == expected[offset : offset + limit]
