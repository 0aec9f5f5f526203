"""Stores with correct checksums and numbers that no store writes are refused before a file is removed."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.crash import bit_rot
from tests.crash.store_sizes import TINY

from headrace.errors import CorruptData
from headrace.sim import SimClock, SimDisk
from headrace.storage import format as fmt
from headrace.storage import open_store
from headrace.storage.checkpoint_schema import CheckpointRoot, StreamCheckpoint, StreamEntry

ROOT, SECTION, ENTRY = (
    kind.__struct_fields__.index for kind in (CheckpointRoot, StreamCheckpoint, StreamEntry)
)


def refuse(kind: str, crafted: dict[str, bytes]) -> None:
    rotten = bit_rot.build(kind)
    disk = SimDisk(snapshot=rotten.snapshot)
    for path, content in crafted.items():
        disk.corrupt(path, content)
    with pytest.raises(CorruptData):
        open_store(disk, SimClock(), TINY)
    bit_rot.check_untouched(disk, {**rotten.files, **crafted})


def craft_checkpoint(
    *, root_number: int = 0, entry: tuple[str, Any] | None = None, section: tuple[str, Any] | None = None
) -> None:
    """Change the root's number, a field of the first stream's entry or of its section, in both copies."""
    files = bit_rot.build("closed").files
    newest = max(path for path in files if path.startswith("checkpoints/"))
    trailer = fmt.parse_trailer(files[newest][-fmt.TRAILER_BYTES :])
    assert trailer is not None
    store, number, offset, length, _ = trailer
    root = msgspec.msgpack.decode(files[newest][offset : offset + length])
    sections = files[newest][:offset]
    root[ROOT("number")] = root_number or number
    stream = root[ROOT("streams")][0]
    if entry is not None:
        stream[ENTRY(entry[0])] = entry[1]
    if section is not None:
        ref = stream[ENTRY("ref")]
        state = msgspec.msgpack.decode(sections[ref[1] : ref[1] + ref[2]])
        state[SECTION(section[0])] = section[1]
        fresh = msgspec.msgpack.encode(state)
        ref[1:] = [len(sections), len(fresh), fmt.compute_section_crc(store, fresh)]
        sections += fresh
    raw = msgspec.msgpack.encode(root)
    content = sections + raw + fmt.encode_trailer(store, number, len(sections), raw)
    refuse("closed", {newest[:-1] + copy: content for copy in "ab"})


@pytest.mark.parametrize(
    ("field", "value"),
    [("generation", 1 << 63), ("generation", (1 << 32) - 1), ("next_segment", (1 << 32) - 1)],
)
def test_a_section_leaves_no_room_for_the_next_number(field: str, value: int) -> None:
    craft_checkpoint(section=(field, value))


@pytest.mark.parametrize(("field", "value"), [("ident", 4294967264), ("ident", 2), ("name", "other")])
def test_the_root_names_another_stream_than_the_section(field: str, value: Any) -> None:
    craft_checkpoint(entry=(field, value))


def test_the_root_has_another_number_than_its_file() -> None:
    craft_checkpoint(root_number=544)


def craft_frame(data: bytes) -> None:
    """Replace the last frame with one of a single entry."""
    rotten = bit_rot.build("killed")
    path, at = max(
        (path, at)
        for path, content in rotten.files.items()
        if path.endswith(".jnl")
        for at in range(0, len(content), fmt.ALIGN)
        if fmt.parse_frame(memoryview(content), at) is not None
    )
    content = rotten.files[path]
    frame = fmt.parse_frame(memoryview(content), at)
    assert frame is not None
    head, _ = fmt.encode_frame_header(
        frame.kind, frame.store_id, frame.file_number, frame.number, [data], frame.prev_crc
    )
    refuse("killed", {path: content[:at] + head + data + content[at + len(head) + len(data) :]})


def test_a_frame_creates_a_stream_without_an_ident() -> None:
    craft_frame(fmt.encode_entry(fmt.CREATE_STREAM, 0, fmt.encode_u64(1) + b"C"))


def test_a_frame_leaves_no_room_for_the_next_segment() -> None:
    craft_frame(fmt.encode_large_entry(1, (1 << 32) - 1, 512, 100, 999))


def test_nothing_is_removed_if_the_root_lacks_a_stream_that_frames_change() -> None:
    rotten = bit_rot.build("killed")
    newest = max(path for path in rotten.files if path.startswith("checkpoints/"))
    content = rotten.files[newest]
    trailer = fmt.parse_trailer(content[-fmt.TRAILER_BYTES :])
    assert trailer is not None
    store, number, offset, length, _ = trailer
    root = msgspec.msgpack.decode(content[offset : offset + length])
    root[ROOT("streams")] = []
    raw = msgspec.msgpack.encode(root)
    crafted = content[:offset] + raw + fmt.encode_trailer(store, number, offset, raw)
    files = {newest[:-1] + copy: crafted for copy in "ab"}
    disk = SimDisk(snapshot=rotten.snapshot)
    for path, data in files.items():
        disk.corrupt(path, data)
    report = open_store(disk, SimClock(), TINY).report()
    assert not report.healthy
    bit_rot.check_untouched(disk, {**rotten.files, **files}, report)
