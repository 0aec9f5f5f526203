"""Bugs planted in claims, one by one; tests or simulations must catch each.

Run `python -m tests.claims.mutants [name ...]`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headrace.claims import (
    ack_floors,
    claim_release,
    collector,
    consumer,
    earlier_attempts,
    gc_policy,
    payload_fetch,
    reference,
    registry,
    streaming_upload,
    sweeper,
)
from headrace.claims.jetstream_client import JetStreamClient, RequestTimeout
from headrace.claims.reference_publisher import PublishAttempt
from headrace.errors import RequestError
from sim.run_claim_simulations import make_simulation, run
from support.mutation import Mutant, Patch, main

FOLDER = Path(__file__).parent
#: Real object stores need more memory than a mutant may use.
_PLAIN = "not azure and not s3 and not gcs"
SEEDS = 200


def tests(expression: str, *files: str) -> Callable[[], Iterator[int]]:
    """Run some tests of claims in this process; the first failure catches the bug."""

    def trial() -> Iterator[int]:
        chosen = [str(FOLDER / name) for name in files]
        quiet = [
            "-q",
            "-x",
            "-n",
            "0",
            "-W",
            "ignore::pytest.PytestAssertRewriteWarning",
            "-k",
            f"({expression}) and {_PLAIN}",
        ]
        result = pytest.main([*quiet, *chosen])
        if result == pytest.ExitCode.TESTS_FAILED:
            raise AssertionError("a test of claims fails")
        if result != pytest.ExitCode.OK:
            raise NameError(f"no verdict: {result}")
        yield 1

    return trial


def run_simulations() -> Iterator[int]:
    """Run claim simulations, seed by seed."""
    for seed in range(SEEDS):
        run(seed)
        yield 1


def worlds_with(part: str) -> Callable[[], Iterator[int]]:
    """Return the seeds whose simulation has a feature."""

    def trial() -> Iterator[int]:
        for seed in range(5 * SEEDS):
            if part in make_simulation(seed).options.features:
                run(seed)
                yield 1

    return trial


def released_without_a_confirmed_ack(patch: Patch) -> None:
    async def ack(self: Any, message: Any, timeout_s: float = 5.0) -> bool:
        found = self.reference(message)
        if found is not None:
            await self._releaser.release(found, message)
        await message.ack()
        return True

    patch(consumer.ClaimConsumer, "ack", lambda old: ack)


def nobody_else_is_asked(patch: Patch) -> None:
    async def nobody(entry: Any, floors: Any) -> str:
        return ""

    patch(gc_policy, "_find_blocker", lambda old: nobody)


def young_orphans_collected(patch: Patch) -> None:
    patch(sweeper, "_is_due", lambda old: lambda info, limit_ns: True)


def checksums_not_compared(patch: Patch) -> None:
    def accept(reference: Any, size: int, checksum: str) -> None:
        """Accept any payload."""

    patch(payload_fetch, "_check_stored", lambda old: accept)
    patch(payload_fetch, "_check_original", lambda old: accept)


def released_before_the_ack(patch: Patch) -> None:
    released_without_a_confirmed_ack(patch)


def a_replaced_object_is_served(patch: Patch) -> None:
    checksums_not_compared(patch)


def the_unread_go_young(patch: Patch) -> None:
    """Delete the claim of a message that was removed early, although a retry may need it."""
    patch(
        sweeper.Sweeper,
        "needs_release",
        lambda old: lambda self, entry, now_ns, floors: old(self, entry, now_ns + 10**18, floors),
    )


def no_grace_for_what_is_needed(patch: Patch) -> None:
    def strict(old: Any) -> Any:
        return lambda entry, config, now_ns, floors: old(
            entry, replace(config, clock_skew=0, ttl=replace(config.ttl, grace_period=0)), now_ns, floors
        )

    patch(collector, "decide", strict)
    patch(sweeper, "decide", strict)


def no_retention(patch: Patch) -> None:
    def hasty(old: Any) -> Any:
        return lambda entry, config, now_ns, floors: old(
            entry, replace(config, ttl=replace(config.ttl, retention_after_read=0)), now_ns, floors
        )

    patch(collector, "decide", hasty)
    patch(sweeper, "decide", hasty)


def listed_an_hour_too_early(patch: Patch) -> None:
    """Trust a listing: an object is due when its hour begins, without a check of the registry."""
    patch(sweeper, "_is_due", lambda old: lambda info, limit_ns: old(info, limit_ns + 2 * 3600 * 10**9))


def used_again_without_a_word(patch: Patch) -> None:
    """Reuse the claim of an earlier attempt without marking it as shared."""

    async def earlier(self: Any, claim_id: str, payload: Any) -> Any:
        found = await self._find_reusable(claim_id)
        return claim_id, found and PublishAttempt(found, is_new=False)

    patch(earlier_attempts.EarlierAttempts, "share_with_payload", lambda old: earlier)


def deleted_although_somebody_changed_it(patch: Patch) -> None:
    def remove(old: Any) -> Any:
        async def whatever(self: Any, entries: Any) -> Any:
            await old(self, entries)
            return [(entry, 0) for entry in entries]

        return whatever

    patch(registry.Registry, "remove", remove)


def attempts_have_the_same_object(patch: Patch) -> None:
    patch(
        reference,
        "make_key",
        lambda old: (
            lambda namespace, subject, expires_at, claim_id, attempt="": old(
                namespace, subject, expires_at, claim_id
            )
        ),
    )


def the_unknown_is_taken_for_refused(patch: Patch) -> None:
    def publish(old: Any) -> Any:
        async def sure(self: Any, subject: str, *rest: Any) -> Any:
            try:
                return await old(self, subject, *rest)
            except RequestTimeout as error:
                raise RequestError(503, 0, "nobody answered") from error

        return sure

    patch(JetStreamClient, "publish", publish)


def orphans_stay(patch: Patch) -> None:
    async def nothing(self: Any, *_: Any) -> None:
        """Sweep no objects."""

    patch(sweeper.Sweeper, "_sweep_objects", lambda old: nothing)


def leases_are_ignored(patch: Patch) -> None:
    async def none(jetstream: Any, stream: str, *_: Any) -> list[Any]:
        return []

    patch(ack_floors, "list_reader_leases", lambda old: none)


def only_a_thousand_leases_are_seen(patch: Patch) -> None:
    def first(old: Any) -> Any:
        async def page(self: Any, stream: str, subject: str) -> Any:
            return (await old(self, stream, subject))[:1000]

        return page

    patch(JetStreamClient, "get_all", first)


def a_lease_protects_nothing_unread(patch: Patch) -> None:
    def turned(old: Any) -> Any:
        async def all_read(item: Any, on_rejected: Any) -> Any:
            return replace(await old(item, on_rejected), ack_floor=1 << 40)

        return all_read

    patch(ack_floors, "_parse_lease", turned)


def who_began_later_has_read_it(patch: Patch) -> None:
    patch(
        ack_floors.Floor,
        "has_read",
        lambda old: (
            lambda self, subject, seq, _: self.matches_filter(subject) and not self.needs(subject, seq)
        ),
    )


def a_name_is_one_consumer_in_every_stream(patch: Patch) -> None:
    """Treat consumers with the same name in different streams as one."""

    def find_blocking_consumer(old: Any) -> Any:
        names: dict[int, str] = {}

        async def asked(self: Any, stream: str, subject: str, seq: int, excluding: str = "") -> Any:
            names[id(self)] = excluding or names.get(id(self), "")
            return await old(self, stream, subject, seq, names[id(self)])

        return asked

    patch(ack_floors.Floors, "find_blocking_consumer", find_blocking_consumer)


def copies_are_not_asked(patch: Patch) -> None:
    def find_blocker(old: Any) -> Any:
        async def origin(entry: Any, found: Any) -> Any:
            return await old(replace(entry, places=dict(list(entry.places.items())[:1])), found)

        return origin

    patch(gc_policy, "_find_blocker", find_blocker)


def copies_are_not_written_down(patch: Patch) -> None:
    def with_place(old: Any) -> Any:
        return lambda self, stream, seq, subject: self if self.places else old(self, stream, seq, subject)

    patch(registry.ClaimEntry, "with_place", with_place)


def a_copy_speaks_for_its_origin(patch: Patch) -> None:
    async def always(self: Any, stream: str, subject: str) -> bool:
        return True

    patch(claim_release.ClaimReleaser, "_is_primary_stream", lambda old: always)


def floors_never_go_back(patch: Patch) -> None:
    """Assume that ack floors never go back, even after a reset."""
    highest: dict[tuple[str, str], int] = {}

    def parse_floor(old: Any) -> Any:
        def remembered(info: dict[str, Any]) -> Any:
            floor, name = old(info), (info["stream_name"], info["name"])
            highest[name] = max(highest.get(name, 0), floor.ack_floor)
            return replace(floor, ack_floor=highest[name])

        return remembered

    patch(ack_floors, "parse_floor", parse_floor)


def a_piece_is_lost_on_the_way(patch: Patch) -> None:
    def chain(old: Any) -> Any:
        async def shorter(held: list[Any], chunks: Any) -> Any:
            async for piece in old(held[:-1], chunks):
                yield piece

        return shorter

    patch(streaming_upload, "_chain", chain)


def unfinished_uploads_stay(patch: Patch) -> None:
    async def nothing(self: Any, *_: Any) -> None:
        """Abort no uploads."""

    patch(sweeper.Sweeper, "_sweep_uploads", lambda old: nothing)


def uploads_are_ended_young(patch: Patch) -> None:
    patch(
        sweeper.Sweeper,
        "_sweep_uploads",
        lambda old: lambda self, now_ns, *rest: old(self, now_ns + 10**15, *rest),
    )


MUTANTS: dict[str, Mutant] = {
    mutant.plant.__name__.replace("_", " "): mutant
    for mutant in (
        Mutant(
            released_without_a_confirmed_ack,
            (
                tests(
                    "before_the_ack_is_confirmed or releases_nothing or planned_deletion", "test_deletion.py"
                ),
            ),
        ),
        Mutant(
            nobody_else_is_asked,
            (
                tests(
                    "planned_deletion or starts_beyond or work_queue or S",
                    "test_deletion.py",
                    "test_ack_floors.py",
                    "test_scenarios.py",
                ),
            ),
        ),
        Mutant(
            young_orphans_collected,
            (
                tests(
                    "nothing_young or orphan or sweep",
                    "test_collector.py",
                    "test_scenarios.py",
                    "test_faults.py",
                ),
            ),
        ),
        Mutant(checksums_not_compared, (tests("alter or checksum", "test_faults.py"),)),
        Mutant(released_before_the_ack, (run_simulations,), True),
        Mutant(a_replaced_object_is_served, (run_simulations,), True),
        Mutant(the_unread_go_young, (run_simulations,)),
        Mutant(no_grace_for_what_is_needed, (run_simulations,), True),
        Mutant(no_retention, (run_simulations,)),
        Mutant(listed_an_hour_too_early, (run_simulations,)),
        Mutant(used_again_without_a_word, (run_simulations,), True),
        Mutant(deleted_although_somebody_changed_it, (run_simulations,)),
        Mutant(attempts_have_the_same_object, (run_simulations,)),
        Mutant(the_unknown_is_taken_for_refused, (run_simulations,)),
        Mutant(orphans_stay, (run_simulations,), True),
        Mutant(leases_are_ignored, (worlds_with("lease"),), True),
        Mutant(only_a_thousand_leases_are_seen, (worlds_with("lease"),)),
        Mutant(a_lease_protects_nothing_unread, (worlds_with("lease"),)),
        Mutant(who_began_later_has_read_it, (worlds_with("lease"),)),
        Mutant(a_name_is_one_consumer_in_every_stream, (worlds_with("copy"),)),
        Mutant(copies_are_not_asked, (worlds_with("copy"),), True),
        Mutant(copies_are_not_written_down, (worlds_with("copy"),)),
        Mutant(a_copy_speaks_for_its_origin, (worlds_with("copy"),)),
        Mutant(floors_never_go_back, (worlds_with("reset"),), True),
        Mutant(a_piece_is_lost_on_the_way, (worlds_with("large"),)),
        Mutant(unfinished_uploads_stay, (worlds_with("large"),), True),
        Mutant(uploads_are_ended_young, (worlds_with("large"),)),
    )
}

if __name__ == "__main__":
    sys.exit(main(MUTANTS, sys.argv[1:]))
