"""Recreates the durable consumers of a stream on the new server, where both streams have the same sequences.

Invariant: a consumer starts right after its ack floor, so it skips no message that was not acknowledged. Messages above
the floor that were already acknowledged are acknowledged here on behalf of the client, where the old server says which
those are (it is not a cluster, and the consumer pulls, acknowledges each message and has no `max_deliver`); otherwise
they are delivered again. Messages that were delivered and not acknowledged are delivered again in any case.

In a cluster the leader of a consumer counts and delivers what its own replica of the stream has. A replica that has not
caught up yet lacks messages that the leader of the stream has, and nothing in the stream's info shows it. So
`await_pending` waits until a consumer counts all its messages.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import nats.errors

from headrace.client.errors import JetStreamError
from headrace.migrate.jetstream_server import JetStreamServer
from headrace.migrate.stream_backup import read_consumer_states
from headrace.protocol.nuid import nuid

_PAUSED_UNTIL = "2100-01-01T00:00:00Z"
_POLL_S = 0.05
_PULL_MAX = 256
_PULL_EXPIRES_S = 1.0
#: Time after which a pull counts as lost, beyond its own.
_PULL_GRACE_S = 0.5
#: Maximum wait for the replica of a consumer's leader, and for its messages. Nothing is lost without it, and publishers
#: wait meanwhile.
_REPLICA_WAIT_S = 2.0
_COUNTER_INACTIVE_NS = 10 * 10**9
#: Deliver policies that a consumer cannot be reset with.
FIXED_START_POLICIES = ("last", "new", "last_per_subject")


@dataclass(frozen=True)
class DurablePosition:
    """Where a consumer is: its ack floor, what it delivered, and what of that is pending; None if that is not known."""

    config: dict[str, Any]
    ack_floor: int
    delivered: int
    undelivered: int
    pending: frozenset[int] | None

    @property
    def name(self) -> str:
        return str(self.config["durable_name"])

    @property
    def has_known_gaps(self) -> bool:
        """Whether messages above the floor can be acknowledged on behalf of the client."""
        config = self.config
        return (
            self.pending is not None
            and self.delivered > self.ack_floor
            and config.get("ack_policy") == "explicit"
            and not config.get("deliver_subject")
            and not config.get("priority_groups")
            and config.get("max_deliver", -1) <= 0
        )

    def was_acknowledged(self, seq: int) -> bool:
        """Return whether the old server has an ack for a message of a consumer with known gaps."""
        return self.pending is not None and seq not in self.pending and seq <= self.delivered


async def list_durables(server: JetStreamServer, stream: str) -> list[dict[str, Any]]:
    """Return the infos of a stream's durable consumers.

    A cluster leaves consumers without a leader out of `CONSUMER.LIST`, but not out of the names; a request for one of
    them is repeated until it has a leader again.
    """
    names = await server.list_all(f"CONSUMER.NAMES.{stream}", "consumers")
    infos = await asyncio.gather(*(server.find(f"CONSUMER.INFO.{stream}.{name}") for name in names))
    return [info for info in infos if info is not None and info["config"].get("durable_name")]


async def pause_all(server: JetStreamServer, stream: str) -> None:
    """Stop the deliveries of all durable consumers; acks are still accepted."""
    infos = await list_durables(server, stream)
    body = {"pause_until": _PAUSED_UNTIL}
    await asyncio.gather(*(server.find(f"CONSUMER.PAUSE.{stream}.{info['name']}", body) for info in infos))


async def resume_all(server: JetStreamServer, stream: str, paused_before: dict[str, str]) -> None:
    """Resume the deliveries; consumers that were paused before the move get their time back."""
    for info in await list_durables(server, stream):
        until = paused_before.get(info["name"])
        body = {"pause_until": until} if until else None
        await server.find(f"CONSUMER.PAUSE.{stream}.{info['name']}", body)


def get_pauses(infos: Sequence[dict[str, Any]]) -> dict[str, str]:
    """Return the consumers that are paused, not by a move, and until when."""
    found = {info["name"]: info["config"].get("pause_until") for info in infos if info.get("paused")}
    return {name: until for name, until in found.items() if until and until != _PAUSED_UNTIL}


async def await_acks(server: JetStreamServer, stream: str, wait_s: float) -> None:
    """Wait until no delivered message waits for its ack, for at most `wait_s`."""
    deadline_s = time.monotonic() + wait_s
    while time.monotonic() < deadline_s:
        if not any(info.get("num_ack_pending") for info in await list_durables(server, stream)):
            return
        await asyncio.sleep(_POLL_S)


async def read_positions(
    server: JetStreamServer, stream: str, paused_before: dict[str, str]
) -> list[DurablePosition]:
    """Return the positions of a stream's durable consumers."""
    infos = await list_durables(server, stream)
    has_gaps = any(info.get("num_ack_pending") for info in infos)
    states = await read_consumer_states(server, stream) if has_gaps and not server.is_clustered else {}
    return [_make_position(info, states.get(info["name"]), paused_before) for info in infos]


def _make_position(
    info: dict[str, Any], state: dict[str, Any] | None, paused_before: dict[str, str]
) -> DurablePosition:
    config = {key: value for key, value in info["config"].items() if key != "pause_until"}
    if until := paused_before.get(info["name"]):
        config["pause_until"] = until
    config["num_replicas"] = 0
    metadata = config.get("metadata") or {}
    config["metadata"] = {key: value for key, value in metadata.items() if not key.startswith("_nats.")}
    pending = None
    if state is not None:
        info = {**info, **state}
        pending = frozenset(map(int, state.get("pending") or ()))
    elif not info.get("num_ack_pending"):
        pending = frozenset()
    floor, delivered = info["ack_floor"]["stream_seq"], info["delivered"]["stream_seq"]
    if not info["delivered"]["consumer_seq"]:
        # nats-server shows no ack floor before the first ack, but where the first delivery starts.
        floor = max(floor, delivered)
    elif not floor and config.get("deliver_policy") == "new":
        config |= {"deliver_policy": "by_start_time", "opt_start_time": info["created"]}
    return DurablePosition(config, floor, delivered, info.get("num_pending", 0), pending)


async def create_consumer(
    old: JetStreamServer, server: JetStreamServer, stream: str, position: DurablePosition
) -> None:
    """Create a consumer at its position; one that an interrupted move has left is replaced."""
    name, config = position.name, position.config
    await server.find(f"CONSUMER.DELETE.{stream}.{name}")
    start = position.ack_floor + 1
    is_fixed = config.get("deliver_policy") in FIXED_START_POLICIES
    if is_fixed:
        config = {key: value for key, value in config.items() if key != "opt_start_time"}
        config |= {"deliver_policy": "by_start_sequence", "opt_start_seq": start}
    await server.api(f"CONSUMER.CREATE.{stream}.{name}", {"stream_name": stream, "config": config})
    if not is_fixed and position.ack_floor and start > config.get("opt_start_seq", 0):
        try:
            await server.api(f"CONSUMER.RESET.{stream}.{name}", {"seq": start})
        except JetStreamError:
            # Its own start is later than the ack floor: nothing was acknowledged yet.
            if config.get("deliver_policy") != "by_start_time":
                raise
    if position.has_known_gaps and "pause_until" not in config:
        await _acknowledge_gaps(server, stream, position, await _count_unacknowledged(old, stream, position))
    else:
        await await_pending(server, stream, name, position.undelivered)


async def await_pending(server: JetStreamServer, stream: str, name: str, expected: int) -> int:
    """Wait until a consumer has so many messages to deliver, but not for long; return how many it has."""
    deadline_s = time.monotonic() + _REPLICA_WAIT_S
    while True:
        found = int((await server.api(f"CONSUMER.INFO.{stream}.{name}")).get("num_pending", 0))
        # Fewer for good if messages have expired meanwhile.
        if found >= expected or time.monotonic() > deadline_s:
            return found
        await asyncio.sleep(_POLL_S)


async def await_restored(old: JetStreamServer, new: JetStreamServer, stream: str) -> None:
    """Wait until the paused consumers that a backup has brought count all messages that they have to deliver."""
    expected = {info["name"]: info.get("num_pending", 0) for info in await list_durables(old, stream)}
    paused = [info["name"] for info in await list_durables(new, stream) if info.get("paused")]
    await asyncio.gather(*(await_pending(new, stream, name, expected.get(name, 0)) for name in paused))


async def _count_unacknowledged(old: JetStreamServer, stream: str, position: DurablePosition) -> int:
    """Return how many messages above its ack floor a consumer selects, by creating one that starts there."""
    name = f"headrace-move-{nuid()}"
    kept = ("filter_subject", "filter_subjects")
    config = {key: position.config[key] for key in kept if key in position.config}
    config |= {"name": name, "ack_policy": "none", "mem_storage": True, "num_replicas": 1}
    config |= {"deliver_policy": "by_start_sequence", "opt_start_seq": position.ack_floor + 1}
    config |= {"inactive_threshold": _COUNTER_INACTIVE_NS}
    try:
        body = {"stream_name": stream, "config": config}
        info = await old.api(f"CONSUMER.CREATE.{stream}.{name}", body)
    except JetStreamError:
        # The stream allows no more consumers.
        return position.undelivered
    await old.find(f"CONSUMER.DELETE.{stream}.{name}")
    return int(info["num_pending"])


async def _acknowledge_gaps(
    server: JetStreamServer, stream: str, position: DurablePosition, expected: int
) -> None:
    """Acknowledge the messages that the old server has acks for; leave the pending ones for redelivery."""
    # Both streams have the same messages, so the difference is what was delivered above the floor.
    remaining = await await_pending(server, stream, position.name, expected) - position.undelivered
    unprocessed: list[Any] = []
    deadline_s = time.monotonic() + _REPLICA_WAIT_S
    while remaining > 0:
        messages = await _pull(server, stream, position.name, min(remaining, _PULL_MAX))
        if not messages:
            # A cluster drops pulls while the consumer gets its leader.
            if time.monotonic() > deadline_s:
                break
            await asyncio.sleep(_POLL_S)
        remaining -= len(messages)
        done: list[Any] = []
        for each in messages:
            was_acknowledged = position.was_acknowledged(each.metadata.sequence.stream)
            (done if was_acknowledged else unprocessed).append(each)
        # All at once: publishers wait meanwhile, and in a cluster each ack takes a round of the replicas.
        await asyncio.gather(*(each.ack_sync() for each in done))
    for message in unprocessed:
        await message.nak()
    await server.connection.flush()


async def _pull(server: JetStreamServer, stream: str, name: str, count: int) -> list[Any]:
    """Pull so many messages; fewer if the server has no more."""
    connection = server.connection
    inbox = connection.new_inbox()
    subscription = await connection.subscribe(inbox)
    expires_ns = int(_PULL_EXPIRES_S * 1e9)
    body = b'{"batch":%d,"expires":%d}' % (count, expires_ns)
    messages: list[Any] = []
    try:
        await connection.publish(f"{server.prefix}.CONSUMER.MSG.NEXT.{stream}.{name}", body, reply=inbox)
        while len(messages) < count:
            message = await subscription.next_msg(timeout=_PULL_EXPIRES_S + _PULL_GRACE_S)
            if (message.headers or {}).get("Status"):
                break
            messages.append(message)
    except nats.errors.TimeoutError:
        pass
    finally:
        await subscription.unsubscribe()
    return messages
