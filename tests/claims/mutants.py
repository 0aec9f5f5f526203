"""Bugs planted in the claims, one by one; their own tests must catch each: `python -m tests.claims.mutants [name ...]`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.claims import consumer, sweeper, verdicts
from support.planting import Mutant, Patch, main

FOLDER = Path(__file__).parent
#: Real object stores need more memory than a planted bug may have.
_PLAIN = "not azure and not s3 and not gcs"


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
    )
}

if __name__ == "__main__":
    sys.exit(main(MUTANTS, sys.argv[1:]))
