"""Flipped bits and truncated, swapped, zeroed or outdated files are detected; damage is confined, nothing is deleted."""

from collections.abc import Callable
from random import Random

import pytest

from headrace.sim import SimClock, SimDisk
from headrace.sim.checkers.store_invariants import Violation
from headrace.storage import open_store
from headrace.storage.damage_report import RecoveryReport

from .bit_rot import Rotten, build, examine, flipped
from .store_sizes import TINY

pytestmark = pytest.mark.timeout(600)

PARTS = 8
STRIDE = 17


def places(kind: str = "closed") -> list[tuple[str, int]]:
    return [(path, offset) for path, content in build(kind).files.items() for offset in range(len(content))]


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_one_flipped_bit(part: int, record_property: Callable[[str, object], None]) -> None:
    chosen = places()[part * STRIDE :: PARTS * STRIDE]
    record_property("count: flipped bits", len(chosen))
    for path, offset in chosen:
        bit = Random(f"{path} {offset}").randrange(8)
        try:
            examine(build(), {path: flipped(build().files[path], offset, bit)})
        except Violation as error:
            raise Violation(f"{path}, byte {offset}, bit {bit}: {error}") from error


@pytest.mark.parametrize("part", range(4))
def test_one_flipped_bit_in_compressed_segments(part: int) -> None:
    rotten = build("compressed")
    segments = [path for path in rotten.files if path.endswith(".seg")]
    assert sum(rotten.files[path].count(b"HRs2") for path in segments) >= 8
    chosen = [place for place in places("compressed") if place[0] in segments][part * 11 :: 4 * 11]
    unreadable = 0
    for path, offset in chosen:
        bit = Random(f"{path} {offset}").randrange(8)
        try:
            unreadable += examine(rotten, {path: flipped(rotten.files[path], offset, bit)}).unreadable
        except Violation as error:
            raise Violation(f"{path}, byte {offset}, bit {bit}: {error}") from error
    assert unreadable


def test_a_rotten_last_frame_is_reported_rather_than_cut() -> None:
    rotten = build("idle")
    path, offset = last_tick(rotten.files)
    for place in range(offset, offset + 200, 7):
        verdict = examine(rotten, {path: flipped(rotten.files[path], place, place % 8)})
        assert verdict.reported, f"byte {place} of the last frame is damaged and not reported"
        assert verdict.unreadable


def test_after_a_kill_no_frame_that_was_synced_passes_for_a_tear() -> None:
    rotten = build("killed")
    path, offset = last_tick(rotten.files)
    for place in range(offset, offset + 200, 7):
        verdict = examine(rotten, {path: flipped(rotten.files[path], place, place % 8)})
        assert verdict.reported, f"byte {place} of the last frame is damaged and not reported"
        assert verdict.unreadable


@pytest.mark.parametrize("kind", ["idle", "killed"])
def test_the_end_of_the_journal_is_missed_wherever_it_is_cut_off(kind: str) -> None:
    rotten = build(kind)
    path, offset = last_tick(rotten.files)
    content = rotten.files[path]
    for start in range(0, offset + 512, 512):
        cut = content[:start] + bytes(len(content) - start)
        assert examine(rotten, {path: cut}, confined=False).reported, f"cut at {start}"


def test_without_the_witness_a_later_head_proves_what_lies_before_it() -> None:
    rotten = build("killed")
    path, offset = last_tick(rotten.files)
    content, old = rotten.files[path], {"journal/synced": b""}  # after a power loss it may be old
    last = flipped(content, offset + 100, 1)
    assert reported(rotten, {path: last, **old}).healthy  # this cannot be distinguished from a torn tail
    before = offset - 512
    while content[before : before + 4] != b"HRfr":
        before -= 512
    assert not reported(rotten, {path: flipped(last, before + 100, 1), **old}).healthy


def reported(rotten: Rotten, damaged: dict[str, bytes]) -> RecoveryReport:
    """Return the report of a store whose last frame is lost, whether that can be detected or not."""
    disk = SimDisk(snapshot=rotten.snapshot)
    for path, content in damaged.items():
        disk.corrupt(path, content)
    return open_store(disk, SimClock(), TINY).report()


def test_after_a_clean_end_no_frame_is_needed() -> None:
    rotten = build("closed")
    path, offset = last_tick(rotten.files)
    for place in range(offset, offset + 200, 7):
        assert not examine(rotten, {path: flipped(rotten.files[path], place, place % 8)}).unreadable


def last_tick(files: dict[str, bytes]) -> tuple[str, int]:
    """Return path and offset of the newest frame with messages."""
    from headrace.storage.format import ALIGN, COMMIT, parse_frame

    found = (0, "", 0)
    for path, content in files.items():
        if path.endswith(".jnl"):
            for offset in range(0, len(content), ALIGN):
                frame = parse_frame(memoryview(content), offset)
                if frame and frame.kind == COMMIT and b"A:" in content[offset : offset + frame.length]:
                    found = max(found, (frame.number, path, offset))
    assert found[0]
    return found[1], found[2]


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_a_file_cut_at_any_length(part: int) -> None:
    for number, (path, content) in enumerate(build().files.items()):
        for length in range((part + number) % 4 * 97, len(content), 4 * 97):
            try:
                examine(build(), {path: content[:length]}, confined=False)
            except Violation as error:
                raise Violation(f"{path} cut to {length}: {error}") from error


@pytest.mark.slow
def test_a_zeroed_range_is_detected_or_harmless() -> None:
    rng = Random(3)
    for path, content in build().files.items():
        for _ in range(12):
            start = rng.randrange(len(content)) // 512 * 512
            end = min(len(content), start + rng.choice((512, 4096)))
            zeroed = content[:start] + bytes(end - start) + content[end:]
            try:
                examine(build(), {path: zeroed}, confined=False)
            except Violation as error:
                raise Violation(f"{path} zeroed from {start} to {end}: {error}") from error


@pytest.mark.slow
def test_two_files_swapped() -> None:
    files = build().files
    for one in files:
        for other in files:
            if one < other and files[one] != files[other]:
                try:
                    examine(build(), {one: files[other], other: files[one]}, confined=False)
                except Violation as error:
                    raise Violation(f"{one} and {other} swapped: {error}") from error
