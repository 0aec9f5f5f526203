"""One consumer for the web page: why it is stuck, how old its messages are, and which keys are blocked.

Counts in steps, because a count over a large stream takes long. Must not change the consumer, except that its info makes
its state durable, as the API's does.
"""

from __future__ import annotations

import asyncio
from itertools import islice
from typing import Any

from headrace.broker.consumers.consumer import Consumer
from headrace.broker.consumers.consumer_info import make_consumer_info
from headrace.monitor.consumer_stats import describe_state
from headrace.monitor.overview import make_consumer_row
from headrace.monitor.varz import SECOND_NS, format_rfc3339

PENDING_SHOWN, KEYS_SHOWN = 50, 50
#: Upper bounds of the ages that pending messages are counted by, in seconds.
AGE_BOUNDS_S = (1, 10, 60, 600, 3_600, 86_400)


async def make_consumer_detail(display_name: str, consumer: Consumer) -> dict[str, Any]:
    """Return the info of a consumer, its figures, and what explains them."""
    ages = await _count_by_age(consumer)
    return {
        "row": make_consumer_row(display_name, consumer),
        "info": make_consumer_info(consumer),
        "reasons": find_reasons(consumer),
        "ages": ages,
        "oldest": _find_oldest(consumer),
        "ack_pending": _list_ack_pending(consumer),
        "blocked_keys": _list_blocked_keys(consumer),
    }


def find_reasons(consumer: Consumer) -> list[dict[str, str]]:
    """Return why messages wait, each reason with what to do; empty if nothing waits."""
    config, ack_state = consumer.config, consumer.ack_state
    pending, unacked = consumer.num_pending(), len(ack_state.pending)
    texts = {
        "paused": (
            f"The consumer is paused until {format_rfc3339(consumer.paused_until_ns)}.",
            "Resume it.",
        ),
        "max ack pending": (
            f"{unacked:,} messages are delivered and not acknowledged, which is the limit max_ack_pending.",
            "Look at the clients: they take messages and do not acknowledge them. A higher limit only helps fast ones.",
        ),
        "no subscriber": (
            f"{pending:,} messages wait, and nobody subscribes to the deliver subject {config.deliver_subject!r}.",
            "Start a client that subscribes to it.",
        ),
        "no pulls": (
            f"{pending:,} messages wait, and no client requests them.",
            "Start a client that pulls from this consumer.",
        ),
        "redelivering": (
            f"{len(ack_state.delivery_counts):,} messages were delivered more than once.",
            "Look at them below: a client fails on them, or takes longer than ack_wait.",
        ),
    }
    state = describe_state(consumer, consumer.num_pending())
    found = [state] if state else []
    if ack_state.delivery_counts and state and state != "redelivering" and config.max_deliver != 1:
        found.append("redelivering")
    reasons = [{"state": each, "text": texts[each][0], "advice": texts[each][1]} for each in found]
    key_order = ack_state.key_order
    if key_order is not None and key_order.blocked:
        reasons.append(
            {
                "state": "blocked keys",
                "text": f"{key_order.blocked:,} keys wait: an earlier message of each is not acknowledged.",
                "advice": "Look for those messages among the unacknowledged ones below.",
            }
        )
    return reasons


async def _count_by_age(consumer: Consumer) -> list[dict[str, Any]]:
    """Return how many undelivered messages are younger than each bound, and how many are older than all."""
    log, subject_filter = consumer.stream.log, consumer.pending_counter.subject_filter
    now_ns, first = consumer.stream.clock.now_ns(), consumer.ack_state.next_seq
    rows: list[dict[str, Any]] = []
    younger = 0
    for bound_s in AGE_BOUNDS_S:
        start = log.find_seq_at_time(now_ns - bound_s * SECOND_NS)
        count = log.count_from(subject_filter, max(start, first)) if start else 0
        rows.append({"below_s": bound_s, "count": max(count - younger, 0)})
        younger = max(count, younger)
        await asyncio.sleep(0)
    rows.append({"below_s": None, "count": max(consumer.num_pending() - younger, 0)})
    return rows


def _find_oldest(consumer: Consumer) -> dict[str, Any] | None:
    """Return the first message that is not acknowledged."""
    log, floor = consumer.stream.log, consumer.ack_state.get_ack_floor()[1]
    if not (consumer.ack_state.pending or consumer.num_pending()):
        return None
    seq = log.find_next(consumer.pending_counter.subject_filter, max(floor + 1, log.first_seq))
    return {"seq": seq, "time": format_rfc3339(log.get_time_ns(seq))} if seq else None


def _list_ack_pending(consumer: Consumer) -> list[dict[str, Any]]:
    """Return the first messages that were delivered and not acknowledged."""
    ack_state, log, now_ns = consumer.ack_state, consumer.stream.log, consumer.now_ns()
    rows = []
    for seq in islice(ack_state.pending, PENDING_SHOWN):
        deadline_ns = ack_state.ack_deadlines.find_deadline(seq)
        time_ns = log.get_time_ns(seq)
        rows.append(
            {
                "seq": seq,
                "time": format_rfc3339(time_ns) if time_ns else "",
                "deliveries": ack_state.get_delivery_count(seq),
                "redelivery_s": max(deadline_ns - now_ns, 0) / SECOND_NS if deadline_ns else None,
            }
        )
    return rows


def _list_blocked_keys(consumer: Consumer) -> list[dict[str, Any]]:
    """Return some of the blocked keys, each with its first waiting message."""
    key_order = consumer.ack_state.key_order
    if key_order is None:
        return []
    return [
        {"key": name.decode(errors="replace"), "first_seq": first}
        for name, first in key_order.list_some(KEYS_SHOWN)
    ]
