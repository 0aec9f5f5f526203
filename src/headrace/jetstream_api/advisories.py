"""Advisories and metrics that the server publishes: subject and JSON body of each.

Every event has an id and a time, which the caller passes as an `EventStamp`. The caller checks first whether anybody is
subscribed.
"""

from typing import Any, NamedTuple

import msgspec

from headrace.jetstream_api.encode import dumps, to_plain
from headrace.jetstream_api.times import ZERO_TIME, format_time

ADVISORY_TYPE = "io.nats.jetstream.advisory.v1."
METRIC_TYPE = "io.nats.jetstream.metric.v1."

_SUBJECT_PREFIX = "$JS.EVENT.ADVISORY."
AUDIT_SUBJECT = b"$JS.EVENT.ADVISORY.API"

EncodedEvent = tuple[bytes, bytes]


class EventStamp(NamedTuple):
    """What every event has: a unique id, the time, and the server's domain if there is one."""

    id: str
    time_ns: int
    domain: str = ""


class ClientInfo(msgspec.Struct, kw_only=True):
    """The client that sent a request."""

    start: str = ""
    host: str = ""
    id: int = 0
    acc: str = "$G"
    user: str = ""
    name: str = ""
    lang: str = ""
    ver: str = ""
    rtt: int = 0
    server: str = ""
    kind: str = "Client"
    client_type: str = "nats"


def _make_event(
    subject: str, kind: str, stamp: EventStamp, body: dict[str, Any], *, domain_last: bool = True
) -> EncodedEvent:
    event: dict[str, Any] = {"type": kind, "id": stamp.id, "timestamp": format_time(stamp.time_ns)} | body
    if stamp.domain and domain_last:
        event["domain"] = stamp.domain
    return subject.encode(), dumps(event)


def make_stream_action(stamp: EventStamp, stream: str, action: str) -> EncodedEvent:
    """`action`: create, modify or delete."""
    event_token = {"create": "CREATED", "modify": "UPDATED", "delete": "DELETED"}[action]
    body = {"stream": stream, "action": action}
    return _make_event(
        f"{_SUBJECT_PREFIX}STREAM.{event_token}.{stream}", ADVISORY_TYPE + "stream_action", stamp, body
    )


def make_consumer_action(stamp: EventStamp, stream: str, consumer: str, action: str) -> EncodedEvent:
    """`action`: create or delete; an update is not announced."""
    event_token = {"create": "CREATED", "delete": "DELETED"}[action]
    body = {"stream": stream, "consumer": consumer, "action": action}
    subject = f"{_SUBJECT_PREFIX}CONSUMER.{event_token}.{stream}.{consumer}"
    return _make_event(subject, ADVISORY_TYPE + "consumer_action", stamp, body)


def make_consumer_paused(
    stamp: EventStamp, stream: str, consumer: str, paused: bool, until: str = ZERO_TIME
) -> EncodedEvent:
    body = {"stream": stream, "consumer": consumer, "paused": paused, "pause_until": until}
    subject = f"{_SUBJECT_PREFIX}CONSUMER.PAUSE.{stream}.{consumer}"
    return _make_event(subject, ADVISORY_TYPE + "consumer_pause", stamp, body)


def make_max_deliveries(
    stamp: EventStamp, stream: str, consumer: str, stream_seq: int, deliveries: int
) -> EncodedEvent:
    body = {"stream": stream, "consumer": consumer, "stream_seq": stream_seq, "deliveries": deliveries}
    subject = f"{_SUBJECT_PREFIX}CONSUMER.MAX_DELIVERIES.{stream}.{consumer}"
    return _make_event(subject, ADVISORY_TYPE + "max_deliver", stamp, body)


def _make_delivery_fields(stream: str, consumer: str, consumer_seq: int, stream_seq: int) -> dict[str, Any]:
    return {"stream": stream, "consumer": consumer, "consumer_seq": consumer_seq, "stream_seq": stream_seq}


def make_message_naked(
    stamp: EventStamp, stream: str, consumer: str, consumer_seq: int, stream_seq: int, deliveries: int
) -> EncodedEvent:
    body = _make_delivery_fields(stream, consumer, consumer_seq, stream_seq) | {"deliveries": deliveries}
    return _make_event(
        f"{_SUBJECT_PREFIX}CONSUMER.MSG_NAKED.{stream}.{consumer}", ADVISORY_TYPE + "nak", stamp, body
    )


def make_message_terminated(
    stamp: EventStamp,
    stream: str,
    consumer: str,
    consumer_seq: int,
    stream_seq: int,
    deliveries: int,
    reason: str = "",
) -> EncodedEvent:
    body = _make_delivery_fields(stream, consumer, consumer_seq, stream_seq) | {"deliveries": deliveries}
    if reason:
        body["reason"] = reason
    subject = f"{_SUBJECT_PREFIX}CONSUMER.MSG_TERMINATED.{stream}.{consumer}"
    return _make_event(subject, ADVISORY_TYPE + "terminated", stamp, body)


def make_dead_letter_failed(
    stamp: EventStamp, stream: str, consumer: str, stream_seq: int, deliveries: int, target: str, reason: str
) -> EncodedEvent:
    """Make the advisory that a message stays pending, because it could not be published as a dead letter."""
    body = {"stream": stream, "consumer": consumer, "stream_seq": stream_seq, "deliveries": deliveries}
    body |= {"dead_letter_subject": target, "reason": reason}
    subject = f"{_SUBJECT_PREFIX}CONSUMER.DEAD_LETTER_FAILED.{stream}.{consumer}"
    return _make_event(subject, ADVISORY_TYPE + "dead_letter_failed", stamp, body)


def make_ack_metric(
    stamp: EventStamp,
    stream: str,
    consumer: str,
    consumer_seq: int,
    stream_seq: int,
    ack_time_ns: int,
    deliveries: int,
) -> EncodedEvent:
    """Make the metric of a sampled acknowledgement."""
    body = _make_delivery_fields(stream, consumer, consumer_seq, stream_seq)
    body |= {"ack_time": ack_time_ns, "deliveries": deliveries}
    subject = f"$JS.EVENT.METRIC.CONSUMER.ACK.{stream}.{consumer}"
    return _make_event(subject, METRIC_TYPE + "consumer_ack", stamp, body)


def make_group_pinned(
    stamp: EventStamp, account: str, stream: str, consumer: str, group: str, pinned_id: str
) -> EncodedEvent:
    body = _make_group_fields(stamp, account, stream, consumer, group) | {"pinned_id": pinned_id}
    subject = f"{_SUBJECT_PREFIX}CONSUMER.PINNED.{stream}.{consumer}"
    return _make_event(subject, ADVISORY_TYPE + "consumer_group_pinned", stamp, body, domain_last=False)


def make_group_unpinned(
    stamp: EventStamp, account: str, stream: str, consumer: str, group: str, reason: str
) -> EncodedEvent:
    """`reason`: admin or timeout."""
    body = _make_group_fields(stamp, account, stream, consumer, group) | {"reason": reason}
    subject = f"{_SUBJECT_PREFIX}CONSUMER.UNPINNED.{stream}.{consumer}"
    return _make_event(subject, ADVISORY_TYPE + "consumer_group_unpinned", stamp, body, domain_last=False)


def _make_group_fields(
    stamp: EventStamp, account: str, stream: str, consumer: str, group: str
) -> dict[str, Any]:
    body: dict[str, Any] = {"account": account, "stream": stream, "consumer": consumer}
    if stamp.domain:
        body["domain"] = stamp.domain
    return body | {"group": group}


def make_batch_abandoned(
    stamp: EventStamp, account: str, stream: str, batch: str, reason: str
) -> EncodedEvent:
    """`reason`: timeout, incomplete, large, unsupported or unknown."""
    body: dict[str, Any] = {"account": account} if account else {}
    body["stream"] = stream
    if stamp.domain:
        body["domain"] = stamp.domain
    body |= {"batch": batch, "reason": reason}
    subject = f"{_SUBJECT_PREFIX}STREAM.BATCH_ABANDONED.{stream}"
    return _make_event(subject, ADVISORY_TYPE + "stream_batch_abandoned", stamp, body, domain_last=False)


def make_snapshot_created(
    stamp: EventStamp, stream: str, state: dict[str, Any], client: ClientInfo
) -> EncodedEvent:
    body = {"stream": stream, "state": state, "client": to_plain(client)}
    return _make_event(
        f"{_SUBJECT_PREFIX}STREAM.SNAPSHOT_CREATE.{stream}", ADVISORY_TYPE + "snapshot_create", stamp, body
    )


def make_snapshot_completed(
    stamp: EventStamp, stream: str, start_ns: int, end_ns: int, client: ClientInfo, problem: str = ""
) -> EncodedEvent:
    body = {
        "stream": stream,
        "start": format_time(start_ns),
        "end": format_time(end_ns),
        "client": to_plain(client),
    }
    if problem:
        body["error"] = problem
    subject = f"{_SUBJECT_PREFIX}STREAM.SNAPSHOT_COMPLETE.{stream}"
    return _make_event(subject, ADVISORY_TYPE + "snapshot_complete", stamp, body)


def make_restore_created(stamp: EventStamp, stream: str, client: ClientInfo) -> EncodedEvent:
    body = {"stream": stream, "client": to_plain(client)}
    return _make_event(
        f"{_SUBJECT_PREFIX}STREAM.RESTORE_CREATE.{stream}", ADVISORY_TYPE + "restore_create", stamp, body
    )


def make_restore_completed(
    stamp: EventStamp, stream: str, start_ns: int, end_ns: int, size: int, client: ClientInfo
) -> EncodedEvent:
    body: dict[str, Any] = {
        "stream": stream,
        "start": format_time(start_ns),
        "end": format_time(end_ns),
        "bytes": size,
    }
    body["client"] = to_plain(client)
    subject = f"{_SUBJECT_PREFIX}STREAM.RESTORE_COMPLETE.{stream}"
    return _make_event(subject, ADVISORY_TYPE + "restore_complete", stamp, body)


def make_api_audit(
    stamp: EventStamp, server: str, client: ClientInfo, subject: bytes, request: bytes, response: bytes
) -> EncodedEvent:
    """Make the audit event of one API call: `request` and `response` are the bodies as sent."""
    body: dict[str, Any] = {
        "server": server,
        "client": to_plain(client),
        "subject": subject.decode("utf-8", "replace"),
    }
    if request:
        body["request"] = request.decode("utf-8", "replace")
    body["response"] = response.decode("utf-8", "replace")
    return _make_event(AUDIT_SUBJECT.decode(), ADVISORY_TYPE + "api_audit", stamp, body)
