"""What can happen to a keyed consumer in a simulation: work, failures of workers, changes by an administrator."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from headrace.sim.checkers.store_invariants import Violation
from headrace.sim.clock import SECOND_NS
from headrace.sim.workloads.keyed_config import CONSUMER, DEAD_LETTERS, GROUP, OTHER, STREAM

if TYPE_CHECKING:
    from headrace.sim.keyed_simulation import KeyedSimulation, Worker
    from headrace.sim.network.sim_client import SimClient

_NEXT = f"$JS.API.CONSUMER.MSG.NEXT.{STREAM}.{CONSUMER}"


def publish(simulation: KeyedSimulation) -> None:
    rng = simulation.rng
    for _ in range(rng.randrange(1, 6)):
        subject = rng.choice(simulation.options.subjects)
        simulation.last_number += 1
        header = {"Nats_Msg_Id": f"id{simulation.last_number}", "Own": "kept"} if rng.random() < 0.3 else {}
        request = simulation.broker.publish(subject, b"%d" % simulation.last_number, **header)
        simulation.published[request] = subject, simulation.checker.get_key(subject) is not None


def pull_some(simulation: KeyedSimulation) -> None:
    worker = pick_worker(simulation)
    if worker is not None:
        pull(simulation, worker)


def pull(simulation: KeyedSimulation, worker: Worker) -> None:
    """Request messages, unless the consumer pushes them."""
    rng, config = simulation.rng, simulation.config
    if "deliver_subject" in config:
        return
    request: dict[str, Any] = {"batch": rng.randrange(1, 6), "expires": rng.randrange(1, 4) * SECOND_NS}
    if rng.random() < 0.2:
        request = {"batch": rng.randrange(1, 6), "no_wait": True}
    if "priority_groups" in config:
        request["group"] = GROUP
    if config.get("priority_policy") == "overflow" and rng.random() < 0.2:
        request["min_pending"] = 2
    if config.get("priority_policy") == "prioritized":
        request["priority"] = rng.randrange(3)
    worker.client.publish(_NEXT, json.dumps(request).encode(), reply=worker.inbox)


def pick_worker(simulation: KeyedSimulation) -> Worker | None:
    """Return a connected worker."""
    connected = [worker for worker in simulation.workers if worker.client.open]
    return simulation.rng.choice(connected) if connected else None


def settle(simulation: KeyedSimulation) -> None:
    """Let a worker settle some of its messages, one way or another."""
    worker = pick_worker(simulation)
    if worker is None:
        return
    rng = simulation.rng
    for message in list(worker.received):
        if rng.random() < 0.6:
            worker.received.remove(message)
            _settle_one(simulation, worker, message)


def _settle_one(simulation: KeyedSimulation, worker: Worker, message: tuple[int, int, bytes]) -> None:
    seq, count, reply = message
    rng, checker, client = simulation.rng, simulation.checker, worker.client
    subject, roll = reply.decode(), rng.random()
    if rng.random() < simulation.options.failure_share:
        roll = 0.6 + 0.4 * roll
    simulation.trace.append(f"settle {seq} #{count} {roll:.2f}")
    if roll < 0.45:
        checker.on_ack(seq, count)
        simulation.dead_letters.acked.add(seq)
        client.publish(subject)
    elif roll < 0.6:
        checker.on_ack(seq, count)
        simulation.dead_letters.acked.add(seq)
        epoch = checker.epoch
        client.request(subject, b"", lambda _: checker.on_confirmed(seq, epoch))
    elif roll < 0.7:
        client.publish(subject, b"-NAK")
    elif roll < 0.8:
        client.publish(subject, b'-NAK {"delay": %d}' % rng.randrange(3 * SECOND_NS))
    elif roll < 0.9:
        _terminate(simulation, client, seq, count, subject)
    elif roll < 0.95:
        worker.received.append(message)
        client.publish(subject, b"+WPI")
    # else: it is forgotten


def _terminate(simulation: KeyedSimulation, client: SimClient, seq: int, count: int, subject: str) -> None:
    """Terminate a message; once that is confirmed, it must be a dead letter, if it was pending until then."""
    checker = simulation.checker
    checker.on_ack(seq, count)
    is_wanted = "term" in simulation.config.get("dead_letter", {}).get("on", ())
    if not is_wanted:
        simulation.dead_letters.acked.add(seq)
    epoch, is_open = checker.epoch, seq in simulation.consumer.ack_state.pending and seq in checker.done

    def on_confirmed(_: object) -> None:
        checker.on_confirmed(seq, epoch)
        may_be_gone = simulation.options.has_limits or seq in checker.removable
        if epoch == checker.epoch and is_open and is_wanted and not may_be_gone:
            simulation.dead_letters.needed.add(seq)

    client.request(subject, b"+TERM done", on_confirmed)


def crash_worker(simulation: KeyedSimulation) -> None:
    """Break a worker's connection; it comes back without its messages."""
    worker = pick_worker(simulation)
    if worker is not None:
        worker.client.disconnect()
        simulation.workers[simulation.workers.index(worker)] = simulation.connect()


def stall(simulation: KeyedSimulation) -> None:
    """Let time pass, so that messages are redelivered to others."""
    simulation.servers.advance(int(simulation.rng.random() * 3 * SECOND_NS))


def wait(simulation: KeyedSimulation) -> None:
    simulation.servers.pass_time(int(simulation.rng.random() * SECOND_NS // 4))


def reset(simulation: KeyedSimulation) -> None:
    """Reset to the ack floor, or to a sequence."""
    rng, config = simulation.rng, simulation.config
    simulation.run_until_idle()
    body: dict[str, Any] = {}
    if config.get("deliver_policy", "all") == "all" and rng.random() < 0.5:
        body = {"seq": rng.randrange(1, simulation.stream.log.last_seq + 3)}
    response = simulation.call(f"CONSUMER.RESET.{STREAM}.{CONSUMER}", **body)
    simulation.trace.append(f"reset to {response['reset_seq']}")
    simulation.note_stored()
    checker = simulation.checker
    skipped = set(checker.skipped)
    checker.on_reset(response["reset_seq"])
    simulation.dead_letters.on_reset(response["reset_seq"])
    if config.get("deliver_policy") == "last_per_subject":
        # Of the last messages per subject it delivers only those that were not acknowledged or given up.
        ack_state = simulation.consumer.ack_state
        left = set(ack_state.last_per_subject_queue.tolist())
        checker.skipped |= skipped
        checker.done |= {seq for seq in checker.live if seq <= ack_state.resume_seq and seq not in left}
    for worker in simulation.workers:
        worker.received.clear()


def purge(simulation: KeyedSimulation) -> None:
    """Purge everything, a subject, or all but the last messages."""
    rng = simulation.rng
    body: dict[str, Any] = rng.choice(
        ({}, {"filter": rng.choice(simulation.options.subjects)}, {"keep": rng.randrange(1, 5)})
    )
    _remove(simulation, f"STREAM.PURGE.{STREAM}", body)


def delete_message(simulation: KeyedSimulation) -> None:
    live = sorted(simulation.checker.live)
    if live:
        _remove(simulation, f"STREAM.MSG.DELETE.{STREAM}", {"seq": simulation.rng.choice(live)})


def _remove(simulation: KeyedSimulation, endpoint: str, body: dict[str, Any]) -> None:
    simulation.run_until_idle()
    simulation.note_stored()
    before = set(simulation.checker.live)
    simulation.broker.call(endpoint, **body)
    simulation.servers.run_until_idle()
    simulation.note_stored()
    simulation.checker.removable |= before - simulation.checker.live


def update_limit(simulation: KeyedSimulation) -> None:
    """Change how many messages of a key may be pending."""
    simulation.run_until_idle()
    simulation.config["max_ack_pending_per_subject"] = limit = simulation.rng.choice((1, 2, 3))
    simulation.create_consumer()
    # More may be pending than a lower limit allows, until they are acknowledged.
    simulation.checker.limit = max(limit, simulation.checker.limit)


def update_filter(simulation: KeyedSimulation) -> None:
    """Change the filter; the position stays."""
    simulation.run_until_idle()
    simulation.note_stored()
    checker, config = simulation.checker, simulation.config
    next_seq = simulation.consumer.ack_state.next_seq
    before = {seq for seq, subject in checker.subjects.items() if checker.get_key(subject) is None}
    pattern = simulation.rng.choice(("", "k.>", "k.a.>", "x.>"))
    if config.get("deliver_policy") == "last_per_subject":
        return
    if pattern:
        config["filter_subject"] = pattern
    else:
        config.pop("filter_subject", None)
    simulation.create_consumer()
    after = {seq for seq, subject in checker.subjects.items() if checker.get_key(subject) is None}
    checker.skipped |= {seq for seq in before | after if seq < next_seq}
    checker.removable |= after


def info(simulation: KeyedSimulation) -> None:
    """Ask for the state."""
    state = simulation.call(f"CONSUMER.INFO.{STREAM}.{CONSUMER}")
    assert state["num_blocked_subjects"] >= 0


def pause(simulation: KeyedSimulation) -> None:
    """Pause for a moment."""
    until = simulation.broker.clock.now_ns() // SECOND_NS + 2
    simulation.call(f"CONSUMER.PAUSE.{STREAM}.{CONSUMER}", pause_until=f"{_format(until)}")


def _format(seconds: int) -> str:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def redrive(simulation: KeyedSimulation) -> None:
    """Redrive a dead letter, perhaps with a crash: it is in one of the two streams, and not in both."""
    simulation.run_until_idle()
    simulation.note_stored()
    letters = simulation.read(DEAD_LETTERS)
    if not letters:
        return
    at = simulation.rng.choice(sorted(letters))
    payload = letters[at][3]
    before = simulation.count_payload(payload)
    simulation.broker.call_nowait(f"STREAM.MSG.REDRIVE.{DEAD_LETTERS}", seq=at)
    for _ in range(simulation.rng.randrange(6)):
        simulation.servers.step()
    if simulation.rng.random() < 0.3 and simulation.options.stream.get("storage") != "memory":
        simulation.crash()
    simulation.servers.run_until_idle()
    is_left = at in simulation.read(DEAD_LETTERS)
    # Limits may remove other copies of it.
    if not simulation.options.has_limits and simulation.count_payload(payload) != before + (not is_left):
        raise Violation(f"dead letter {at} was redriven, and is not in exactly one stream")


def delete_dead_letters(simulation: KeyedSimulation) -> None:
    """Delete the stream of dead letters for a while, or make room in it."""
    simulation.run_until_idle()
    simulation.note_stored()
    if simulation.rng.random() < 0.5:
        simulation.call(f"STREAM.PURGE.{DEAD_LETTERS}")
        return
    simulation.call(f"STREAM.DELETE.{DEAD_LETTERS}")
    simulation.servers.advance(simulation.rng.randrange(4) * SECOND_NS)
    simulation.run_until_idle()
    first_seq = max(simulation.dead_letters.seen, default=0) + 1
    simulation.call(f"STREAM.CREATE.{DEAD_LETTERS}", **simulation.options.dead_letters, first_seq=first_seq)


def work_as_other(simulation: KeyedSimulation) -> None:
    """Let the other consumer acknowledge something."""
    worker = pick_worker(simulation)
    if worker is None or not simulation.options.has_other_consumer:
        return
    client = worker.client
    inbox = client.subscribe(lambda msg: client.publish(msg.reply.decode()) if msg.reply else None)
    body = json.dumps({"batch": 5, "no_wait": True}).encode()
    client.publish(f"$JS.API.CONSUMER.MSG.NEXT.{STREAM}.{OTHER}", body, reply=inbox)


ACTIONS: dict[str, Callable[[KeyedSimulation], None]] = {
    "publish": publish,
    "pull": pull_some,
    "settle": settle,
    "crash worker": crash_worker,
    "stall": stall,
    "wait": wait,
    "reset": reset,
    "purge": purge,
    "delete message": delete_message,
    "update limit": update_limit,
    "update filter": update_filter,
    "info": info,
    "pause": pause,
    "other consumer": work_as_other,
    "redrive": redrive,
    "delete dead letters": delete_dead_letters,
}
