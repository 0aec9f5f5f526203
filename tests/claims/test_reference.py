"""References to claims: ids, keys, checks, and the errors they raise."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from claims.claims_harness import ClaimsHarness
from headrace.claims import (
    ClaimConfig,
    ClaimError,
    Corrupt,
    Expired,
    Forbidden,
    Ttl,
)
from headrace.claims.reference import Reference, check, encode_topic, make_claim_id, make_key


def _reference() -> Reference:
    fields = {
        "claim_id": "c1",
        "bucket": "claims",
        "object_key": "ns/t/2026010110/c1",
        "original_size": 10,
        "compression": "none",
        "checksum": "0",
        "stored_size": 10,
        "stored_checksum": "0",
        "created_at": 1_767_261_600 - 86400,
        "expires_at": 1_767_261_600,
    }
    return Reference(**json.loads(json.dumps(fields)))


def test_errors_are_types() -> None:
    config = ClaimConfig("ns")
    good = _reference()
    check(good, config, good.created_at * 10**9)
    with pytest.raises(Expired) as raised:
        check(good, config, (good.created_at + 25 * 3600) * 10**9)
    assert isinstance(raised.value, ClaimError)
    assert raised.value.claim_id == good.claim_id


@pytest.mark.parametrize(
    "change",
    [
        {"bucket": "other"},
        {"object_key": "other/t/2026010100/{id}"},
        {"object_key": "ns/../other/{id}"},
        {"object_key": "ns/t/2026010100/another"},
        {"object_key": "ns/t/{id}"},
    ],
    ids=str,
)
def test_a_message_does_not_decide_what_is_read(change: dict[str, str]) -> None:
    good = _reference()
    bad = replace(good, **{key: value.format(id=good.claim_id) for key, value in change.items()})
    with pytest.raises(Forbidden):
        check(bad, ClaimConfig("ns"), good.created_at * 10**9)


def test_a_subject_cannot_leave_its_segment() -> None:
    for subject in ("a/../../b", "a.b", "ä b", "..", "a" * 400):
        topic = encode_topic(subject)
        assert "/" not in topic
        assert "." not in topic
        assert len(topic) <= 200
    assert encode_topic("a" * 400) != encode_topic("a" * 401)


@pytest.mark.parametrize(("late_s", "is_error"), [(59, False), (61, True)])
def test_clocks_may_differ_a_little(late_s: int, is_error: bool) -> None:
    reference, config = _reference(), ClaimConfig("ns", ttl=Ttl(grace_period=30))
    now_ns = (reference.expires_at + late_s) * 10**9
    if not is_error:
        check(reference, config, now_ns)
        return
    with pytest.raises(Expired):
        check(reference, config, now_ns)


def test_a_key_says_when_it_is_due() -> None:
    assert make_key("ns", "orders.eu", 1_767_261_600, "id") == "ns/orders=2Eeu/2026010110/id"


def test_ids_do_not_depend_on_the_content() -> None:
    assert make_claim_id("ns") != make_claim_id("ns")
    assert make_claim_id("ns", "m1") == make_claim_id("ns", "m1")
    assert make_claim_id("ns", "m1") != make_claim_id("other", "m1")
    assert make_claim_id("ns", "m1", subject="a") != make_claim_id("ns", "m1", subject="b")


@pytest.mark.parametrize("payload", [b"", b"[]", b"{}", b'{"claim_id": 7}', b"\xff"])
async def test_a_broken_reference_is_corrupt(world: ClaimsHarness, payload: bytes) -> None:
    claims = await world.claims()
    stream = await world.stream()
    await world.consumer(stream, "c")
    await world.wire.publish(f"{stream}.a", payload, {"prism-claim-check": "true"})
    with pytest.raises(Corrupt):
        await claims.consumer.read(await world.next(stream, "c"))
