"""Crafts store files with changed content and valid checksums, as an attacker could, but bit rot could not.

Owns how to change each kind of file: all checksums are computed again, so that readers process the changed content.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from typing import Any

import msgspec

from headrace.storage import format as fmt
from headrace.storage.checkpoint_schema import CheckpointRoot
from headrace.storage.segments import column_file

from .input_generator import Maker

Change = Callable[[bytes], bytes]

#: Numbers that break sums, sizes and addresses.
NUMBERS = (
    0, 1, 2, 31, 32, 33, 63, 64, 511, 512, 543, 544, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFDE, 0xFFFFFFE0,
    0xFFFFFFFF, 1 << 32, (1 << 32) + 1, (1 << 62), (1 << 63) - 1, 1 << 63, (1 << 64) - 2, (1 << 64) - 1,
)  # fmt: skip
_SEGMENT = re.compile(r"streams/([0-9a-f]{8})/([0-9a-f]{8})\.seg")


def change_numbers(maker: Maker, data: bytes) -> bytes:
    """Change a few numbers, bytes or pieces; the length stays the same."""
    changed = bytearray(data)
    for _ in range(1 + maker.below(4)):
        if not changed:
            break
        width = maker.pick((1, 2, 4, 4, 4, 8, 8))
        at = maker.below(len(changed)) // maker.pick((1, 2, 4, 8)) * maker.pick((1, 1, 2, 4))
        at = min(at, max(len(changed) - width, 0))
        if maker.chance(0.7):
            value = maker.pick(NUMBERS) & ((1 << 8 * width) - 1)
            piece = value.to_bytes(width, "little")
        else:
            start = maker.below(len(changed))
            piece = bytes(changed[start : start + width])
        changed[at : at + len(piece)] = piece
    return bytes(changed[: len(data)])


def craft(maker: Maker, files: dict[str, bytes], path: str) -> bytes | None:
    """Return the file with changed content; None if the kind of file is not supported."""
    content = files[path]
    if path.endswith(".jnl"):
        return _journal(maker, content)
    if path.endswith(".seg"):
        return _segment(maker, path, content, _store_of(files))
    if path.endswith(".col"):
        return _columns(maker, content)
    if "/subjects." in path:
        return _subjects(maker, content)
    if path.startswith("checkpoints/"):
        return _checkpoint(maker, content)
    return None


def _store_of(files: dict[str, bytes]) -> int:
    for path, content in files.items():
        if path.startswith("checkpoints/"):
            return int.from_bytes(content[-fmt.TRAILER_BYTES + 8 :][:8], "little")
    return 0


def _journal(maker: Maker, content: bytes) -> bytes | None:
    """Change the bodies of a few frames, and compute the chain of checksums again."""
    view, made = memoryview(content), bytearray(content)
    places = [at for at in range(0, len(content), fmt.ALIGN) if fmt.parse_frame(view, at) is not None]
    if not places:
        return None
    wanted = {maker.pick(places) for _ in range(1 + maker.below(2))}
    crcs: dict[int, int] = {}  # frame number -> its new checksum
    for at in places:
        frame = fmt.parse_frame(view, at)
        assert frame is not None
        body = content[at + fmt.FRAME_HEADER_BYTES : at + fmt.FRAME_HEADER_BYTES + frame.length]
        if at in wanted:
            body = change_numbers(maker, body) if maker.chance(0.8) else body[: maker.below(len(body) + 1)]
        prev = crcs.get(frame.number - 1, frame.prev_crc)
        head, crcs[frame.number] = fmt.encode_frame_header(
            frame.kind, frame.store_id, frame.file_number, frame.number, [body], prev
        )
        made[at : at + len(head) + len(body)] = head + body
    return bytes(made)


def _segment(maker: Maker, path: str, content: bytes, store: int) -> bytes | None:
    match = _SEGMENT.fullmatch(path)
    assert match is not None
    seed = fmt.compute_segment_seed(store, int(match[1], 16), int(match[2], 16))
    places = [
        at
        for at in range(fmt.SEGMENT_HEADER_BYTES, len(content), fmt.ALIGN)
        if fmt.parse_block(content, at, seed, at) is not None
    ]
    if not places:
        return None
    at = maker.pick(places)
    block = fmt.parse_block(content, at, seed, at)
    assert block is not None
    start = at + fmt.BLOCK_HEADER_BYTES
    data = change_numbers(maker, content[start : start + block.length])
    first, records = block.first_seq, block.records
    if maker.chance(0.2):
        first, records = maker.pick(NUMBERS), maker.pick(NUMBERS) & 0xFFFFFFFF
    head = fmt.encode_block_header(seed, at, first, records, data)
    return content[:at] + head + data + content[start + block.length :]


def seal_columns(header: list[Any], body: bytes) -> bytes:
    """Return a column file with these header fields, and its checksums."""
    fields = [*header[:-2], fmt.crc32(body), 0]
    head = column_file._HEADER.pack(*fields)[:-4]
    return (head + struct.pack("<I", fmt.crc32(head))).ljust(column_file.HEADER_BYTES, b"\0") + body


def _columns(maker: Maker, content: bytes) -> bytes:
    header = list(column_file._HEADER.unpack_from(content))
    body = content[column_file.HEADER_BYTES :]
    if maker.chance(0.3):
        at = 4 + maker.below(7)
        header[at] = maker.pick(NUMBERS) & (0xFFFFFFFF if at > 5 else (1 << 64) - 1)
    return seal_columns(header, change_numbers(maker, body) if maker.chance(0.9) else body)


def _subjects(maker: Maker, content: bytes) -> bytes:
    made, at = b"", 0
    while at + column_file._CHUNK.size <= len(content):
        magic, first, count, length, _ = column_file._CHUNK.unpack_from(content, at)
        at += column_file._CHUNK.size
        body = content[at : at + length]
        at += length
        if maker.chance(0.5):
            body = change_numbers(maker, body)
        if maker.chance(0.2):
            count = maker.pick(NUMBERS) & 0xFFFFFFFF
        head = struct.pack("<IIII", magic, first, count, len(body))
        made += head + struct.pack("<I", fmt.crc32(body, fmt.crc32(head))) + body
    return made


def _checkpoint(maker: Maker, content: bytes) -> bytes | None:
    """Change values in the root or in a section of it; update references and trailer."""
    trailer = fmt.parse_trailer(content[-fmt.TRAILER_BYTES :])
    if trailer is None:
        return None
    store, number, offset, length, _ = trailer
    root = msgspec.msgpack.decode(content[offset : offset + length])
    sections = content[:offset]
    if maker.chance(0.8) and (own := _own_refs(root, number)):
        ref = maker.pick(own)
        fresh = _other_leaf(maker, sections[ref[1] : ref[1] + ref[2]])
        sections = sections.ljust(-(-len(sections) // 8) * 8, b"\0")
        ref[1:] = [len(sections), len(fresh), fmt.compute_section_crc(store, fresh)]
        sections += fresh
    raw = msgspec.msgpack.encode(root)
    if maker.chance(0.25):
        raw = _other_leaf(maker, raw)
    return sections + raw + fmt.encode_trailer(store, number, len(sections), raw)


def _own_refs(root: list[Any], number: int) -> list[list[Any]]:
    fields = CheckpointRoot.__struct_fields__
    entries = root[fields.index("streams")] + root[fields.index("shards")]
    return [entry[-1] for entry in entries if entry[-1][0] == number]


def _other_leaf(maker: Maker, packed: bytes) -> bytes:
    """Return a packed structure with one value changed."""
    whole = [msgspec.msgpack.decode(packed)]
    holder: list[Any] = whole
    at = 0
    while isinstance(holder[at], list) and holder[at] and maker.chance(0.95):
        holder = holder[at]
        at = maker.below(len(holder))
    value = holder[at]
    if isinstance(value, bytes) and value and maker.chance(0.8):
        holder[at] = change_numbers(maker, value) if maker.chance(0.7) else value[: maker.below(len(value))]
    elif isinstance(value, int) and maker.chance(0.9):
        holder[at] = maker.pick((*NUMBERS, value + 1, value - 1 if value else 0, value * 2 % (1 << 64)))
    else:
        holder[at] = maker.pick((0, b"", "", [], None, -1, [value], b"\xff" * 9))
    return msgspec.msgpack.encode(whole[0])
