"""Bugs planted in order per key and dead letters, one by one; simulations must catch each:
`python -m tests.sim.keyed_mutants [name ...]`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

from headrace.broker.consumers import ack_handling, ack_state, dead_letters, key_order, key_search
from headrace.broker.handlers import dead_letter_handlers
from headrace.protocol import dead_letter_headers
from support.mutation import Mutant, Patch, main, trial_of

from .run_keyed_simulation import run_keyed
from .test_keyed_consumers import test_a_crash_leaves_a_dead_letter_and_its_ack

SEEDS = 600


def run_seeds() -> Iterator[int]:
    for seed in range(SEEDS):
        run_keyed(seed)
        yield 1


def passed_over_forgotten_at_a_restart(patch: Patch) -> None:
    patch(
        key_order.KeyOrder,
        "restore",
        lambda old: lambda self, pending, firsts, *others: old(self, pending, {}, *others),
    )


def passed_over_not_written_down(patch: Patch) -> None:
    def take(old: Any) -> Any:
        def forget(self: Any) -> list[Any]:
            old(self)
            return []

        return forget

    patch(key_order.KeyOrder, "take_changes", take)


def an_outdated_ack_counts(patch: Patch) -> None:
    patch(ack_handling, "_is_outdated", lambda old: lambda state, seq, count: False)


def a_nak_frees_its_key(patch: Patch) -> None:
    def nak(old: Any) -> Any:
        def free(self: Any, seq: int, *others: Any) -> None:
            old(self, seq, *others)
            order = self._consumer.ack_state.key_order
            if order is not None:
                order.release(seq)

        return free

    patch(ack_handling.AckHandler, "_nak", nak)


def passed_over_counts_as_acknowledged(patch: Patch) -> None:
    patch(key_order.KeyOrder, "find_passed", lambda old: lambda self, seqs: np.zeros(len(seqs), bool))


def ready_keys_are_not_served(patch: Patch) -> None:
    patch(key_order.KeyOrder, "has_ready", lambda old: lambda self: False)


def the_second_one_is_delivered_first(patch: Patch) -> None:
    def find(old: Any) -> Any:
        def skip(self: Any) -> int:
            seq = old(self)
            following = self._search.find_next(self.table.next_ready(), seq + 1)[0] if seq else 0
            return int(following or seq)

        return skip

    patch(key_order.KeyOrder, "find_ready", find)


def a_key_stays_blocked_after_max_deliver(patch: Patch) -> None:
    def stop(old: Any) -> Any:
        def keep(self: Any, seq: int, deliveries: int) -> None:
            order, self.key_order = self.key_order, None
            old(self, seq, deliveries)
            self.key_order = order

        return keep

    patch(ack_state.AckState, "stop_redelivery", stop)


def the_ack_floor_ignores_what_was_passed_over(patch: Patch) -> None:
    patch(key_order.KeyOrder, "find_lowest", lambda old: lambda self, pending: min(pending) if pending else 0)


def a_reset_keeps_the_keys(patch: Patch) -> None:
    patch(key_order.KeyOrder, "clear", lambda old: lambda self: None)


def new_ids_of_subjects_are_ignored(patch: Patch) -> None:
    patch(key_order.KeyOrder, "on_subjects_remapped", lambda old: lambda self, new_ids, kept: None)


def removals_are_not_counted(patch: Patch) -> None:
    patch(key_order.KeyOrder, "before_removal", lambda old: lambda self, seqs: None)


def a_full_purge_is_not_counted(patch: Patch) -> None:
    patch(key_order.KeyOrder, "before_trim", lambda old: lambda self, seq: None)


def a_search_forgets_a_key(patch: Patch) -> None:
    patch(
        key_search.KeySearch,
        "add",
        lambda old: lambda self, keys, bounds: self._table.start_search(keys),
    )


def a_search_finds_the_second_one(patch: Patch) -> None:
    def find(old: Any) -> Any:
        def skip(self: Any, wanted: Any, bounds: Any) -> Any:
            return old(self, wanted, bounds + np.uint64(1))

        return skip

    patch(key_search.KeySearch, "_find", find)


def one_more_than_allowed(patch: Patch) -> None:
    patch(
        key_order.KeyOrder,
        "__init__",
        lambda old: lambda self, log, position, limit, *others: old(self, log, position, limit + 1, *others),
    )


def a_dead_letter_in_a_frame_of_its_own(patch: Patch) -> None:
    """The ack follows within 100 ms, as acks do that nobody waits for."""

    def publish(old: Any) -> Any:
        def split(self: Any, *arguments: Any) -> bool:
            done = bool(old(self, *arguments))
            self._consumer.consumer_set._dirty.pop(self._consumer, None)
            self._consumer.persist_soon()
            return done

        return split

    patch(dead_letters.DeadLetterPublisher, "publish", publish)


def a_dead_letter_keeps_its_message_id(patch: Patch) -> None:
    patch(dead_letter_headers, "_CONTROL", lambda old: (b"Nats-TTL",))


def a_failed_dead_letter_is_acknowledged(patch: Patch) -> None:
    def fail(old: Any) -> Any:
        def acknowledge(self: Any, seq: int, *others: Any) -> None:
            self._consumer.ack_state.ack(seq)
            self._consumer.on_acked([seq], True)

        return acknowledge

    patch(dead_letters.DeadLetterPublisher, "_on_failed", fail)


def a_redriven_dead_letter_stays(patch: Patch) -> None:
    def redrive(old: Any) -> Any:
        def keep(jetstream: Any, request: Any) -> bytes:
            stream = jetstream.registry.get_stream(request.names[0])
            kind = type(stream.retention)
            remove, kind.delete_message = kind.delete_message, lambda self, seq: None
            try:
                return bytes(old(jetstream, request))
            finally:
                kind.delete_message = remove

        return keep

    endpoint = dead_letter_handlers.ENDPOINTS["STREAM", "MSG", "REDRIVE"]
    object.__setattr__(endpoint, "handler", redrive(endpoint.handler))


#: Trials before the seeds, for bugs that few seeds notice.
CASES = {a_dead_letter_in_a_frame_of_its_own: (trial_of(test_a_crash_leaves_a_dead_letter_and_its_ack),)}

MUTANTS: dict[str, Mutant] = {
    plant.__name__.replace("_", " "): Mutant(plant, (*CASES.get(plant, ()), run_seeds), quick=True)
    for plant in (
        passed_over_forgotten_at_a_restart,
        passed_over_not_written_down,
        an_outdated_ack_counts,
        a_nak_frees_its_key,
        passed_over_counts_as_acknowledged,
        ready_keys_are_not_served,
        the_second_one_is_delivered_first,
        a_key_stays_blocked_after_max_deliver,
        the_ack_floor_ignores_what_was_passed_over,
        a_reset_keeps_the_keys,
        new_ids_of_subjects_are_ignored,
        removals_are_not_counted,
        a_full_purge_is_not_counted,
        a_search_forgets_a_key,
        a_search_finds_the_second_one,
        one_more_than_allowed,
        a_dead_letter_in_a_frame_of_its_own,
        a_dead_letter_keeps_its_message_id,
        a_failed_dead_letter_is_acknowledged,
        a_redriven_dead_letter_stays,
    )
}

if __name__ == "__main__":
    sys.exit(main(MUTANTS, sys.argv[1:]))
