"""The events that the server publishes about itself: subject and JSON body of each advisory and metric.

Every event has an id and a time, which the caller gives as a `Stamp`. Whether anybody listens is the
caller's to ask first.
"""

from typing import Any, NamedTuple

import msgspec

from headrace.api.encode import dumps, plain
from headrace.api.times import ZERO, text

ADVISORY = "io.nats.jetstream.advisory.v1."
METRIC = "io.nats.jetstream.metric.v1."

_SUBJECT = "$JS.EVENT.ADVISORY."
AUDIT_SUBJECT = b"$JS.EVENT.ADVISORY.API"

Event = tuple[bytes, bytes]


class Stamp(NamedTuple):
    """What every event carries: a unique id, the time, and the server's domain if it has one."""

    id: str
    time_ns: int
    domain: str = ""


class ClientInfo(msgspec.Struct, kw_only=True):
    """The client behind a request."""

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


def _event(subject: str, kind: str, stamp: Stamp, body: dict[str, Any], *, domain_last: bool = True) -> Event:
    event: dict[str, Any] = {"type": kind, "id": stamp.id, "timestamp": text(stamp.time_ns)} | body
    if stamp.domain and domain_last:
        event["domain"] = stamp.domain
    return subject.encode(), dumps(event)


def stream_action(stamp: Stamp, stream: str, action: str) -> Event:
    """`action`: create, modify or delete."""
    done = {"create": "CREATED", "modify": "UPDATED", "delete": "DELETED"}[action]
    body = {"stream": stream, "action": action}
    return _event(f"{_SUBJECT}STREAM.{done}.{stream}", ADVISORY + "stream_action", stamp, body)


def consumer_action(stamp: Stamp, stream: str, consumer: str, action: str) -> Event:
    """`action`: create or delete; an update is not announced."""
    done = {"create": "CREATED", "delete": "DELETED"}[action]
    body = {"stream": stream, "consumer": consumer, "action": action}
    subject = f"{_SUBJECT}CONSUMER.{done}.{stream}.{consumer}"
    return _event(subject, ADVISORY + "consumer_action", stamp, body)


def consumer_paused(stamp: Stamp, stream: str, consumer: str, paused: bool, until: str = ZERO) -> Event:
    body = {"stream": stream, "consumer": consumer, "paused": paused, "pause_until": until}
    subject = f"{_SUBJECT}CONSUMER.PAUSE.{stream}.{consumer}"
    return _event(subject, ADVISORY + "consumer_pause", stamp, body)


def max_deliveries(stamp: Stamp, stream: str, consumer: str, stream_seq: int, deliveries: int) -> Event:
    body = {"stream": stream, "consumer": consumer, "stream_seq": stream_seq, "deliveries": deliveries}
    subject = f"{_SUBJECT}CONSUMER.MAX_DELIVERIES.{stream}.{consumer}"
    return _event(subject, ADVISORY + "max_deliver", stamp, body)


def _delivery(stream: str, consumer: str, consumer_seq: int, stream_seq: int) -> dict[str, Any]:
    return {"stream": stream, "consumer": consumer, "consumer_seq": consumer_seq, "stream_seq": stream_seq}


def naked(
    stamp: Stamp, stream: str, consumer: str, consumer_seq: int, stream_seq: int, deliveries: int
) -> Event:
    body = _delivery(stream, consumer, consumer_seq, stream_seq) | {"deliveries": deliveries}
    return _event(f"{_SUBJECT}CONSUMER.MSG_NAKED.{stream}.{consumer}", ADVISORY + "nak", stamp, body)


def terminated(
    stamp: Stamp,
    stream: str,
    consumer: str,
    consumer_seq: int,
    stream_seq: int,
    deliveries: int,
    reason: str = "",
) -> Event:
    body = _delivery(stream, consumer, consumer_seq, stream_seq) | {"deliveries": deliveries}
    if reason:
        body["reason"] = reason
    subject = f"{_SUBJECT}CONSUMER.MSG_TERMINATED.{stream}.{consumer}"
    return _event(subject, ADVISORY + "terminated", stamp, body)


def acked(
    stamp: Stamp,
    stream: str,
    consumer: str,
    consumer_seq: int,
    stream_seq: int,
    ack_time_ns: int,
    deliveries: int,
) -> Event:
    """The metric of a sampled acknowledgement."""
    body = _delivery(stream, consumer, consumer_seq, stream_seq)
    body |= {"ack_time": ack_time_ns, "deliveries": deliveries}
    subject = f"$JS.EVENT.METRIC.CONSUMER.ACK.{stream}.{consumer}"
    return _event(subject, METRIC + "consumer_ack", stamp, body)


def group_pinned(stamp: Stamp, account: str, stream: str, consumer: str, group: str, pinned_id: str) -> Event:
    body = _group(stamp, account, stream, consumer, group) | {"pinned_id": pinned_id}
    subject = f"{_SUBJECT}CONSUMER.PINNED.{stream}.{consumer}"
    return _event(subject, ADVISORY + "consumer_group_pinned", stamp, body, domain_last=False)


def group_unpinned(stamp: Stamp, account: str, stream: str, consumer: str, group: str, reason: str) -> Event:
    """`reason`: admin or timeout."""
    body = _group(stamp, account, stream, consumer, group) | {"reason": reason}
    subject = f"{_SUBJECT}CONSUMER.UNPINNED.{stream}.{consumer}"
    return _event(subject, ADVISORY + "consumer_group_unpinned", stamp, body, domain_last=False)


def _group(stamp: Stamp, account: str, stream: str, consumer: str, group: str) -> dict[str, Any]:
    body: dict[str, Any] = {"account": account, "stream": stream, "consumer": consumer}
    if stamp.domain:
        body["domain"] = stamp.domain
    return body | {"group": group}


def batch_abandoned(stamp: Stamp, account: str, stream: str, batch: str, reason: str) -> Event:
    """`reason`: timeout, incomplete, large, unsupported or unknown."""
    body: dict[str, Any] = {"account": account} if account else {}
    body["stream"] = stream
    if stamp.domain:
        body["domain"] = stamp.domain
    body |= {"batch": batch, "reason": reason}
    subject = f"{_SUBJECT}STREAM.BATCH_ABANDONED.{stream}"
    return _event(subject, ADVISORY + "stream_batch_abandoned", stamp, body, domain_last=False)


def snapshot_created(stamp: Stamp, stream: str, state: dict[str, Any], client: ClientInfo) -> Event:
    body = {"stream": stream, "state": state, "client": plain(client)}
    return _event(f"{_SUBJECT}STREAM.SNAPSHOT_CREATE.{stream}", ADVISORY + "snapshot_create", stamp, body)


def snapshot_completed(
    stamp: Stamp, stream: str, start_ns: int, end_ns: int, client: ClientInfo, problem: str = ""
) -> Event:
    body = {"stream": stream, "start": text(start_ns), "end": text(end_ns), "client": plain(client)}
    if problem:
        body["error"] = problem
    subject = f"{_SUBJECT}STREAM.SNAPSHOT_COMPLETE.{stream}"
    return _event(subject, ADVISORY + "snapshot_complete", stamp, body)


def restore_created(stamp: Stamp, stream: str, client: ClientInfo) -> Event:
    body = {"stream": stream, "client": plain(client)}
    return _event(f"{_SUBJECT}STREAM.RESTORE_CREATE.{stream}", ADVISORY + "restore_create", stamp, body)


def restore_completed(
    stamp: Stamp, stream: str, start_ns: int, end_ns: int, size: int, client: ClientInfo
) -> Event:
    body: dict[str, Any] = {"stream": stream, "start": text(start_ns), "end": text(end_ns), "bytes": size}
    body["client"] = plain(client)
    subject = f"{_SUBJECT}STREAM.RESTORE_COMPLETE.{stream}"
    return _event(subject, ADVISORY + "restore_complete", stamp, body)


def audit(
    stamp: Stamp, server: str, client: ClientInfo, subject: bytes, request: bytes, response: bytes
) -> Event:
    """One API call: `request` and `response` are the bodies as they went over the wire."""
    body: dict[str, Any] = {
        "server": server,
        "client": plain(client),
        "subject": subject.decode("utf-8", "replace"),
    }
    if request:
        body["request"] = request.decode("utf-8", "replace")
    body["response"] = response.decode("utf-8", "replace")
    return _event(AUDIT_SUBJECT.decode(), ADVISORY + "api_audit", stamp, body)
