"""Creates the durable consumer from which a mirror or source reads, with the right configuration, on the upstream.

Such a consumer pushes in order and is acknowledged by flow control: the sourcing server replies only when its copy is
stored, so a work-queue or interest stream loses nothing on the way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from nats.js import api

from headrace.client.configs import ConsumerConfig, ConsumerInfo, StreamConsumerSource, StreamSource
from headrace.client.errors import translate_nats_errors

if TYPE_CHECKING:
    from headrace.client.context import JetStream

#: Required by servers for such a consumer.
_HEARTBEAT_S = 1.0


async def create_sourcing_consumer(
    js: JetStream,
    stream: str,
    name: str,
    deliver_subject: str,
    *,
    filter_subjects: Sequence[str] = (),
    start_seq: int | None = None,
    start_time: datetime | None = None,
    deliver_policy: api.DeliverPolicy | None = None,
    replay_policy: api.ReplayPolicy = api.ReplayPolicy.INSTANT,
    max_ack_pending: int | None = None,
    description: str | None = None,
    metadata: Mapping[str, str] | None = None,
) -> ConsumerInfo:
    """Create the consumer on the upstream `stream`, or update an existing one.

    Start and filter are set here, not in the source that uses it. A work queue needs the policy `all`, which is the
    default.
    """
    if not deliver_subject:
        raise ValueError("a sourcing consumer needs a deliver_subject that the sourcing server subscribes to")
    policy = _choose_deliver_policy(start_seq, start_time, deliver_policy)
    # Only consumers with a subject filter can get the last message of each subject.
    filters = list(filter_subjects) or ([">"] if policy is api.DeliverPolicy.LAST_PER_SUBJECT else [])
    config = ConsumerConfig(
        name=name,
        durable_name=name,
        description=description,
        deliver_subject=deliver_subject,
        deliver_policy=policy,
        opt_start_seq=start_seq,
        opt_start_time=start_time,
        filter_subject=filters[0] if len(filters) == 1 else None,
        filter_subjects=filters if len(filters) > 1 else None,
        replay_policy=replay_policy,
        ack_policy=api.AckPolicy.FLOW_CONTROL,
        flow_control=True,
        idle_heartbeat=_HEARTBEAT_S,
        max_deliver=-1,
        max_ack_pending=max_ack_pending,
        metadata=dict(metadata) if metadata else None,
    )
    with translate_nats_errors(f"creating consumer {name!r} of {stream!r}"):
        return await js.add_consumer(stream, config)


def source_through(
    consumer: ConsumerInfo, *, external: api.ExternalStream | None = None, domain: str | None = None
) -> StreamSource:
    """Return the entry for `mirror` or `sources` of the stream that reads through this consumer.

    `domain` is that of the upstream's server if it is a different one, connected as a leafnode.
    """
    if external is not None and domain is not None:
        raise ValueError("give either external or domain, not both: domain is shorthand for external")
    consumer_source = StreamConsumerSource(
        name=consumer.name, deliver_subject=consumer.config.deliver_subject
    )
    return StreamSource(
        name=consumer.stream_name,
        consumer=consumer_source,
        external=make_external(domain) if domain else external,
    )


def make_external(domain: str) -> api.ExternalStream:
    """Return how a mirror or source names a stream in another JetStream domain."""
    return api.ExternalStream(api=f"$JS.{domain}.API", deliver="")


def _choose_deliver_policy(
    seq: int | None, time: datetime | None, policy: api.DeliverPolicy | None
) -> api.DeliverPolicy:
    implied = {api.DeliverPolicy.BY_START_SEQUENCE: seq, api.DeliverPolicy.BY_START_TIME: time}
    chosen = [each for each, value in implied.items() if value is not None]
    if len(chosen) + (policy is not None and policy not in chosen) > 1:
        raise ValueError(
            "give only one of start_seq, start_time and deliver_policy: each sets where to start"
        )
    return policy or (chosen[0] if chosen else api.DeliverPolicy.ALL)
