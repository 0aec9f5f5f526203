"""Actions of a simulation: every kind of event by its name.

Owns what clients do, what fails and when; the simulation carries out the consequences, and the checker decides whether
they are allowed. An action only starts something: bytes are sent, a fault waits for its call.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from headrace.sim.clock import SECOND_NS
from headrace.sim.disk.disk_faults import Fault
from headrace.sim.network.sim_client import SimClient
from headrace.sim.network.two_servers import TwoServers
from headrace.sim.workloads.feature_actors import FEATURE_ACTORS
from headrace.sim.workloads.migration_actors import MIGRATION_ACTORS
from headrace.sim.workloads.sim_config import (
    CHURNING_STREAM,
    CONSUMERS,
    INTEREST_STREAM,
    MARKER_TTL_S,
    PULL_CONSUMERS,
    STREAMS,
    SUBJECTS,
)

if TYPE_CHECKING:
    from headrace.sim.checkers.history_checker import SentMessage
    from headrace.sim.simulation import Simulation


# Publishing


def send_message(
    sim: Simulation, client: SimClient, stream: str, subject: str, header: dict[str, str]
) -> SentMessage:
    """Send one message; what a restricted user may not send counts as rejected."""
    message = sim.history_checker.record_send(stream, subject.encode(), client.cid, sim.now_ns)
    message.padding_bytes = sim.rng.randrange(sim.options.payload_max)
    message.message_id = header.get("Nats-Msg-Id", "")
    ttl_s = int(header.get("Nats-TTL", "0").rstrip("s"))
    message.ttl_ns = max(ttl_s, MARKER_TTL_S) * SECOND_NS if ttl_s else 0
    message.refused = client.identity.is_publish_denied(subject)
    client.request(subject, message.payload, sim.delivery_checker.make_publish_handler(message, sim), header)
    return message


def _publish(sim: Simulation) -> None:
    for _ in range(sim.rng.randrange(1, 8)):
        stream = sim.rng.choice("PPKWLN" + ("Q" if sim.options.two_servers else ""))
        send_message(sim, sim.client(), stream, f"{stream.lower()}.{sim.rng.randrange(SUBJECTS)}", {})


def _publish_with_id(sim: Simulation) -> None:
    number = max(sim.history_checker.last_order - sim.rng.choice((0, 0, 3, 10)), 0) // 4
    header = {"Nats-Msg-Id": f"m{number}"}
    if sim.rng.random() < 0.2:
        header["Nats-Expected-Last-Msg-Id"] = f"m{number - sim.rng.choice((0, 1))}"
    send_message(sim, sim.client(), "P", f"p.{sim.rng.randrange(SUBJECTS)}", header)


def _publish_expecting(sim: Simulation) -> None:
    """Publish with an expected last sequence of its key, or of the stream, which may be wrong."""
    log = sim.local.jetstream.streams["K"].log
    key = f"k.{sim.rng.randrange(SUBJECTS)}"
    if sim.rng.random() < 0.7:
        name, guess = "Nats-Expected-Last-Subject-Sequence", log.get_last_seq(key.encode())
    else:
        name, guess = "Nats-Expected-Last-Sequence", log.last_seq
    guess -= sim.rng.choice((0, 0, 1))
    send_message(sim, sim.client(), "K", key, {name: str(max(guess, 0))})


def _publish_with_ttl(sim: Simulation) -> None:
    for _ in range(sim.rng.randrange(1, 5)):
        header = {"Nats-TTL": f"{sim.rng.choice((1, 2, 5, 30))}s"}
        send_message(sim, sim.client(), "T", f"t.{sim.rng.randrange(SUBJECTS)}", header)


def _publish_batch(sim: Simulation, streams: str = "PK") -> None:
    """Publish a batch, perhaps never finished, perhaps with a lost member or a known id."""
    rng, history_checker, client = sim.rng, sim.history_checker, sim.client()
    stream, size = rng.choice(streams + ("Q" if sim.options.two_servers else "")), rng.randrange(1, 9)
    finished, gap, reuses_id = rng.random() < 0.8, rng.random() < 0.1, rng.random() < 0.2
    name = f"b{history_checker.last_order}"
    members = []
    is_rejected = False
    for position in range(1, size + 1):
        subject = f"{stream.lower()}.{position if stream == 'K' else rng.randrange(SUBJECTS)}"
        member = history_checker.record_send(stream, subject.encode(), client.cid, sim.now_ns)
        member.batch, member.padding_bytes = name.encode(), rng.randrange(sim.options.payload_max)
        members.append(member)
        header = {"Nats-Batch-Id": name, "Nats-Batch-Sequence": str(position)}
        if reuses_id and stream == "P":
            member.message_id = header["Nats-Msg-Id"] = f"m{history_checker.last_order // 4}"
        last = position == size and finished
        is_rejected = is_rejected or client.identity.is_publish_denied(subject) or (gap and position == 2)
        if gap and position == 2:
            continue
        if last:
            header["Nats-Batch-Commit"] = "1"
            client.request(
                subject, member.payload, sim.delivery_checker.make_batch_handler(members, sim), header
            )
        else:
            client.publish(subject, member.payload, header)
        if rng.random() < 0.3:
            sim.step()
    for member in members:
        member.refused = member.refused or is_rejected


def _publish_core(sim: Simulation) -> None:
    """Publish messages that no stream stores: to subscribers, and to one member of a queue group."""
    sim.permission_actors.publish(sim.client(), sim.rng.randrange(SUBJECTS))


# Reading


def _pull(sim: Simulation) -> None:
    stream, consumer = sim.rng.choice(PULL_CONSUMERS)
    for _ in range(sim.rng.choice((1, 1, 1, 4))):
        sim.delivery_checker.pull(
            sim.client_for(consumer), stream, consumer, sim.rng.randrange(1, 8), vary_options=True
        )


def _reset(sim: Simulation) -> None:
    """Reset a consumer: messages that it confirmed may be delivered again."""
    if sim.rng.random() < 0.3:
        body = sim.rng.choice((b'{"seq":1}', b'{"seq":1}', b"", b'{"seq":0}'))
        sim.delivery_checker.reset(sim.client_for("pull"), "P", "pull", body)
    elif sim.options.two_servers and sim.rng.random() < 0.5:
        sim.client().request("$JS.API.CONSUMER.RESET.Q.D", b"")


def _get_info(sim: Simulation) -> None:
    stream = sim.rng.choice([name for name in STREAMS if name in sim.local.jetstream.streams])
    sim.client().request(f"$JS.API.STREAM.INFO.{stream}", b"", sim.delivery_checker.make_info_handler(stream))


def _get_message(sim: Simulation) -> None:
    """Get one message by key or sequence, directly from the stream."""
    if sim.rng.random() < 0.5:
        key = f"k.{sim.rng.randrange(SUBJECTS)}"
        sim.client().request(
            f"$JS.API.DIRECT.GET.K.{key}", b"", sim.delivery_checker.make_direct_get_handler("K")
        )
    elif seqs := sim.get_known_seqs("P"):
        seq = sim.rng.choice(seqs)
        body = b'{"seq":%d}' % seq
        sim.client().request(
            "$JS.API.STREAM.MSG.GET.P", body, sim.delivery_checker.make_get_handler("P", seq)
        )


# Removing and creating


def _delete(sim: Simulation) -> None:
    disconnected = isinstance(sim.servers, TwoServers) and not sim.servers.is_connected
    stream = sim.rng.choice("PKTLN" + "Q" * 3 * disconnected)
    if seqs := sim.get_known_seqs(stream):
        seq = sim.rng.choice(seqs)
        sim.history_checker.removals[stream].requested_deletes.add(seq)
        body = b'{"seq":%d}' % seq
        on_reply = sim.delivery_checker.make_removal_handler(stream, {seq})
        sim.client().request(f"$JS.API.STREAM.MSG.DELETE.{stream}", body, on_reply)


def _purge(sim: Simulation) -> None:
    if sim.rng.random() < 0.3:
        stream, client = sim.rng.choice("PKTWLN"), sim.client()
        pattern, keep = sim.rng.choice((("", 0), (f"{stream.lower()}.1", 0), ("", 2)))
        fields = [b'"filter":"%b"' % pattern.encode()] if pattern else []
        fields += [b'"keep":%d' % keep] if keep else []
        body, subject = b"{%b}" % b",".join(fields) if fields else b"", f"$JS.API.STREAM.PURGE.{stream}"
        if client.identity.is_publish_denied(subject):
            client.request(subject, body)
            return
        purge = sim.history_checker.record_purge(stream, pattern.encode(), client.cid)
        expected_seqs = set() if keep else purge.expected_seqs
        client.request(subject, body, sim.delivery_checker.make_removal_handler(stream, expected_seqs, purge))


def _churn_stream(sim: Simulation) -> None:
    """Create or delete a stream, or publish to it."""
    rng, client, churning = sim.rng, sim.client(), sim.churning_stream
    roll = rng.random()
    if roll < 0.15:
        compression = "s2" if CHURNING_STREAM in sim.options.compressed else "none"
        config = {"name": CHURNING_STREAM, "subjects": ["x.>"], "compression": compression}
        body = json.dumps(config).encode()
        client.request(f"$JS.API.STREAM.CREATE.{CHURNING_STREAM}", body, churning.on_create_reply)
    elif roll < 0.25:
        client.request(f"$JS.API.STREAM.DELETE.{CHURNING_STREAM}", b"", churning.make_delete_handler(client))
    else:
        for _ in range(rng.randrange(1, 6)):
            payload = churning.next_payload(client) + bytes(rng.randrange(sim.options.payload_max))
            client.request(f"x.{rng.randrange(SUBJECTS)}", payload)


def _use_interest_stream(sim: Simulation) -> None:
    """Publish to the interest stream, consume from it, or create or delete a temporary consumer."""
    rng, roll = sim.rng, sim.rng.random()
    temporary = [
        name for name in sim.local.jetstream.streams[INTEREST_STREAM].consumers if name.startswith("passing")
    ]
    if roll < 0.4:
        for _ in range(rng.randrange(1, 6)):
            send_message(sim, sim.client(), INTEREST_STREAM, f"i.{rng.randrange(SUBJECTS)}", {})
    elif roll < 0.9:
        consumer = rng.choice(["one", "other", *temporary])
        sim.delivery_checker.pull(
            sim.client_for(consumer), INTEREST_STREAM, consumer, rng.randrange(1, 8), vary_options=True
        )
    elif temporary:
        sim.client().request(f"$JS.API.CONSUMER.DELETE.{INTEREST_STREAM}.{temporary[0]}", b"")
    else:
        name = f"passing{sim.history_checker.last_order}"
        config = {
            "durable_name": name,
            "ack_policy": "explicit",
            "filter_subject": rng.choice(("i.1", "i.3")),
        }
        body = json.dumps({"stream_name": INTEREST_STREAM, "config": config}).encode()
        sim.client().request(f"$JS.API.CONSUMER.CREATE.{INTEREST_STREAM}.{name}", body)


def _change_worker(sim: Simulation) -> None:
    """Change the filter of the work queue's consumer, or reset it: no message may be removed by that."""
    if sim.rng.random() < 0.5:
        filter_subjects = sim.rng.choice((["w.0"], ["w.0", "w.1"], ["w.>"]))
        sim.client().request("$JS.API.CONSUMER.CREATE.W.worker", make_worker_request(filter_subjects))
    elif seqs := sim.get_known_seqs("W"):
        body = b'{"seq":%d}' % sim.rng.choice(seqs)
        sim.client().request("$JS.API.CONSUMER.RESET.W.worker", body)


def make_worker_request(filter_subjects: list[str]) -> bytes:
    """Return the request that sets the filter of the work queue's consumer."""
    ((name, config),) = CONSUMERS["W"]
    full = {"durable_name": name, **config, "filter_subjects": filter_subjects}
    return json.dumps({"stream_name": "W", "config": full}).encode()


def _make_feature_action(name: str) -> Callable[[Simulation], None]:
    return lambda sim: sim.feature_actors[name].act(sim)


# Time and faults


def _pass_time(sim: Simulation) -> None:
    sim.servers.pass_time(sim.rng.choice((SECOND_NS // 100, SECOND_NS // 2, 3 * SECOND_NS, 11 * SECOND_NS)))


def _run_idle_and_check(sim: Simulation) -> None:
    sim.run_until_idle()
    sim.servers.advance(sim.rng.randrange(2 * SECOND_NS))
    sim.run_until_idle()
    if sim.local.store.poisoned is None and not sim.local.store.waiting_for_space:
        sim.delivery_checker.on_server_idle()
        sim.check("rest", quiescent=False)


def _set_clock(sim: Simulation) -> None:
    """Set the clock while nothing is in progress."""
    if sim.rng.random() < 0.1:
        sim.run_until_idle()
        sim.history_checker.latest_ns = max(sim.history_checker.latest_ns, sim.now_ns)
        sim.local.clock.set_by(sim.rng.choice((-20, -2, 5, 40)) * SECOND_NS)


def _reconnect(sim: Simulation) -> None:
    client = sim.client()
    sim.disconnect(client)
    sim.clients[sim.clients.index(client)] = sim.connect()


def _toggle_stall(sim: Simulation) -> None:
    client = sim.client()
    client.stalled = not client.stalled


def _inject_disk_fault(sim: Simulation) -> None:
    """Let one call of the disk fail; a failing sync poisons the store."""
    if sim.rng.random() < 0.2:
        kinds = sim.rng.choice((("sync",), ("write",), ("create",), ()))
        is_rejected = sim.rng.choice(("no", "cached", "gone"))
        sim.local.disk.faults.add(Fault(kinds=kinds, nth=sim.rng.randrange(1, 9), lost=is_rejected))


def _toggle_disk_full(sim: Simulation) -> None:
    """Let the disk be full for a while."""
    disk, bytes_max = sim.local.disk, sim.rng.choice((20_000, 100_000))
    disk.capacity = None if disk.capacity is not None else disk.used() + sim.rng.randrange(bytes_max)


def _kill_server(sim: Simulation) -> None:
    if sim.rng.random() < 0.2:
        if sim.rng.random() < 0.5:  # with overdue timers that have not run yet
            sim.servers.pass_time(5 * SECOND_NS)
            for _ in range(20):
                sim.local.step()
        sim.crash(killed=True)


def _disturb_leafnode(sim: Simulation) -> None:
    """Break or restore the connection between the servers, or crash the other server."""
    servers, roll = sim.servers, sim.rng.random()
    if isinstance(servers, TwoServers):
        if roll < 0.1:
            _disconnect_during_batch(sim, servers)
        elif roll < 0.2:
            servers.crash_remote()
        elif roll < 0.3:
            disk = servers.remote.disk
            disk.capacity = None if disk.capacity is not None else disk.used()
        elif servers.is_connected and roll < 0.6:
            servers.disconnect()
        elif roll < 0.7:
            servers.connect(remote_unaware=True)
        else:
            servers.connect()


def _disconnect_during_batch(sim: Simulation, servers: TwoServers) -> None:
    """Break the connection while a batch crosses it; the other server may crash with part of it."""
    _publish_batch(sim, "Q")
    for _ in range(sim.rng.randrange(80)):
        sim.step()
    servers.disconnect()
    servers.remote.run_until_idle()
    if sim.rng.random() < 0.7:
        servers.crash_remote()


#: Actions of optional features.
OPTIONAL_ACTIONS: dict[str, Callable[[Any], None]] = {
    "heed": _use_interest_stream,
    **{name: _make_feature_action(name) for name in (*FEATURE_ACTORS, *MIGRATION_ACTORS)},
    "rearrange": _change_worker,
}
#: Every kind of event that a seed can disable.
ACTIONS: dict[str, Callable[[Any], None]] = {
    "publish": _publish,
    "id": _publish_with_id,
    "expect": _publish_expecting,
    "ttl": _publish_with_ttl,
    "batch": _publish_batch,
    "talk": _publish_core,
    "pull": _pull,
    "reset": _reset,
    "look": _get_info,
    "get": _get_message,
    "delete": _delete,
    "purge": _purge,
    "extra": _churn_stream,
    "time": _pass_time,
    "rest": _run_idle_and_check,
    "clock": _set_clock,
    "reconnect": _reconnect,
    "stall": _toggle_stall,
    "fail": _inject_disk_fault,
    "fill": _toggle_disk_full,
    "kill": _kill_server,
    "leaf": _disturb_leafnode,
}
