"""Decoders return what they promise, or raise their documented error, for any bytes in broker or store."""

from __future__ import annotations

import copy
import json
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from headrace.claims import ClaimConfig, ClaimFailure
from headrace.claims.object_deletion import ClaimObjects
from headrace.claims.records import (
    ClaimEntry,
    MalformedRecord,
    decode_audit_event,
    decode_config,
    decode_entry,
    decode_lease,
)
from headrace.claims.reference import Reference, check, decode, make_key, parse_hour_end_ns, parse_key
from headrace.claims.registry import claim_subject
from headrace.claims.stores import MemoryStore
from headrace.claims.stores.folder import _parse_metadata
from headrace.reader.claim_reference_column import CLAIM_ARROW_TYPE, make_claim_column

ID = "5d41402abc4b2a76b9719d911017c592"
KEY = make_key("video", "video.raw", 1_794_823_200, ID, "7d793037")
REFERENCE = Reference(ID, "claims", KEY, 5, "none", "aa", 5, "aa", 1_794_736_800, 1_794_823_200).as_dict()
FACTS = {
    "claim_id": ID,
    "namespace": "video",
    "subject": "video.raw",
    "bucket": "claims",
    "object_key": KEY,
    "original_size": 5,
    "stored_size": 5,
    "created_ns": 1_794_736_800_000_000_000,
    "expires_at": 1_794_823_200,
    "state": "live",
    "released_ns": 0,
    "places": {"VIDEO": [1, "video.raw"]},
    "reference": REFERENCE,
    "shared": False,
    "doomed": False,
}
LEASE = {"acked": 5, "start": 1, "filters": ["video.>"]}
CONFIG = ClaimConfig("video").to_published()
SUBJECT = claim_subject("video", ID)

KEYS = st.one_of(
    st.just(KEY),
    st.from_regex(r"(video|audio|\.\.)?/[a-z=.]*/[0-9]{0,11}/[0-9a-f.]{0,40}"),
    st.text(max_size=60),
)
NUMBERS = st.one_of(
    st.integers(),
    st.sampled_from([-1, 0, 2**31, 2**53, 2**63 - 1, 2**63, 2**64, 10**30, 253_402_300_800]),
    st.floats(),
)
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), NUMBERS, KEYS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=5,
)


@st.composite
def changed(draw: st.DrawFn, document: dict[str, Any]) -> bytes:
    """Return a valid document with some values replaced or removed at any level, or arbitrary bytes."""
    if draw(st.integers(0, 9)) == 0:
        return draw(st.binary(max_size=60))
    made = copy.deepcopy(document)
    for _ in range(draw(st.integers(0, 3))):
        below = [value for value in made.values() if isinstance(value, dict) and value]
        target = draw(st.sampled_from([made, *below]))
        name = draw(st.sampled_from([*target, "unknown"]))
        if draw(st.booleans()):
            target.pop(name, None)
        else:
            target[name] = draw(VALUES)
        if not made:
            break
    text = json.dumps(made).encode()
    cut = draw(st.integers(0, 20))
    return text[:-cut] if cut > 17 else text


@given(
    changed(FACTS),
    st.sampled_from([SUBJECT, SUBJECT + "x", claim_subject("audio", ID), "$CLAIMS.claim.*.*", ""]),
)
def test_facts_are_of_their_claim_or_malformed(data: bytes, subject: str) -> None:
    try:
        entry = decode_entry(subject, data, 7, 8)
    except MalformedRecord:
        return
    assert (entry.revision, entry.updated_ns) == (7, 8)
    assert subject == claim_subject(entry.namespace, entry.claim_id)
    assert entry.object_key.startswith(f"{entry.namespace}/")
    assert parse_key(entry.object_key)
    assert entry.object_key.rpartition("/")[2].partition(".")[0] == entry.claim_id
    assert entry.expires_ns >= 0
    assert all(stream and not set(stream) & set(" .*>\r\n\t/\\") for stream in entry.places)
    if entry.reference is not None:
        assert Reference(**entry.reference).object_key == entry.object_key
    is_own = ClaimObjects(ClaimConfig("video"), MemoryStore()).is_own(entry)
    assert is_own == (entry.namespace == "video" and entry.bucket == "claims")


@given(KEYS, st.sampled_from(["video", "audio", ""]), st.sampled_from([ID, "", "x"]), st.text(max_size=9))
def test_only_own_objects_pass_the_last_check(key: str, namespace: str, claim_id: str, bucket: str) -> None:
    entry = ClaimEntry(claim_id, namespace, "", bucket or "claims", key, 0, 0, 0, 0)
    if ClaimObjects(ClaimConfig("video"), MemoryStore()).is_own(entry):
        assert (namespace, entry.bucket) == ("video", "claims")
        assert key.startswith("video/")
        assert key.count("/") == 3
        assert f"/{claim_id}" in key


@given(changed(LEASE))
def test_leases_are_read_or_malformed(data: bytes) -> None:
    try:
        lease = decode_lease("$CLAIMS.reader.VIDEO.x", data)
    except MalformedRecord:
        return
    assert isinstance(lease.acked, int)
    assert all(isinstance(item, str) for item in lease.filters)


@given(changed(CONFIG), st.sampled_from(["$CLAIMS.namespace.video", "$CLAIMS.namespace.audio"]))
def test_configurations_are_read_or_malformed(data: bytes, subject: str) -> None:
    try:
        found = decode_config(subject, data)
    except MalformedRecord:
        return
    assert subject.endswith(f".{found['namespace']}")
    from headrace.claims.published_config import compare_configs

    compare_configs(found, CONFIG)


@given(changed(REFERENCE), st.integers(0, 2**62))
def test_references_are_checked_or_refused(data: bytes, now_ns: int) -> None:
    try:
        reference = decode(data)
        check(reference, ClaimConfig("video"), now_ns)
    except ClaimFailure:
        return
    assert reference.bucket == "claims"
    key = parse_key(reference.object_key)
    assert key
    assert key.belongs_to("video", reference.claim_id)


@given(st.lists(st.one_of(changed(REFERENCE), changed(FACTS)), min_size=1, max_size=4))
def test_a_column_of_references_holds_them_or_null(payloads: list[bytes]) -> None:
    headers = pa.array(
        [[("prism-claim-check", ["true"])]] * len(payloads), pa.map_(pa.string(), pa.list_(pa.string()))
    )
    found = make_claim_column(headers, pa.array(payloads, pa.binary()))
    assert found.type == CLAIM_ARROW_TYPE
    found.to_pylist()


@given(st.one_of(changed({"a": 1}), st.binary(max_size=40)))
def test_what_only_tells_is_never_an_error(data: bytes) -> None:
    assert isinstance(decode_audit_event(data), dict)
    assert isinstance(_parse_metadata(data), dict)


@given(st.one_of(st.text(max_size=12), st.from_regex(r"[0-9]{10}", fullmatch=True)))
def test_an_hour_is_one_or_none(hour: str) -> None:
    end_ns = parse_hour_end_ns(hour)
    assert end_ns is None or len(hour) == 10
