"""Exports the record types of the native module, compiled or pure, under one name for the rest of the store."""

from typing import TYPE_CHECKING

from headrace._native import load_native
from headrace._native.record_header import RECORD_HEADER_BYTES

if TYPE_CHECKING:
    from headrace._native.records_pure import (
        BLOCK_HEADER_BYTES,
        BOUND_ONLY_BIT,
        HAS_HEADER,
        Array,
        BlockBuilder,
        LogWriter,
        OpenFrame,
        RecordBlock,
        SegmentIndex,
        SubjectIndex,
        build_frame_body,
        decode_record,
        map_file,
        mark_committed,
    )
else:
    from headrace._native.records_pure import Array

    _records = load_native("records")
    BLOCK_HEADER_BYTES = _records.BLOCK_HEADER_BYTES
    HAS_HEADER = _records.HAS_HEADER
    BOUND_ONLY_BIT = _records.BOUND_ONLY_BIT
    LogWriter = _records.LogWriter
    RecordBlock = _records.RecordBlock
    SegmentIndex = _records.SegmentIndex
    OpenFrame = _records.OpenFrame
    BlockBuilder = _records.BlockBuilder
    SubjectIndex = _records.SubjectIndex
    build_frame_body = _records.build_frame_body
    map_file = _records.map_file
    mark_committed = _records.mark_committed
    decode_record = _records.decode_record

__all__ = [
    "BLOCK_HEADER_BYTES",
    "BOUND_ONLY_BIT",
    "HAS_HEADER",
    "RECORD_HEADER_BYTES",
    "Array",
    "BlockBuilder",
    "LogWriter",
    "OpenFrame",
    "RecordBlock",
    "SegmentIndex",
    "SubjectIndex",
    "build_frame_body",
    "decode_record",
    "map_file",
    "mark_committed",
]
