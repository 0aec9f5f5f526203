"""The kernel's records, compiled or pure, under one name for the rest of the store."""

from typing import TYPE_CHECKING

from headrace.kernel import twin

if TYPE_CHECKING:
    from headrace.kernel.records_pure import (
        BLOCK_BYTES,
        HAS_HEADER,
        HEAD_BYTES,
        STALE,
        Appender,
        Array,
        Block,
        Columns,
        Gate,
        Packer,
        Subjects,
        gather,
        map_file,
        settle,
        unpack,
    )
else:
    from headrace.kernel.records_pure import Array

    _records = twin("records")
    BLOCK_BYTES, HAS_HEADER, HEAD_BYTES = _records.BLOCK_BYTES, _records.HAS_HEADER, _records.HEAD_BYTES
    STALE, Appender, Block, Columns = _records.STALE, _records.Appender, _records.Block, _records.Columns
    Gate, Packer, Subjects = _records.Gate, _records.Packer, _records.Subjects
    gather, settle, unpack = _records.gather, _records.settle, _records.unpack
    map_file = _records.map_file

__all__ = [
    "BLOCK_BYTES",
    "HAS_HEADER",
    "HEAD_BYTES",
    "STALE",
    "Appender",
    "Array",
    "Block",
    "Columns",
    "Gate",
    "Packer",
    "Subjects",
    "gather",
    "map_file",
    "settle",
    "unpack",
]
