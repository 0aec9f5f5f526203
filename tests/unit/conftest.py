"""Pins built by hand as in docs/explanation/storage-format.md, so that the reader is tested without the writer."""

import struct
from zlib import crc32

import numpy as np
import pytest

from headrace.storage import format as fmt
from headrace.storage.checkpoint_schema import SegmentState
from headrace.storage.io.readonly_disk import ReadonlyDisk
from headrace.storage.snapshot.manifest import Manifest, TailRecords
from headrace.storage.snapshot.reader import StreamSnapshot

STORE, IDENT, T0 = 0xFEED, 7, 1_700_000_000_000_000_000


def record(seq, subject, payload, header, ttl_s):
    size = 32 + len(subject) + len(header) + len(payload)
    head = struct.pack("<IHHIIQQ", size, len(subject), 0, len(header), ttl_s, seq, T0 + seq)
    return head + subject + header + payload


def rows(first, count, subjects=(b"a.x", b"a.y", b"b"), ttl_s=0):
    return [
        (seq, subjects[seq % len(subjects)], b"%d" % seq * (seq % 5), b"", ttl_s)
        for seq in range(first, first + count)
    ]


class PinBuilder:
    """Builds segments with three records per block, a shared subject table, and a tail."""

    def __init__(self, root):
        self.root = root
        self.folder = root / "pins" / "p1"
        self.folder.mkdir(parents=True)
        self.subjects, self.segments, self.columns = [], [], []
        self.loose, self.last, self.lost = [], 0, []

    def segment(self, rows, live=None, columns=True):
        number = len(self.segments) + 1
        data, offsets, blocks = bytearray(fmt.encode_segment_header(STORE, IDENT, number)), [], []
        seed = fmt.compute_segment_seed(STORE, IDENT, number)
        for at in range(0, len(rows), 3):
            body = bytearray()
            for seq, subject, payload, header, ttl_s in rows[at : at + 3]:
                offsets.append(len(data) + 32 + len(body))
                body += record(seq, subject, payload, header, ttl_s)
            blocks.append(len(data))
            data += fmt.encode_block_header(seed, len(data), rows[at][0], len(rows[at : at + 3]), body) + body
            end = len(data)
            data += b"\0" * (fmt.align_up(end) - end)
        bits = b"" if live is None else np.packbits([row[0] in live for row in rows]).tobytes()
        state = SegmentState(number, rows[0][0], rows[-1][0], len(rows), len(data), bits)
        (self.folder / f"{number:08x}.seg").write_bytes(bytes(data) + b"written after the pin")
        if columns:
            self.columns.append(number)
            (self.folder / f"{number:08x}.col").write_bytes(self._columns(state, rows, offsets, blocks))
        self.segments.append(state)
        self.last = rows[-1][0]

    def _columns(self, state, rows, offsets, blocks):
        seqs = [row[0] for row in rows]
        for row in rows:
            if row[1] not in self.subjects:
                self.subjects.append(row[1])
        sparse = seqs != list(range(seqs[0], seqs[0] + len(rows)))
        arrays = [
            np.array([T0 + seq for seq in seqs], "<u8"),
            np.array(offsets, "<u4"),
            np.array([len(record(*row)) for row in rows], "<u4"),
            np.array([self.subjects.index(row[1]) for row in rows], "<u4"),
            np.array([row[4] for row in rows], "<u4"),
            np.array([seq - seqs[0] for seq in seqs] if sparse else [], "<u4"),
            np.array(blocks, "<u4"),
            np.zeros(len(rows), "<u2"),
        ]
        body = b"".join(array.tobytes() for array in arrays)
        counts = (len(rows), len(blocks), 1, len(self.subjects), sparse, crc32(body))
        head = struct.pack(
            "<8sQIIQQIIIIII", b"HRcol001", STORE, IDENT, state.number, seqs[0], state.end, *counts
        )
        return (head + struct.pack("<I", crc32(head))).ljust(96, b"\0") + body

    def add_loose(self, rows, live=None):
        records = b"".join(record(*row) for row in rows)
        bits = b"" if live is None else np.packbits([row[0] in live for row in rows]).tobytes()
        self.loose.append(TailRecords(rows[0][0], rows[-1][0], records, bits))
        self.last = rows[-1][0]

    def manifest(self, as_of_ns=T0):
        body = b"".join(struct.pack("<H", len(s)) + s for s in self.subjects)
        head = struct.pack("<4sIII", b"HRsb", 0, len(self.subjects), len(body))
        chunk = head + struct.pack("<I", crc32(body, crc32(head))) + body
        (self.folder / "subjects.1").write_bytes(chunk)
        return Manifest(
            pin="p1",
            store=STORE,
            stream="S",
            ident=IDENT,
            committed_seq=self.last,
            messages=0,
            as_of_ns=as_of_ns,
            expires_ns=2 * T0,
            segments=self.segments,
            columns=self.columns,
            generation=1,
            loose=self.loose,
            lost=self.lost,
        )

    def snapshot(self, as_of_ns=T0):
        return StreamSnapshot(ReadonlyDisk(self.root, exclusive=False), self.manifest(as_of_ns))


@pytest.fixture
def pin(tmp_path):
    return PinBuilder(tmp_path)


@pytest.fixture
def make_rows():
    return rows
