"""A claim's reference comes as a column."""

from __future__ import annotations

import json
from dataclasses import asdict

import pyarrow as pa

from headrace.claims import reference
from headrace.spark import claims
from headrace.spark.schema import CLAIM
from spark.conftest import Broker
from spark.test_batch import Load

REFERENCE = reference.Reference("id1", "bucket", "ns/t/2026111500/id1", 5, "none", "c", 5, "s", 10, 20)


def test_the_column_is_what_a_reference_says() -> None:
    assert claims.CLAIM_HEADER == reference.CLAIM_HEADER
    names = [name for name, _ in claims.FIELDS]
    assert names == CLAIM.names
    assert set(names) == set(asdict(REFERENCE)) - {"version"}


def test_what_is_no_reference_is_null() -> None:
    marked = [("prism-claim-check", ["true"])]
    headers = pa.array([None, marked, marked, marked], pa.map_(pa.string(), pa.list_(pa.string())))
    wrong = json.dumps({**asdict(REFERENCE), "original_size": "5"}).encode()
    found = claims.claim_column(headers, pa.array([b"", b"junk", wrong, REFERENCE.encode()])).to_pylist()
    assert found[:3] == [None, None, None]
    assert found[3]["object_key"] == "ns/t/2026111500/id1"


def test_references_are_read_by_both_paths(ours: Broker, load: Load, name: str) -> None:
    ours.create(name)
    marked = b"prism-claim-check: true\r\n"
    ours.publish(name, [(f"{name}.a", marked, REFERENCE.encode()), (f"{name}.b", b"", b"plain")])
    for options in ({}, {"path": ours.path}):
        first, second = load(ours, name, **options).select("seq", "claim").orderBy("seq").collect()
        assert (first.claim.claim_id, first.claim.original_size) == ("id1", 5)
        assert first.claim.expires_at.second == 20
        assert second.claim is None
