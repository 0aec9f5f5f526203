"""Bugs planted in the claims, one by one; their own tests or simulated worlds must catch each:
`python -m tests.claims.mutants [name ...]`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headrace.claims import (
    collector,
    consumer,
    floors,
    producer,
    reference,
    registry,
    sweeper,
    transfer,
    verdicts,
)
from headrace.claims.wire import NoAnswer, Wire
from headrace.errors import RequestError
from sim.claimworlds import run, world
from support.planting import Mutant, Patch, main

FOLDER = Path(__file__).parent
#: Real object stores need more memory than a planted bug may have.
_PLAIN = "not azure and not s3 and not gcs"
SEEDS = 200


def tests(expression: str, *files: str) -> Callable[[], Iterator[int]]:
    """Some of the tests of claims, in this process; the first that fails is the catch."""

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


def worlds() -> Iterator[int]:
    """Simulated worlds of claims, seed by seed."""
    for seed in range(SEEDS):
        run(seed)
        yield 1


def worlds_with(part: str) -> Callable[[], Iterator[int]]:
    """Those worlds that have a part."""

    def trial() -> Iterator[int]:
        for seed in range(5 * SEEDS):
            if part in world(seed).options.parts:
                run(seed)
                yield 1

    return trial


def released_without_a_confirmed_ack(patch: Patch) -> None:
    async def ack(self: Any, message: Any, timeout_s: float = 5.0) -> bool:
        found = self.reference(message)
        if found is not None:
            await self._release(found, message)
        await message.ack()
        return True

    patch(consumer.Consumer, "ack", lambda old: ack)


def nobody_else_is_asked(patch: Patch) -> None:
    async def nobody(entry: Any, floors: Any) -> str:
        return ""

    patch(verdicts, "_needing", lambda old: nobody)


def young_orphans_collected(patch: Patch) -> None:
    patch(sweeper, "_is_due", lambda old: lambda info, limit_ns: True)


def checksums_not_compared(patch: Patch) -> None:
    async def unverified(found: Any, stored: Any) -> Any:
        async for piece in stored:
            yield piece

    patch(consumer, "_verified", lambda old: unverified)


def released_before_the_ack(patch: Patch) -> None:
    released_without_a_confirmed_ack(patch)


def a_replaced_object_is_served(patch: Patch) -> None:
    checksums_not_compared(patch)


def the_unread_go_young(patch: Patch) -> None:
    """A message that is gone young takes its claim with it, although a retry may need it."""
    patch(
        sweeper.Sweeper,
        "is_forgotten",
        lambda old: lambda self, entry, now_ns, floors: old(self, entry, now_ns + 10**18, floors),
    )


def no_grace_for_what_is_needed(patch: Patch) -> None:
    def strict(old: Any) -> Any:
        return lambda entry, config, now_ns, floors: old(
            entry, replace(config, clock_skew=0, ttl=replace(config.ttl, grace_period=0)), now_ns, floors
        )

    patch(collector, "judge", strict)
    patch(sweeper, "judge", strict)


def no_retention(patch: Patch) -> None:
    def hasty(old: Any) -> Any:
        return lambda entry, config, now_ns, floors: old(
            entry, replace(config, ttl=replace(config.ttl, retention_after_read=0)), now_ns, floors
        )

    patch(collector, "judge", hasty)
    patch(sweeper, "judge", hasty)


def listed_an_hour_too_early(patch: Patch) -> None:
    """What a listing says is believed: an object is due when its hour begins, and nobody is asked."""
    patch(sweeper, "_is_due", lambda old: lambda info, limit_ns: old(info, limit_ns + 2 * 3600 * 10**9))


def used_again_without_a_word(patch: Patch) -> None:
    """A retry finds the claim of the first attempt, and tells nobody that it is going to refer to it."""

    async def earlier(self: Any, claim_id: str, payload: Any) -> Any:
        found = await self._reusable(claim_id)
        return claim_id, found and producer._Attempt(found, is_new=False)

    patch(producer.Producer, "_earlier", lambda old: earlier)


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
        "key_of",
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
            except NoAnswer as error:
                raise RequestError(503, 0, "nobody answered") from error

        return sure

    patch(Wire, "publish", publish)


def orphans_stay(patch: Patch) -> None:
    async def nothing(self: Any, *_: Any) -> None:
        """Sweep no objects."""

    patch(sweeper.Sweeper, "_sweep_objects", lambda old: nothing)


def leases_are_ignored(patch: Patch) -> None:
    async def none(wire: Any, stream: str, *_: Any) -> list[Any]:
        return []

    patch(floors, "readers", lambda old: none)


def only_a_thousand_leases_are_seen(patch: Patch) -> None:
    def first(old: Any) -> Any:
        async def page(self: Any, stream: str, subject: str) -> Any:
            return (await old(self, stream, subject))[:1000]

        return page

    patch(Wire, "all_of", first)


def a_lease_protects_nothing_unread(patch: Patch) -> None:
    def turned(old: Any) -> Any:
        async def all_read(item: Any, on_rejected: Any) -> Any:
            return replace(await old(item, on_rejected), acked=1 << 40)

        return all_read

    patch(floors, "_leased", turned)


def who_began_later_has_read_it(patch: Patch) -> None:
    patch(
        floors.Floor,
        "has_read",
        lambda old: lambda self, subject, seq, _: self.concerns(subject) and not self.needs(subject, seq),
    )


def a_name_is_one_consumer_in_every_stream(patch: Patch) -> None:
    """Whoever acknowledged is not asked, nor is its namesake in a copy."""

    def needed_by(old: Any) -> Any:
        names: dict[int, str] = {}

        async def asked(self: Any, stream: str, subject: str, seq: int, but: str = "") -> Any:
            names[id(self)] = but or names.get(id(self), "")
            return await old(self, stream, subject, seq, names[id(self)])

        return asked

    patch(floors.Floors, "needed_by", needed_by)


def copies_are_not_asked(patch: Patch) -> None:
    def needing(old: Any) -> Any:
        async def origin(entry: Any, found: Any) -> Any:
            return await old(replace(entry, places=dict(list(entry.places.items())[:1])), found)

        return origin

    patch(verdicts, "_needing", needing)


def copies_are_not_written_down(patch: Patch) -> None:
    def at(old: Any) -> Any:
        return lambda self, stream, seq, subject: self if self.places else old(self, stream, seq, subject)

    patch(registry.Entry, "at", at)


def a_copy_speaks_for_its_origin(patch: Patch) -> None:
    async def always(self: Any, stream: str, subject: str) -> bool:
        return True

    patch(consumer.Consumer, "_takes", lambda old: always)


def floors_never_go_back(patch: Patch) -> None:
    """A consumer that was reset has read what it had read."""
    highest: dict[tuple[str, str], int] = {}

    def floor_of(old: Any) -> Any:
        def remembered(info: dict[str, Any]) -> Any:
            floor, name = old(info), (info["stream_name"], info["name"])
            highest[name] = max(highest.get(name, 0), floor.acked)
            return replace(floor, acked=highest[name])

        return remembered

    patch(floors, "floor_of", floor_of)


def a_piece_is_lost_on_the_way(patch: Patch) -> None:
    def chain(old: Any) -> Any:
        async def shorter(held: list[Any], chunks: Any) -> Any:
            async for piece in old(held[:-1], chunks):
                yield piece

        return shorter

    patch(transfer, "_chain", chain)


def unfinished_uploads_stay(patch: Patch) -> None:
    async def nothing(self: Any, *_: Any) -> None:
        """End no uploads."""

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
        Mutant(released_without_a_confirmed_ack, (tests("b4 or b5", "test_defects.py"),)),
        Mutant(nobody_else_is_asked, (tests("b5 or b6 or S", "test_defects.py", "test_scenarios.py"),)),
        Mutant(
            young_orphans_collected,
            (tests("b8 or orphan or sweep", "test_defects.py", "test_scenarios.py", "test_faults.py"),),
        ),
        Mutant(checksums_not_compared, (tests("alter or checksum", "test_defects.py", "test_faults.py"),)),
        Mutant(released_before_the_ack, (worlds,), True),
        Mutant(a_replaced_object_is_served, (worlds,), True),
        Mutant(the_unread_go_young, (worlds,)),
        Mutant(no_grace_for_what_is_needed, (worlds,), True),
        Mutant(no_retention, (worlds,)),
        Mutant(listed_an_hour_too_early, (worlds,)),
        Mutant(used_again_without_a_word, (worlds,), True),
        Mutant(deleted_although_somebody_changed_it, (worlds,)),
        Mutant(attempts_have_the_same_object, (worlds,)),
        Mutant(the_unknown_is_taken_for_refused, (worlds,)),
        Mutant(orphans_stay, (worlds,), True),
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
