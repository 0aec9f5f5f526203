"""Advisories and metrics, with nats-server's order of keys."""

from headrace.jetstream_api import advisories
from headrace.jetstream_api.advisories import ClientInfo, EventStamp
from headrace.jetstream_api.times import parse_time_ns

STAMP = EventStamp("id1", parse_time_ns("2026-01-02T03:04:05Z"))
HUB = STAMP._replace(domain="hub")


def body(kind: bytes, rest: bytes) -> bytes:
    return b'{"type":"io.nats.jetstream.%b","id":"id1","timestamp":"2026-01-02T03:04:05Z",%b}' % (kind, rest)


def test_action_advisories_match_nats_server() -> None:
    assert advisories.make_stream_action(HUB, "S", "modify") == (
        b"$JS.EVENT.ADVISORY.STREAM.UPDATED.S",
        body(b"advisory.v1.stream_action", b'"stream":"S","action":"modify","domain":"hub"'),
    )
    assert advisories.make_consumer_action(STAMP, "S", "C", "create") == (
        b"$JS.EVENT.ADVISORY.CONSUMER.CREATED.S.C",
        body(b"advisory.v1.consumer_action", b'"stream":"S","consumer":"C","action":"create"'),
    )


def test_delivery_advisories_match_nats_server() -> None:
    delivery = b'"stream":"S","consumer":"C","consumer_seq":3,"stream_seq":4,'
    assert advisories.make_message_naked(STAMP, "S", "C", 3, 4, 1)[1] == body(
        b"advisory.v1.nak", delivery + b'"deliveries":1'
    )
    assert advisories.make_message_terminated(HUB, "S", "C", 3, 4, 1, "why")[1] == body(
        b"advisory.v1.terminated", delivery + b'"deliveries":1,"reason":"why","domain":"hub"'
    )
    assert advisories.make_ack_metric(STAMP, "S", "C", 3, 4, 99, 1) == (
        b"$JS.EVENT.METRIC.CONSUMER.ACK.S.C",
        body(b"metric.v1.consumer_ack", delivery + b'"ack_time":99,"deliveries":1'),
    )
    assert advisories.make_max_deliveries(STAMP, "S", "C", 4, 2)[1] == body(
        b"advisory.v1.max_deliver", b'"stream":"S","consumer":"C","stream_seq":4,"deliveries":2'
    )


def test_groups_and_batches_have_the_domain_in_the_middle() -> None:
    assert advisories.make_group_pinned(HUB, "$G", "S", "C", "g", "pin")[1] == body(
        b"advisory.v1.consumer_group_pinned",
        b'"account":"$G","stream":"S","consumer":"C","domain":"hub","group":"g","pinned_id":"pin"',
    )
    assert advisories.make_group_unpinned(STAMP, "$G", "S", "C", "g", "admin")[1] == body(
        b"advisory.v1.consumer_group_unpinned",
        b'"account":"$G","stream":"S","consumer":"C","group":"g","reason":"admin"',
    )
    assert advisories.make_batch_abandoned(HUB, "$G", "S", "b", "timeout")[1] == body(
        b"advisory.v1.stream_batch_abandoned",
        b'"account":"$G","stream":"S","domain":"hub","batch":"b","reason":"timeout"',
    )


def test_pause_says_until_when() -> None:
    assert advisories.make_consumer_paused(STAMP, "S", "C", False)[1] == body(
        b"advisory.v1.consumer_pause",
        b'"stream":"S","consumer":"C","paused":false,"pause_until":"0001-01-01T00:00:00Z"',
    )


def test_the_audit_of_a_call() -> None:
    client = ClientInfo(start="2026-01-02T03:04:04Z", host="127.0.0.1", id=5, rtt=9, server="SID")
    assert advisories.make_api_audit(STAMP, "SID", client, b"$JS.API.INFO", b"", b'{"a":">"}') == (
        b"$JS.EVENT.ADVISORY.API",
        body(
            b"advisory.v1.api_audit",
            b'"server":"SID","client":{"start":"2026-01-02T03:04:04Z","host":"127.0.0.1","id":5,"acc":"$G","rtt":9,'
            b'"server":"SID","kind":"Client","client_type":"nats"},"subject":"$JS.API.INFO",'
            b'"response":"{\\"a\\":\\"\\u003e\\"}"',
        ),
    )
    assert (
        b'"subject":"x","request":"y","response":"z"'
        in advisories.make_api_audit(STAMP, "", client, b"x", b"y", b"z")[1]
    )


def test_snapshots_and_restores_name_the_client() -> None:
    client = ClientInfo(host="h")
    shown = b'"client":{"host":"h","acc":"$G","kind":"Client","client_type":"nats"}'
    end = STAMP.time_ns
    events = [
        advisories.make_snapshot_created(STAMP, "S", {"messages": 0}, client),
        advisories.make_snapshot_completed(STAMP, "S", end, end, client),
        advisories.make_restore_created(STAMP, "S", client),
        advisories.make_restore_completed(STAMP, "S", end, end, 7, client),
    ]
    assert all(event[1].endswith(shown + b"}") for event in events)
    assert b'"bytes":7,"client"' in events[3][1]
