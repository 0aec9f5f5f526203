"""Each rule of a check: what it finds, how severe it is, and what it says to do."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from headrace.migrate.check_rules import check_servers, check_stream
from headrace.migrate.findings import MoveFinding, Severity, get_highest
from headrace.migrate.inventory import Inventory, StreamItem
from headrace.migrate.stream_config import set_move

STATE = {"messages": 10, "bytes": 1000, "first_seq": 1, "last_seq": 10}
CLUSTER = Inventory((2, 15, 1), True, "NEW", 1 << 20, "HUB", {"streams": 0, "storage": 0, "limits": {}}, [])


def make_stream(
    name: str = "ORDERS", consumers: list[dict[str, Any]] | None = None, **config: Any
) -> StreamItem:
    base = {
        "name": name,
        "subjects": [f"{name}.>"],
        "storage": "file",
        "retention": "limits",
        **config,
    }
    return StreamItem({"config": base, "state": STATE}, consumers or [])


def make_old(*streams: StreamItem, **more: Any) -> Inventory:
    return Inventory((2, 15, 1), False, "OLD", 1 << 20, "LOCAL", {}, list(streams), **more)


def find(
    entry: StreamItem, *others: StreamItem, new: Inventory = CLUSTER, replicas: int = 3, **more: Any
) -> list[MoveFinding]:
    return list(check_stream(entry, make_old(entry, *others, **more), new, replicas))


def test_a_plain_stream_has_no_differences() -> None:
    assert find(make_stream()) == []


@pytest.mark.parametrize(
    ("config", "severity", "text"),
    [
        ({"sources": [{"name": "A"}, {"name": "B"}]}, Severity.REFUSED, "copies from A, B"),
        ({"mirror": {"name": "A"}, "subjects": []}, Severity.REFUSED, "copies from A"),
        ({"sealed": True}, Severity.REFUSED, "sealed"),
        ({"allow_msg_schedules": True}, Severity.REFUSED, "schedules"),
        ({"retention": "workqueue"}, Severity.NOTE, "backup and restore"),
        ({"retention": "interest"}, Severity.NOTE, "backup and restore"),
        ({"retention": "workqueue", "allow_msg_counter": True}, Severity.NOTE, "counters"),
        ({"persist_mode": "async"}, Severity.REFUSED, "async"),
        ({"subject_delete_markers": True}, Severity.CHANGE, "subject_delete_markers"),
        ({"metadata": {"headrace.markers": "purge"}}, Severity.CHANGE, "markers"),
        ({"max_msg_size": 2 << 20}, Severity.CHANGE, "max_payload"),
    ],
)
def test_a_setting_is_reported(config: dict[str, Any], severity: Severity, text: str) -> None:
    (found,) = find(make_stream(**config))
    assert (found.severity, found.kind, found.name) == (severity, "stream", "ORDERS")
    assert text in found.text
    assert found.remedy


def test_a_name_or_subject_that_is_taken_is_refused() -> None:
    new = replace(CLUSTER, streams=[make_stream(), make_stream("OTHER", subjects=["*.new"])])
    texts = [each.text for each in find(make_stream(), new=new)]
    assert texts == [
        "the new server has a stream with this name",
        "subject ORDERS.> overlaps with stream OTHER of the new server",
    ]


def test_a_move_that_has_begun_is_no_conflict() -> None:
    ours, theirs = ({"name": "ORDERS", "subjects": []} for _ in range(2))
    own = make_stream(**set_move(ours, {"id": "1", "state": "closed"}))
    new = replace(CLUSTER, streams=[make_stream(**set_move(theirs, {"id": "1", "state": "ready"}))])
    (found,) = find(own, new=new)
    assert found.severity is Severity.NOTE
    assert "has begun" in found.text


def test_a_stream_that_others_copy_from_is_reported() -> None:
    local, remote = make_stream("A", mirror={"name": "ORDERS"}), {"name": "ORDERS", "external": {"api": "x"}}
    (found,) = find(make_stream(), local, make_stream("B", mirror=remote))
    assert "stream A of the old server copies from it" in found.text


def test_limits_of_the_account_are_compared() -> None:
    limits = {
        "max_bytes_required": True,
        "storage_max_stream_bytes": 500,
        "max_streams": 3,
        "max_storage": 1500,
    }
    new = replace(CLUSTER, account={"streams": 3, "storage": 1000, "limits": limits})
    assert [each.text for each in find(make_stream(), new=new)] == ["the account requires max_bytes"]
    (found,) = find(make_stream(max_bytes=501), new=new)
    assert "above the account's 500" in found.text
    texts = [each.text for each in check_servers(make_old(make_stream()), new, True)]
    assert texts[:2] == [
        "the account may have 3 streams, too few for 1 more",
        "the account may store 1,500 bytes, too few for 1,000 more",
    ]


@pytest.mark.parametrize(
    ("config", "more", "severity", "text"),
    [
        ({}, {}, Severity.NOTE, "not durable"),
        ({"durable_name": "c", "deliver_policy": "new"}, {}, Severity.CHANGE, "becomes by_start_sequence"),
        ({"durable_name": "c", "ack_policy": "flow_control"}, {}, Severity.CHANGE, "copies through it"),
        ({"durable_name": "c", "deliver_subject": "d"}, {"num_ack_pending": 1}, Severity.NOTE, "push"),
        ({"durable_name": "c", "priority_groups": ["g"]}, {}, Severity.NOTE, "pinned"),
        ({"durable_name": "c", "max_ack_pending_per_subject": 1}, {}, Severity.REFUSED, "order per key"),
        (
            {"durable_name": "c", "dead_letter": {"subject": "d", "on": []}},
            {},
            Severity.REFUSED,
            "dead_letter",
        ),
    ],
)
def test_a_consumer_is_reported(
    config: dict[str, Any], more: dict[str, Any], severity: Severity, text: str
) -> None:
    (found,) = find(make_stream(consumers=[{"name": "c", "config": config, **more}]))
    assert (found.severity, found.kind, found.name) == (severity, "consumer", "ORDERS > c")
    assert text in found.text


def test_buckets_claims_and_spark_are_named_as_users_know_them() -> None:
    (bucket,) = find(make_stream("KV_B"))
    assert (bucket.kind, bucket.name) == ("bucket", "B")
    (objects,) = find(make_stream("OBJ_B"))
    assert (objects.kind, objects.name) == ("objects", "B")
    namespaces = [
        {"namespace": "video", "backend": "folder", "bucket": "b"},
        {"namespace": "s3", "backend": "s3"},
    ]
    claims = find(make_stream("CLAIMS"), claim_namespaces=namespaces)
    assert [(each.name, each.severity) for each in claims] == [
        ("video", Severity.NOTE),
        ("video", Severity.CHANGE),
        ("s3", Severity.NOTE),
    ]
    progress = make_stream("SPARK_PROGRESS_ORDERS")
    assert "sink to ORDERS" in find(progress)[0].text
    assert "Spark query writes" in find(make_stream(), progress)[0].text


def test_servers_that_cannot_be_connected_are_reported() -> None:
    old = make_old()
    assert get_highest(check_servers(old, CLUSTER, True)) is Severity.NOTE
    unreachable = [each for each in check_servers(old, CLUSTER, False) if each.severity is Severity.CHANGE]
    assert "does not reach $JS.LOCAL.API" in unreachable[0].text
    assert "leafnode" in unreachable[0].remedy
    same_domain = next(iter(check_servers(replace(old, domain="HUB"), CLUSTER, True)))
    assert "both servers have the JetStream domain HUB" in same_domain.text
    no_domain = next(iter(check_servers(replace(old, domain=""), CLUSTER, False)))
    assert "no JetStream domain" in no_domain.text
    (same,) = check_servers(replace(old, server_id="NEW"), CLUSTER, True)
    assert same.severity is Severity.REFUSED
    early = replace(CLUSTER, version=(2, 11, 4), max_payload=1000)
    texts = [each.text for each in check_servers(old, early, True)]
    assert texts[0] == "version 2.11.4 cannot turn a mirror into a stream"
    assert "refuses messages above 1,000 bytes" in texts[1]
    assert "cannot restore" in find(make_stream(retention="interest"), new=early)[1].text


def test_replicas_need_a_cluster() -> None:
    single = replace(CLUSTER, is_clustered=False)
    (found,) = find(make_stream(), new=single)
    assert found.remedy == "use --replicas 1"
    assert find(make_stream(), new=single, replicas=1) == []
