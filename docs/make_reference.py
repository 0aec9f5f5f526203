"""Writes docs/reference.md from the code: `python docs/make_reference.py`. A test says when it has to be run again."""

from __future__ import annotations

from pathlib import Path

from headrace.jetstream_api.errors import load_table
from headrace.monitor.metrics import METRIC_DEFINITIONS

PAGE = Path(__file__).parent / "reference.md"
HEADERS = {
    "What publishers send": {
        "Nats-Msg-Id": "An id; the same one again within the stream's `duplicate_window` is not stored twice.",
        "Nats-TTL": "How long the message lives: seconds, a duration (`90m`) or `never`. Needs `allow_msg_ttl`.",
        "Nats-Rollup": "`sub` or `all`: replaces all before it, on its subject or in the stream. Needs `allow_rollup_hdrs`.",
        "Nats-Expected-Stream": "Store only in the stream of this name.",
        "Nats-Expected-Last-Sequence": "Store only if this is the stream's last sequence.",
        "Nats-Expected-Last-Subject-Sequence": "Store only if this is the subject's last sequence; 0: if there is none.",
        "Nats-Expected-Last-Subject-Sequence-Subject": "The subject that the line above is about, when it is another one.",
        "Nats-Expected-Last-Msg-Id": "Store only if this is the id of the last message.",
        "Nats-Batch-Id": "The atomic batch a message belongs to. Needs `allow_atomic`.",
        "Nats-Batch-Sequence": "Its place in the batch, from 1.",
        "Nats-Batch-Commit": "`1`: this member is the last; `eob`: the one before was.",
        "Nats-Incr": "What to add to a counter. Needs `allow_msg_counter`.",
        "Nats-Schedule": "When to publish: `@at`, `@every` or a cron line. Needs `allow_msg_schedules`.",
        "Nats-Schedule-Target": "Where to publish it.",
        "Nats-Schedule-Source": "A subject whose last message is published instead.",
        "Nats-Schedule-TTL": "The lifetime of what is published.",
        "Nats-Schedule-Time-Zone": "The zone of a cron line.",
        "Nats-Schedule-Rollup": "`sub`: what is published replaces what was there.",
        "Nats-Required-Api-Level": "Refuse the request on a server of a lower API level.",
    },
    "What the server adds": {
        "Nats-Marker-Reason": "On a delete marker: `MaxAge`, `Purge` or `Remove`.",
        "Nats-Applied-Limit": "On a delete marker: the limit that was applied.",
        "Nats-Stream": "On an answer to a direct get: the stream.",
        "Nats-Subject": "The subject.",
        "Nats-Sequence": "The sequence.",
        "Nats-Time-Stamp": "When it was stored.",
        "Nats-Stream-Source": "On a sourced message: where it comes from.",
        "Nats-Counter-Sources": "On a sourced counter: what each origin contributed.",
        "Nats-Last-Sequence": "On a republished copy: the previous sequence of its subject.",
        "Nats-Last-Consumer": "On a heartbeat: the consumer sequence.",
        "Nats-Last-Stream": "On a heartbeat or a flow-control answer: the stream sequence.",
        "Nats-Consumer-Stalled": "On a heartbeat: where to answer to let the flow go on.",
        "Nats-Pin-Id": "On a delivery to a pinned client of a priority group: its pin.",
        "Nats-Msg-Size": "On a headers-only delivery or copy: how large the payload is.",
    },
}


def page() -> str:
    """The whole page."""
    lines = [
        "# Reference",
        "",
        "Written from the code by `python docs/make_reference.py`.",
        "",
        "## Headers",
        "",
    ]
    for title, rows in HEADERS.items():
        lines += [f"### {title}", "", "| header | meaning |", "|---|---|"]
        lines += [f"| `{name}` | {text} |" for name, text in rows.items()] + [""]
    lines += ["## Metrics", "", "Of `/metrics`; those of claims are in [claims](claims.md).", ""]
    lines += ["| name | kind | meaning |", "|---|---|---|"]
    lines += [f"| `headrace_{name}` | {kind} | {text} |" for name, (kind, text) in METRIC_DEFINITIONS.items()]
    lines += ["", "## Errors", "", "The answers of the JetStream API: the reference's table.", ""]
    lines += ["| code | status | text |", "|---|---|---|"]
    lines += [
        f"| {entry.error_code} | {entry.code} | {_cell(entry.description)} |"
        for entry in sorted(set(load_table().values()), key=lambda entry: entry.error_code)
    ]
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("{", "`{").replace("}", "}`")


if __name__ == "__main__":
    PAGE.write_text(page())
