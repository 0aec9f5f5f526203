"""Bugs planted in the broker, one by one; simulations must catch each: `python -m tests.sim.mutants [name ...]`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

from headrace.broker.commit.group_commit import GroupCommit
from headrace.broker.consumers import (
    ack_handling,
    ack_state,
    consumer,
    consumer_set,
    interest_sweep,
    pull_queue,
    reset,
)
from headrace.broker.consumers.retention_interest import still_needed_mask
from headrace.broker.leafnodes import leafnode_permissions
from headrace.broker.routing import permissions
from headrace.broker.sourcing import (
    copy_writer,
    handover,
    source_writer,
    upstream_consumer,
    upstream_receiver,
)
from headrace.broker.streams import (
    atomic_batch,
    atomic_commit_checks,
    counters,
    fast_ingest,
    purge,
    retention,
    schedules,
    ttl,
)
from headrace.broker.streams.dedup import StreamDedupWindow
from headrace.protocol import subjects
from support.mutation import Mutant, Patch, main, trial_of
from unit.broker.routing.test_permission_model import (
    test_publish_permissions_match_the_model,
    test_subscribing_with_one_rule_each,
)

from .run_simulations import make_simulation, run
from .test_consumer_reset import test_a_last_per_subject_consumer_never_gets_other_messages
from .test_forged_acks import test_an_ack_of_all_reaches_no_further_than_deliveries
from .test_leafnode_permissions import test_a_leafnode_sends_no_request_as_the_reply_of_its_message
from .test_marker_expectations import test_a_batch_sees_the_marker_of_its_own_commit
from .test_server_shutdown import test_waiting_pulls_end_with_what_they_wait_for
from .test_sourcing_ttl import TestFullStreams, TestSwitchedOnLater
from .test_sourcing_two_servers import Copying, crash_in_mid_write

SEEDS = 200


def run_simulations(*, pair: bool | None = None, need: str = "") -> Callable[[], Iterator[int]]:
    """Run seeds in order; optionally only those with two servers, or with a kind of event."""

    def trial() -> Iterator[int]:
        for seed in range(SEEDS):
            options = make_simulation(seed).options
            if (pair is None or options.two_servers == pair) and need in ("", *options.actions):
                run(seed)
                yield 1

    return trial


def copies(way: str, retention: str) -> Callable[[], Iterator[int]]:
    """Run two servers; the one with the copy loses power while it writes."""

    def trial() -> Iterator[int]:
        for seed in range(SEEDS):
            copying = Copying(f"planted/{seed}", way=way, retention=retention, mirror=False, upward=True)
            crash_in_mid_write(copying)
            copying.check()
            yield 1

    return trial


def told_before_it_is_durable(patch: Patch) -> None:
    """Send replies when the frame is sealed, not when it is durable."""

    def tick(old: Any) -> Any:
        def early(self: GroupCommit) -> None:
            self._publisher.publish_many(self.pending_replies.messages)
            self.pending_replies.messages.clear()
            old(self)

        return early

    patch(GroupCommit, "commit", tick)


def ids_forgotten_at_a_restart(patch: Patch) -> None:
    patch(
        StreamDedupWindow,
        "__init__",
        lambda old: lambda self, metadata, *others: old(self, None, *others),
    )


def a_batch_lacks_a_member(patch: Patch) -> None:
    patch(
        atomic_batch.AtomicBatches,
        "_store_plain",
        lambda old: lambda self, members: old(self, members[:2] + members[3:]),
    )


def a_batch_over_two_frames(patch: Patch) -> None:
    """Store the second half in the next frame."""

    def halves(old: Any) -> Any:
        def keep(self: Any, members: list[Any]) -> int:
            if len(members) > 1:
                self._stream.jetstream.call_soon(lambda: old(self, members[1:]))
            return int(old(self, members[:1])) + len(members) - 1

        return keep

    patch(atomic_batch.AtomicBatches, "_store_plain", halves)


def lifetimes_forgotten_at_a_restart(patch: Patch) -> None:
    def start(old: Any) -> Any:
        def forget(self: Any, log: Any) -> None:
            old(self, log)
            self._runs = {}

        return forget

    patch(ttl.TtlIndex, "__init__", start)


def a_second_too_early(patch: Patch) -> None:
    patch(
        ttl.TtlIndex,
        "pop_due",
        lambda old: lambda self, now_ns, most: old(self, now_ns + 1_000_000_000, most),
    )


def confirmed_before_it_is_durable(patch: Patch) -> None:
    def confirm(old: Any) -> Any:
        return lambda self, reply: self.router.publish(reply, b"", b"", b"")

    patch(consumer.Consumer, "reply_when_durable", confirm)


def acknowledgements_not_written_down(patch: Patch) -> None:
    def delta(old: Any) -> Any:
        def forgetful(self: Any, *arguments: Any) -> bytes:
            self._unsaved_acks = []
            return bytes(old(self, *arguments))

        return forgetful

    patch(ack_state.AckState, "encode_delta", delta)


def about_to_be_delivered_again_forgotten(patch: Patch) -> None:
    patch(ack_state.AckState, "find_without_deadline", lambda old: lambda self: [])


def one_passed_over_after_a_restart(patch: Patch) -> None:
    def apply(old: Any) -> Any:
        def skip(self: Any, data: bytes) -> None:
            old(self, data)
            self.next_seq += 1

        return skip

    patch(ack_state.AckState, "apply_delta", apply)


def done_but_still_in_the_queue(patch: Patch) -> None:
    patch(
        consumer_set.ConsumerSet,
        "mark_acked",
        lambda old: lambda self, seqs, **more: old(self, seqs[1:], **more),
    )


def one_too_many_dropped(patch: Patch) -> None:
    patch(retention.Retention, "_remove_oldest", lambda old: lambda self, count: old(self, count + 1))


def purge_ignores_its_filter(patch: Patch) -> None:
    patch(purge, "iter_slices", lambda old: lambda stream, pattern, seq, keep: old(stream, b"", seq, keep))


def two_kept_of_a_subject(patch: Patch) -> None:
    patch(
        retention.Retention,
        "_trim_to_newest",
        lambda old: lambda self, subject, most: old(self, subject, most + 1),
    )


def origin_told_before_the_copy_is_durable(patch: Patch) -> None:
    def hasty(self: Any, reply: bytes) -> None:
        block = b"NATS/1.0\r\nNats-Last-Consumer: %d\r\nNats-Last-Stream: %d\r\n\r\n"
        self._group_commit._publisher.publish(reply, b"", block % self._stored_position, b"")

    patch(upstream_receiver.UpstreamReceiver, "_on_flow_request", lambda old: hasty)


def a_denial_lost_for_queue_groups(patch: Patch) -> None:
    patch(
        permissions.Permissions,
        "may_subscribe",
        lambda old: lambda self, pattern, queue: queue is not None or old(self, pattern, queue),
    )


def a_narrower_denial_not_withheld(patch: Patch) -> None:
    patch(permissions.Permissions, "denies_delivery", lambda old: lambda self, subject, queue=None: False)


def allowed_before_it_is_denied(patch: Patch) -> None:
    """Let an allow list that names a subject override a denial."""

    def decide(old: Any) -> Any:
        def wrong(self: Any, subject: bytes) -> bool:
            allowed = self.publish_allow
            named = allowed is not None and any(subjects.matches(entry, subject) for entry in allowed)
            return named or bool(old(self, subject))

        return wrong

    patch(permissions.Permissions, "_is_publish_allowed", decide)


def a_queue_looked_through_at_a_restart(patch: Patch) -> None:
    """Treat everything before the consumer's position as done after a restart."""

    def reconcile(old: Any) -> Any:
        def look(self: Any) -> None:
            old(self)
            log = self.stream.log
            behind = log.find_seqs(self.filter, log.first_seq, self.ack_state.next_seq - 1)
            if self.stream.config.retention == "workqueue":
                self.stream.consumer_set.mark_acked(
                    behind[~still_needed_mask(self, behind)].tolist() if len(behind) else []
                )

        return look

    patch(consumer.Consumer, "recover", reconcile)


def one_reader_done_is_enough(patch: Patch) -> None:
    patch(interest_sweep.InterestSweep, "_find_unneeded", lambda old: lambda self, seqs, recheck: seqs)


def a_schedule_ends_in_a_later_frame(patch: Patch) -> None:
    def stored(old: Any) -> Any:
        def late(self: Any, subject: bytes, header: bytes, seq: int, time_ns: int) -> None:
            found = self.update_from_message(subject, header, seq, time_ns)
            if b"Nats-Scheduler" in found:
                purge = self._stream.retention.purge
                self._stream.jetstream.timers.after(1, lambda: purge(found[b"Nats-Scheduler"], 0, 0))

        return late

    patch(schedules.MessageSchedules, "on_stored", stored)


def schedules_forgotten_at_a_restart(patch: Patch) -> None:
    patch(
        schedules.MessageSchedules,
        "__init__",
        lambda old: lambda self, stream, facts, key: old(self, stream, None, key),
    )


def a_sum_that_begins_anew(patch: Patch) -> None:
    def look_up(old: Any) -> Any:
        def stale(self: Any, subject: bytes) -> Any:
            log = self._stream.log
            return old(self, subject) if log.get_subject_count(subject) < 9 else (Decimal(0), {})

        return stale

    patch(counters.CounterTotals, "_get_total", look_up)


def a_fast_batch_told_before_it_is_durable(patch: Patch) -> None:
    def answer(old: Any) -> Any:
        return lambda self, reply, text: self._stream.jetstream.router.publish(reply, b"", b"", text)

    patch(fast_ingest.FastIngestBatches, "_reply_after_commit", answer)


def a_batch_overlooks_the_marker_of_its_commit(patch: Patch) -> None:
    """The last sequence is read before expired messages are replaced by markers."""

    def init(old: Any) -> Any:
        def early(self: Any, stream: Any, members: Any) -> None:
            last_seq = stream.log.last_seq
            old(self, stream, members)
            self._last_seq = last_seq

        return early

    patch(atomic_commit_checks.CommitCheck, "__init__", init)


def handovers_forgotten_at_a_restart(patch: Patch) -> None:
    patch(
        handover.Handovers,
        "__init__",
        lambda old: lambda self, metadata, *arguments: old(self, None, *arguments),
    )


def consumer_limits_are_never_kept(patch: Patch) -> None:
    patch(upstream_consumer, "_LIMIT_ERRORS", lambda old: ())


def copied_again_through_a_consumer_with_a_filter(patch: Patch) -> None:
    patch(source_writer.SourceWriter, "_is_copied", lambda old: lambda self, seq, subject: False)


def never_forgotten_while_ttls_are_off(patch: Patch) -> None:
    def parse(old: Any) -> Any:
        def forget(self: Any, header_map: Any) -> int:
            found = int(old(self, header_map))
            return found if self._stream.config.allow_msg_ttl or found != ttl.TTL_EXEMPT else 0

        return forget

    patch(copy_writer.BaseCopyWriter, "_parse_ttl", parse)


def a_sourced_batch_fills_a_stream_in_parts(patch: Patch) -> None:
    patch(source_writer.SourceWriter, "_check_batch_capacity", lambda old: lambda self, messages: None)


def a_reset_delivers_what_was_never_last(patch: Patch) -> None:
    def find(old: Any) -> Any:
        return lambda consumer, target: consumer.log.find_seqs(None, target, consumer.ack_state.resume_seq)

    patch(reset, "_find_remaining", find)


def an_ack_beyond_deliveries_counts(patch: Patch) -> None:
    def ack(old: Any) -> Any:
        def trusting(self: Any, seq: int, count: int, consumer_seq: int, reply: bytes) -> None:
            self._apply_ack(seq, consumer_seq)

        return trusting

    patch(ack_handling.AckHandler, "ack", ack)


def a_leafnode_may_name_any_reply(patch: Patch) -> None:
    patch(leafnode_permissions.LeafnodePermissions, "allows_reply", lambda old: lambda self, reply: True)


def waiting_pulls_are_forgotten_at_the_end(patch: Patch) -> None:
    patch(pull_queue.PullQueue, "on_shutdown", lambda old: lambda self: None)


def batches_and_markers() -> Iterator[int]:
    for config in ({}, {"discard": "new", "max_msgs": 100}):
        test_a_batch_sees_the_marker_of_its_own_commit(config)
        yield 1


def ttls_switched_on() -> Iterator[int]:
    for way in ("source", "mirror"):
        TestSwitchedOnLater().test_never(way, False)
        yield 1


def batches_into_full_streams() -> Iterator[int]:
    for restarted in (False, True):
        TestFullStreams().test_it_waits_for_space({"max_msgs": 5}, restarted, True)
        yield 1


def permission_rules() -> Iterator[int]:
    """Compare every small set of rules with the simple model."""
    for judge in (
        test_publish_permissions_match_the_model,
        lambda: test_subscribing_with_one_rule_each(True),
    ):
        judge()
        yield 1


MUTANTS: dict[str, Mutant] = {
    mutant.plant.__name__.replace("_", " "): mutant
    for mutant in (
        Mutant(told_before_it_is_durable, (run_simulations(),), True),
        Mutant(ids_forgotten_at_a_restart, (run_simulations(need="id"),)),
        Mutant(a_batch_lacks_a_member, (run_simulations(need="batch"),), True),
        Mutant(a_batch_over_two_frames, (run_simulations(need="batch"),)),
        Mutant(lifetimes_forgotten_at_a_restart, (run_simulations(need="ttl"),)),
        Mutant(a_second_too_early, (run_simulations(need="ttl"),)),
        Mutant(confirmed_before_it_is_durable, (run_simulations(),), True),
        Mutant(acknowledgements_not_written_down, (run_simulations(),)),
        Mutant(about_to_be_delivered_again_forgotten, (run_simulations(need="kill"),)),
        Mutant(one_passed_over_after_a_restart, (run_simulations(),), True),
        Mutant(done_but_still_in_the_queue, (run_simulations(),)),
        Mutant(one_too_many_dropped, (run_simulations(),), True),
        Mutant(purge_ignores_its_filter, (run_simulations(need="purge"),)),
        Mutant(two_kept_of_a_subject, (run_simulations(),), True),
        Mutant(origin_told_before_the_copy_is_durable, (copies("user-managed", "workqueue"),)),
        Mutant(a_queue_looked_through_at_a_restart, (run_simulations(need="rearrange"),)),
        Mutant(one_reader_done_is_enough, (run_simulations(need="heed"),), True),
        Mutant(a_schedule_ends_in_a_later_frame, (run_simulations(need="plan"),)),
        Mutant(schedules_forgotten_at_a_restart, (run_simulations(need="plan"),), True),
        Mutant(a_sum_that_begins_anew, (run_simulations(need="count"),), True),
        Mutant(a_fast_batch_told_before_it_is_durable, (run_simulations(need="stream"),)),
        Mutant(a_batch_overlooks_the_marker_of_its_commit, (batches_and_markers,), True),
        Mutant(handovers_forgotten_at_a_restart, (run_simulations(need="migrate"),), True),
        Mutant(consumer_limits_are_never_kept, (run_simulations(need="migrate"),), True),
        Mutant(copied_again_through_a_consumer_with_a_filter, (run_simulations(need="migrate"),), True),
        Mutant(never_forgotten_while_ttls_are_off, (ttls_switched_on,), True),
        Mutant(a_sourced_batch_fills_a_stream_in_parts, (batches_into_full_streams,), True),
        Mutant(
            a_reset_delivers_what_was_never_last,
            (trial_of(test_a_last_per_subject_consumer_never_gets_other_messages),),
            True,
        ),
        Mutant(
            an_ack_beyond_deliveries_counts,
            (trial_of(test_an_ack_of_all_reaches_no_further_than_deliveries),),
            True,
        ),
        Mutant(
            a_leafnode_may_name_any_reply,
            (trial_of(test_a_leafnode_sends_no_request_as_the_reply_of_its_message),),
            True,
        ),
        Mutant(
            waiting_pulls_are_forgotten_at_the_end,
            (trial_of(test_waiting_pulls_end_with_what_they_wait_for),),
            True,
        ),
        Mutant(a_denial_lost_for_queue_groups, (permission_rules,), True),
        Mutant(a_narrower_denial_not_withheld, (permission_rules,), True),
        Mutant(allowed_before_it_is_denied, (permission_rules,), True),
    )
}

if __name__ == "__main__":
    sys.exit(main(MUTANTS, sys.argv[1:]))
