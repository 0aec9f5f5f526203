"""Bugs planted in the broker, one by one; simulated worlds must catch each: `python -m tests.sim.mutants [name ...]`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

from headrace.broker import batches, consumer, expiry, intake, link, positions, progress, readers, retention
from headrace.broker.duplicates import DuplicateWindow
from headrace.broker.ticks import Ticker
from support.planting import Mutant, Patch, main

from .worlds import run, world

SEEDS = 200


def worlds(*, pair: bool | None = None, need: str = "") -> Callable[[], Iterator[int]]:
    """Seeds one after the other; only those with the other server, or with a kind of event, where that is asked for."""

    def trial() -> Iterator[int]:
        for seed in range(SEEDS):
            options = world(seed).options
            if (pair is None or options.pair == pair) and need in ("", *options.actions):
                run(seed)
                yield 1

    return trial


def told_before_it_is_durable(patch: Patch) -> None:
    """Answers leave when the frame is sealed, not when it is written."""

    def tick(old: Any) -> Any:
        def early(self: Ticker) -> None:
            self._hub.publish_many(self.outbox.held)
            self.outbox.held.clear()
            old(self)

        return early

    patch(Ticker, "tick", tick)


def ids_forgotten_at_a_restart(patch: Patch) -> None:
    patch(
        DuplicateWindow,
        "__init__",
        lambda old: lambda self, facts, key, window: old(self, None, key, window),
    )


def a_batch_lacks_a_member(patch: Patch) -> None:
    patch(
        batches.Batches, "_keep_plain", lambda old: lambda self, members: old(self, members[:2] + members[3:])
    )


def a_batch_over_two_frames(patch: Patch) -> None:
    """The second half is stored in the next frame."""

    def halves(old: Any) -> Any:
        def keep(self: Any, members: list[Any]) -> int:
            if len(members) > 1:
                self._stream.jetstream.later(lambda: old(self, members[1:]))
            return int(old(self, members[:1])) + len(members) - 1

        return keep

    patch(batches.Batches, "_keep_plain", halves)


def lifetimes_forgotten_at_a_restart(patch: Patch) -> None:
    def start(old: Any) -> Any:
        def forget(self: Any, log: Any, now_ns: int) -> None:
            old(self, log, now_ns)
            self._runs = {}

        return forget

    patch(expiry.Deadlines, "__init__", start)


def a_second_too_early(patch: Patch) -> None:
    patch(
        expiry.Deadlines,
        "due",
        lambda old: lambda self, now_ns, most: old(self, now_ns + 1_000_000_000, most),
    )


def confirmed_before_it_is_durable(patch: Patch) -> None:
    def confirm(old: Any) -> Any:
        return lambda self, reply: self.hub.publish(reply, b"", b"", b"")

    patch(consumer.Consumer, "confirm", confirm)


def acknowledgements_not_written_down(patch: Patch) -> None:
    def delta(old: Any) -> Any:
        def forgetful(self: Any) -> bytes:
            self._acked = []
            return bytes(old(self))

        return forgetful

    patch(progress.Progress, "delta", delta)


def about_to_be_delivered_again_forgotten(patch: Patch) -> None:
    patch(progress.Progress, "overdue", lambda old: lambda self: [])


def one_passed_over_after_a_restart(patch: Patch) -> None:
    def apply(old: Any) -> Any:
        def skip(self: Any, data: bytes) -> None:
            old(self, data)
            self.next_seq += 1

        return skip

    patch(progress.Progress, "apply", apply)


def done_but_still_in_the_queue(patch: Patch) -> None:
    patch(readers.Readers, "release", lambda old: lambda self, consumer, seqs: old(self, consumer, seqs[1:]))


def one_too_many_dropped(patch: Patch) -> None:
    patch(retention.Retention, "_drop_oldest", lambda old: lambda self, count: old(self, count + 1))


def purge_ignores_its_filter(patch: Patch) -> None:
    patch(
        retention.Retention,
        "_purge",
        lambda old: lambda self, pattern, seq, keep: old(self, b"", seq, keep),
    )


def two_kept_of_a_subject(patch: Patch) -> None:
    patch(
        retention.Retention,
        "_keep_newest",
        lambda old: lambda self, subject, most: old(self, subject, most + 1),
    )


def origin_told_before_the_copy_is_durable(patch: Patch) -> None:
    def answer(old: Any) -> Any:
        def early(self: Any, reply: bytes) -> None:
            block = b"NATS/1.0\r\nNats-Last-Stream: %d\r\n\r\n"
            old_send = self._jetstream.ticker.send_settled
            self._jetstream.ticker.__class__.send_settled = lambda ticker, s, r, h, p: ticker._hub.publish(
                s, r, h, p
            )
            try:
                old(self, reply)
            finally:
                self._jetstream.ticker.__class__.send_settled = old_send.__func__
            assert block

        return early

    patch(link.Link, "_flow_request", answer)


def positions_not_kept_with_the_copy(patch: Patch) -> None:
    patch(positions.Positions, "save", lambda old: lambda self: self._known.update(self._changed))


def a_gap_in_the_delivery_accepted(patch: Patch) -> None:
    """A mirror takes the next message whatever came before."""
    patch(intake.MirrorIntake, "reached", lambda old: lambda self, seq, identity: None)


MUTANTS: dict[str, Mutant] = {
    mutant.plant.__name__.replace("_", " "): mutant
    for mutant in (
        Mutant(told_before_it_is_durable, (worlds(),), True),
        Mutant(ids_forgotten_at_a_restart, (worlds(need="id"),)),
        Mutant(a_batch_lacks_a_member, (worlds(need="batch"),), True),
        Mutant(a_batch_over_two_frames, (worlds(need="batch"),)),
        Mutant(lifetimes_forgotten_at_a_restart, (worlds(need="ttl"),)),
        Mutant(a_second_too_early, (worlds(need="ttl"),)),
        Mutant(confirmed_before_it_is_durable, (worlds(),), True),
        Mutant(acknowledgements_not_written_down, (worlds(),)),
        Mutant(about_to_be_delivered_again_forgotten, (worlds(need="kill"),)),
        Mutant(one_passed_over_after_a_restart, (worlds(),), True),
        Mutant(done_but_still_in_the_queue, (worlds(),)),
        Mutant(one_too_many_dropped, (worlds(),), True),
        Mutant(purge_ignores_its_filter, (worlds(need="purge"),)),
        Mutant(two_kept_of_a_subject, (worlds(),), True),
        Mutant(origin_told_before_the_copy_is_durable, (worlds(pair=True, need="leaf"),)),
        Mutant(positions_not_kept_with_the_copy, (worlds(pair=True, need="leaf"),)),
    )
}

if __name__ == "__main__":
    sys.exit(main(MUTANTS, sys.argv[1:]))
