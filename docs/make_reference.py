"""Generates the pages headers.md, errors.md and metrics.md of the reference from the code.

Run `python docs/make_reference.py` after a change; `tests/docs/test_site.py` fails until the pages are up to date.
"""

from __future__ import annotations

from pathlib import Path

from headrace.claims.metrics import Metrics
from headrace.jetstream_api.errors import load_table
from headrace.monitor.metrics import METRIC_DEFINITIONS

REFERENCE = Path(__file__).parent / "reference"
NOTE = "Generated from the code by `python docs/make_reference.py`."

Table = dict[str, str]

PUBLISH_HEADERS: Table = {
    "Nats-Msg-Id": (
        "Message id for deduplication. A second message with the same id within the stream's "
        "`duplicate_window` is acknowledged as a duplicate and not stored."
    ),
    "Nats-TTL": "Lifetime of the message: seconds, a duration (`90m`) or `never`. Requires `allow_msg_ttl`.",
    "Nats-Rollup": (
        "`sub` removes all earlier messages on the same subject, `all` removes all earlier messages "
        "of the stream. Requires `allow_rollup_hdrs`."
    ),
    "Nats-Expected-Stream": "Store the message only if the stream has this name.",
    "Nats-Expected-Last-Sequence": "Store the message only if this is the stream's last sequence.",
    "Nats-Expected-Last-Subject-Sequence": (
        "Store the message only if this is the last sequence on its subject; `0`: only if the "
        "subject has no message."
    ),
    "Nats-Expected-Last-Subject-Sequence-Subject": (
        "The subject or wildcard that `Nats-Expected-Last-Subject-Sequence` applies to, if it is "
        "not the message's own subject."
    ),
    "Nats-Expected-Last-Msg-Id": "Store the message only if the last message of the stream has this id.",
    "Nats-Required-Api-Level": (
        "Reject the publish or API request if the server's JetStream API level is lower."
    ),
}
BATCH_HEADERS: Table = {
    "Nats-Batch-Id": "Id of the atomic batch. Requires `allow_atomic`. `Nats-Batch-ID` is accepted too.",
    "Nats-Batch-Sequence": (
        "Position of the message in the batch, starting at 1. `Nats-Batch-Seq` is accepted too."
    ),
    "Nats-Batch-Commit": (
        "Commit the batch. `1`: with this message as the last member; `eob`: without this message."
    ),
}
COUNTER_HEADERS: Table = {
    "Nats-Incr": "Value to add to the counter, for example `+5`. Requires `allow_msg_counter`.",
    "Nats-Counter-Sources": "Set by the server on a sourced counter: the last value of each source.",
}
SCHEDULE_HEADERS: Table = {
    "Nats-Schedule": (
        "When to publish: `@at`, `@every`, a predefined interval such as `@daily`, or a cron "
        "expression. Requires `allow_msg_schedules`."
    ),
    "Nats-Schedule-Target": "Subject to publish to. Required.",
    "Nats-Schedule-Source": "Subject whose last message is published instead of the schedule's own payload.",
    "Nats-Schedule-TTL": "`Nats-TTL` of the published message.",
    "Nats-Schedule-Time-Zone": "Time zone of a cron expression or predefined interval. Default: UTC.",
    "Nats-Schedule-Rollup": "`sub`: the published message has `Nats-Rollup: sub`.",
    "Nats-Scheduler": (
        "Set on a published message: the subject of its schedule. A client may send it with "
        "`Nats-Schedule-Next: purge` to cancel that schedule."
    ),
    "Nats-Schedule-Next": (
        "Set on a published message: when the schedule fires next, or `purge` if it does not fire again."
    ),
}
STORED_HEADERS: Table = {
    "Nats-Marker-Reason": "On a delete marker: `MaxAge`, `Purge` or `Remove`.",
    "Nats-Applied-Limit": (
        "On a delete marker with reason `MaxAge`: `MaxAge`. nats-server does not send this header."
    ),
    "Nats-Stream-Source": (
        "On a sourced message: upstream stream, sequence, filters, transforms and original subject."
    ),
}
READ_HEADERS: Table = {
    "Nats-Stream": "Stream of the message. On direct get responses and republished messages.",
    "Nats-Subject": "Original subject. On direct get responses and republished messages.",
    "Nats-Sequence": "Sequence. On direct get responses and republished messages.",
    "Nats-Time-Stamp": "Time of storage. On direct get responses and republished messages.",
    "Nats-Last-Sequence": (
        "On a republished message: the previous sequence on its subject. On batched direct get "
        "responses: the sequence of the previous message of the response."
    ),
    "Nats-Num-Pending": "On batched direct get responses: number of matching messages that follow.",
    "Nats-UpTo-Sequence": (
        "At the end of a `multi_last` direct get: the sequence up to which messages were considered."
    ),
    "Nats-Msg-Size": "Size of the payload, if only headers were delivered (`headers_only`).",
    "Nats-Pin-Id": "On a delivery to the pinned client of a priority group: the id of the pin.",
}
STATUS_HEADERS: Table = {
    "Nats-Pending-Messages": (
        "On the status that ends a pull request: messages that were requested and not delivered."
    ),
    "Nats-Pending-Bytes": "On the status that ends a pull request: what is left of its `max_bytes`.",
    "Nats-Last-Consumer": (
        "On an idle heartbeat: last consumer sequence. On a flow-control reply: acknowledged "
        "consumer sequence."
    ),
    "Nats-Last-Stream": (
        "On an idle heartbeat: last stream sequence. On a flow-control reply: acknowledged stream sequence."
    ),
    "Nats-Consumer-Stalled": "On an idle heartbeat: subject to reply to so that delivery resumes.",
    "Nats-Request-Info": (
        "On a request through a service import: JSON with the account of the requester; with "
        "`share: true` also its user, address and client."
    ),
    "Nats-Trace-Dest": "[Message tracing](tracing.md): the subject for the events.",
    "Nats-Trace-Only": "Message tracing: `true` traces the message without delivering it.",
    "Nats-Trace-Hop": "Message tracing: the number of the server on the way; set by servers.",
    "Nats-Trace-Origin-Account": "Message tracing: a header of old servers, which disables it.",
    "Nats-Stream-Identity": (
        "On requests and responses for sourcing consumers: distinguishes a stream from a later "
        "stream with the same name."
    ),
}
CLIENT_HEADERS: Table = {
    "KV-Operation": "On a key of a bucket: `DEL` or `PURGE`.",
    "prism-claim-check": (
        "On a message with a [claim](claims.md): always `true`; the payload is a reference, as JSON. (`prism-` is the "
        "prefix of all names in the format of claims.)"
    ),
    "Claim-Error": "On a dead letter: why the claim could not be read.",
    "Claim-Subject": "On a dead letter: the original subject.",
    "Claim-Sent-TTL": "On a message with a claim: the sender's `Nats-TTL`, which is shortened if its claim ends earlier.",
}
DEAD_LETTER_HEADERS: Table = {
    "Nats-DL-Stream": "Stream of the message.",
    "Nats-DL-Seq": "Sequence of the message in that stream.",
    "Nats-DL-Subject": "Original subject.",
    "Nats-DL-Consumer": "Consumer that gave it up.",
    "Nats-DL-Reason": "`max_deliver` or `term`.",
    "Nats-DL-Detail": "Reason that the worker gave with its term, if any.",
    "Nats-DL-Deliveries": "How often the message was delivered.",
    "Nats-DL-Time": "When the message was stored.",
    "Nats-DL-Header-": (
        "Prefix of headers that the server acts on: `Nats-Msg-Id` of the message is `Nats-DL-Header-Msg-Id`. Those of "
        "schedules and rollups keep it when the message is redriven."
    ),
}
HEADERS = {
    "Publishing": PUBLISH_HEADERS,
    "Atomic batches": BATCH_HEADERS,
    "Counters": COUNTER_HEADERS,
    "Schedules": SCHEDULE_HEADERS,
    "Stored by the server": STORED_HEADERS,
    "Dead letters": DEAD_LETTER_HEADERS,
    "Reading": READ_HEADERS,
    "Status messages and services": STATUS_HEADERS,
    "Buckets and claims": CLIENT_HEADERS,
}

METRIC_GROUPS = {
    "Server": (("info", "healthy", "start_", "resident_", "connections", "subscriptions", "loop_"), ()),
    "Traffic": (("received_", "sent_", "slow_", "leafnodes"), ()),
    "Store": (("api_", "store_", "commit_", "batches_open"), ("account",)),
    "Archive": (("archive_",), ()),
    "Standby": (("standby",), ()),
    "Streams": (("stream_",), ("account", "stream")),
    "Consumers": (("consumer_",), ("account", "stream", "consumer")),
}
EXTRA_LABELS = {
    "info": ("version", "compatible", "core"),
    "stream_source_lag": ("account", "stream", "source"),
    "stream_source_failing": ("account", "stream", "source"),
}

ERROR_INTRO = """\
An API response with an error has an object `error`; a rejected publish has it in the acknowledgement:

```json
{"error": {"code": 404, "err_code": 10059, "description": "stream not found"}}
```

The codes and texts are those of nats-server. `{...}` is a placeholder. [The Python client](client.md#errors) raises an
exception of its own for the common ones."""


def make_pages() -> dict[str, str]:
    """Return the text of each generated page, by file name."""
    return {"headers.md": _headers_page(), "errors.md": _errors_page(), "metrics.md": _metrics_page()}


def _headers_page() -> str:
    lines = ["# Headers", "", f"Headers that Headrace reads and sets. {NOTE}", ""]
    for title, rows in HEADERS.items():
        lines += [f"## {title}", "", "| header | meaning |", "|---|---|"]
        lines += [f"| `{name}` | {text} |" for name, text in rows.items()] + [""]
    return "\n".join(lines[:-1]) + "\n"


def _errors_page() -> str:
    entries = sorted(set(load_table().values()), key=lambda entry: entry.error_code)
    lines = ["# API errors", "", f"Error codes of the JetStream API. {NOTE}", "", ERROR_INTRO, ""]
    lines += ["| code | status | text | name in nats-server |", "|---|---|---|---|"]
    lines += [
        f"| {entry.error_code} | {entry.code} | {_cell(entry.description)} | `{entry.constant}`{{.nowrap}} |"
        for entry in entries
    ]
    return "\n".join(lines) + "\n"


def _metrics_page() -> str:
    lines = [
        "# Metrics",
        "",
        f"Prometheus metrics at `/metrics` of the monitoring port (`-m`). {NOTE}",
        "",
        "Alerts and a dashboard: [Run in production](../how-to/run-in-production.md).",
        "",
    ]
    left = dict(METRIC_DEFINITIONS)
    for title, (prefixes, labels) in METRIC_GROUPS.items():
        rows = {name: left.pop(name) for name in METRIC_DEFINITIONS if name.startswith(prefixes)}
        lines += [f"## {title}", "", "| name | type | labels | meaning |", "|---|---|---|---|"]
        lines += [
            f"| `headrace_{name}` | {kind} | {_labels(EXTRA_LABELS.get(name, labels))} | {text} |"
            for name, (kind, text) in rows.items()
        ]
        lines += [""]
    assert not left, f"metrics without a group: {sorted(left)}"
    lines += [
        "## Claims",
        "",
        "Served by a broker that collects claims (`--claims`), by `headrace claims collect --metrics-port`, and by "
        "programs that pass `Metrics(registry)` to `Claims.open`.",
        "",
        "| name | type | labels | meaning |",
        "|---|---|---|---|",
        *_claim_rows(),
    ]
    return "\n".join(lines) + "\n"


def _claim_rows() -> list[str]:
    metrics = Metrics()
    metrics.init_labels("n")
    rows = []
    for family in metrics.registry.collect():
        name = family.name + ("_total" if family.type == "counter" else "")
        labels = {"claim_check_claim_errors": ("namespace", "reason")}.get(family.name, ("namespace",))
        if family.name == "claim_check_records_rejected":
            labels = ("namespace", "kind")
        rows.append(f"| `{name}` | {family.type} | {_labels(labels)} | {family.documentation} |")
    return rows


def _labels(names: tuple[str, ...]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("{", "`{").replace("}", "}`")


if __name__ == "__main__":
    for file_name, text in make_pages().items():
        (REFERENCE / file_name).write_text(text)
