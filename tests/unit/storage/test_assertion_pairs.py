"""Every structure on disk is checked twice: asserted before it is written, and checked after it is read.

A reader either raises or, if a crash may have truncated the bytes, rejects them with None: its caller then
distinguishes a torn write from damage.
"""

import ast
from pathlib import Path

import pytest

STORAGE = Path(__file__).parents[3] / "src" / "headrace" / "storage"

#: What is written -> (writer, reader).
PAIRS = {
    "frame": ("journal/journal_writer.py:Journal.make_frame_ops", "format.py:parse_frame"),
    "sync marker": ("journal/sync_marker.py:write_op", "journal/sync_marker.py:_parse_slot"),
    "block, by scan": ("maintenance/flush.py:encode_block", "format.py:parse_block"),
    "block, by read": ("maintenance/flush.py:encode_block", "segments/segment.py:FileSegment._read_verified"),
    "compressed block": ("compressed_block.py:compress_block", "compressed_block.py:expand_block"),
    "segment header": ("format.py:encode_segment_header", "recovery/load_stream.py:_check_file"),
    "column file": ("segments/column_file.py:encode_columns", "segments/column_file.py:decode_columns"),
    "subjects": ("segments/column_file.py:encode_subjects", "segments/column_file.py:decode_subjects"),
    "checkpoint": (
        "checkpoint/checkpoint_writer.py:Checkpointer._make_write_ops",
        "checkpoint/load.py:_read_root",
    ),
    "checkpoint section": (
        "checkpoint/running_checkpoint.py:RunningCheckpoint.add_section",
        "checkpoint/load.py:_read_part",
    ),
    "stream in a checkpoint": ("log/file_log.py:FileLog.encode_state", "recovery/load_stream.py:_check"),
    "manifest of a pin": ("snapshot/manifest.py:Manifest.encode", "snapshot/manifest.py:decode"),
}
ERRORS = {"CorruptData", "ValueError"}


def find_function(place: str) -> ast.FunctionDef:
    file, _, name = place.partition(":")
    node: ast.AST = ast.parse((STORAGE / file).read_text())
    for part in name.split("."):
        found = (each for each in ast.iter_child_nodes(node) if getattr(each, "name", "") == part)
        node = next(found)
    assert isinstance(node, ast.FunctionDef)
    return node


def has_assert(function: ast.FunctionDef) -> bool:
    return any(isinstance(node, ast.Assert) for node in ast.walk(function))


def raises_error(function: ast.FunctionDef) -> bool:
    calls = (node.exc for node in ast.walk(function) if isinstance(node, ast.Raise))
    return any(isinstance(call, ast.Call) and ast.unparse(call.func) in ERRORS for call in calls)


def is_rejection(node: ast.AST) -> bool:
    """Return whether this is `return None` or `return x if ... else None`; for a segment header, the error text."""
    if not isinstance(node, ast.Return) or node.value is None:
        return False
    value = node.value.orelse if isinstance(node.value, ast.IfExp) else node.value
    return isinstance(value, ast.Constant) and (value.value is None or "damaged" in str(value.value))


@pytest.mark.parametrize("what", PAIRS)
def test_what_is_written_is_asserted(what: str) -> None:
    assert has_assert(find_function(PAIRS[what][0]))


@pytest.mark.parametrize("what", PAIRS)
def test_what_is_read_is_checked(what: str) -> None:
    reader = find_function(PAIRS[what][1])
    assert has_assert(reader) or raises_error(reader) or any(map(is_rejection, ast.walk(reader)))
