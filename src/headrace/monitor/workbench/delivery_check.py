"""Explains where a subject goes, and why a consumer has or has not delivered a message. Changes nothing."""

from __future__ import annotations

from itertools import islice
from typing import Any

from headrace.broker.accounts import Account
from headrace.broker.consumers.consumer import Consumer
from headrace.broker.consumers.dead_letter_target import find_capturing
from headrace.errors import CorruptData
from headrace.monitor.consumer_stats import describe_state
from headrace.monitor.query import Query
from headrace.monitor.sliced_page import Slices
from headrace.monitor.varz import SECOND_NS
from headrace.protocol import subjects

CONSUMERS_SHOWN = 100


async def check_subject(account: Account, query: Query) -> dict[str, Any]:
    """Return which stream stores a message with this subject, which consumers select it, and how many clients get it.

    Subject mappings and permissions of the publisher are not applied; `headrace trace` shows these.
    """
    subject = query.get("subject", "").encode()
    if not subjects.is_valid_publish(subject):
        raise ValueError(f"invalid subject {query.get('subject', '')!r}")
    route = account.router.get_route(subject)
    stream = find_capturing(account.router, subject)
    consumers: list[dict[str, str]] = []
    with Slices() as slices:
        for consumer in list(stream.consumers.values()) if stream is not None else ():
            if not consumer.filters or any(subjects.matches(each, subject) for each in consumer.filters):
                consumers.append(
                    {"name": consumer.name, "state": describe_state(consumer, consumer.num_pending())}
                )
            if slices.is_over():
                await slices.next_turn()
    return {
        "subject": subject.decode(errors="replace"),
        "stream": stream.name if stream is not None else "",
        "consumers": list(islice(consumers, CONSUMERS_SHOWN)),
        "consumer_count": len(consumers),
        "subscribers": len(route.subscribers) if route.valid else 0,
        "queue_groups": len(route.queue_groups) if route.valid else 0,
    }


def explain_message(consumer: Consumer, seq: int, *, with_subject: bool) -> str:
    """Return what happened with a message, or why it waits; only some viewers may see its subject."""
    log, ack_state = consumer.stream.log, consumer.ack_state
    if seq > log.last_seq:
        return f"The stream has no message {seq} yet; the newest is {log.last_seq}."
    try:
        message = log.get(seq)
    except CorruptData as error:
        return f"The message is damaged: {error}"
    if seq in ack_state.pending:
        return _explain_pending(consumer, seq)
    if message is None:
        return (
            "The stream does not have this message any more: it was removed, or acknowledged in a work queue."
        )
    subject = message[1]
    if consumer.filters and not any(subjects.matches(each, subject) for each in consumer.filters):
        subject_text = f" {subject.decode(errors='replace')!r}" if with_subject else ""
        return f"The filters of the consumer do not select its subject{subject_text}."
    key_order = ack_state.key_order
    if key_order is not None and key_order.is_passed(seq):
        return "It waits: its key is blocked by an earlier message that is not acknowledged."
    if seq >= ack_state.next_seq:
        return _explain_waiting(consumer, seq)
    if seq in ack_state.delivery_counts:
        return f"It was given up after {ack_state.get_delivery_count(seq)} deliveries (max_deliver)."
    if seq <= ack_state.get_ack_floor()[1] or ack_state.stream_seq >= seq:
        return "It was delivered and acknowledged, or the consumer started after it."
    return "It is not selected: the consumer started after it."


def _explain_pending(consumer: Consumer, seq: int) -> str:
    ack_state = consumer.ack_state
    deadline_ns = ack_state.ack_deadlines.find_deadline(seq)
    count = ack_state.get_delivery_count(seq)
    times = "once" if count == 1 else f"{count} times"
    if seq in ack_state.redelivery_queue:
        return f"It was delivered {times} without an ack and waits for its next delivery."
    if not deadline_ns:
        return f"It was delivered {times} and waits for its ack."
    left_s = max(deadline_ns - consumer.now_ns(), 0) / SECOND_NS
    return f"It was delivered {times} and waits for its ack; it is delivered again in {left_s:,.0f} s."


def _explain_waiting(consumer: Consumer, seq: int) -> str:
    reason = {
        "paused": "the consumer is paused",
        "max ack pending": "max_ack_pending is reached",
        "no subscriber": "nobody subscribes to the deliver subject",
        "no pulls": "no client requests messages",
    }.get(describe_state(consumer, consumer.num_pending()), "earlier messages come first")
    return (
        f"It has not been delivered yet: {reason}. The consumer is at sequence {consumer.ack_state.next_seq}."
    )
