"""Encodes a consumer's ack state: sets of sequences as runs, bitmaps or gaps, whichever is smallest.

An `AckStateDelta` is what changed since the previous one; a snapshot is a delta on an empty state. Knows no consumers
and no store. See ADR 20.
"""

from __future__ import annotations

import struct
import zlib
from typing import NamedTuple

import msgspec
import numpy as np

from headrace.storage.sequence_arrays import NO_SEQS, Seqs

#: How MessagePack begins an array, and an array without elements, which is the last field of a delta.
_ARRAY_HEAD = struct.Struct(">BI")
_NO_PASSED_KEYS = b"\x90"
_RUNS, _BITS, _GAPS = b"r", b"b", b"g"


class AckStateDelta(msgspec.Struct, array_like=True):
    """The consumer's position, and what was added to and removed from its pending messages since the previous delta.

    `added_offset` is consumer minus stream sequence if it is the same for all additions, else `added_consumer` has the
    consumer sequences. `delivery_counts` has the number of deliveries (0: remove), `deadline_runs` the deadlines of
    whole runs (deadline, first, last), `individual_deadlines` those of single messages. `is_snapshot`: discard all
    previous state.
    """

    consumer_seq: int
    stream_seq: int
    next_seq: int
    floor_consumer: int
    floor_stream: int
    removed: bytes = b""
    added: bytes = b""
    added_offset: int = 0
    added_consumer: bytes = b""
    delivery_counts: list[tuple[int, int]] = []
    deadline_runs: list[tuple[int, int, int]] = []
    individual_deadlines: list[tuple[int, int]] = []
    last_per_subject_queue: bytes = b""  # what is left of the last messages per subject
    resume_seq: int = 0  # the last sequence when they were collected; delivery resumes after it
    is_snapshot: bool = False
    skipped_seq: int = -1  # see `AckState`; -1 in deltas of earlier versions and restored ones: not known
    passed_keys: list[
        tuple[bytes, int]
    ] = []  # blocked keys, each with its first passed-over sequence (0: remove)


def pack_set(seqs: Seqs) -> bytes:
    """Pack sequences, usually ascending, in the smallest form that keeps their order; b"" for none."""
    if not len(seqs):
        return b""
    breaks = np.flatnonzero(np.diff(seqs) != 1)
    runs, gaps = 16 * (len(breaks) + 1), 2 * len(seqs) + 16
    ascending = bool((seqs[1:] > seqs[:-1]).all())
    span = int(seqs[-1]) - int(seqs[0]) + 1
    bits_size = span // 8 + 8 if ascending else gaps + 1  # a bitmap cannot keep any other order
    if runs <= min(bits_size, gaps):
        firsts = np.concatenate((seqs[:1], seqs[breaks + 1]))
        lasts = np.concatenate((seqs[breaks], seqs[-1:]))
        return _RUNS + np.stack((firsts, lasts), axis=1).tobytes()
    if bits_size <= gaps:
        bits = np.zeros(span, dtype=np.uint8)
        bits[(seqs - seqs[0]).astype(np.int64)] = 1
        return _BITS + seqs[:1].tobytes() + np.packbits(bits).tobytes()
    return _GAPS + seqs[:1].tobytes() + zlib.compress(np.diff(seqs).tobytes(), 1)


def unpack_set(data: bytes) -> Seqs:
    """Unpack the result of `pack_set`."""
    if not data:
        return NO_SEQS
    kind, body = data[:1], data[1:]
    if kind == _RUNS:
        pairs = np.frombuffer(body, dtype=np.uint64).reshape(-1, 2)
        return np.concatenate([np.arange(first, last + 1, dtype=np.uint64) for first, last in pairs])
    first = np.frombuffer(body[:8], dtype=np.uint64)
    if kind == _BITS:
        bits = np.unpackbits(np.frombuffer(body[8:], dtype=np.uint8))
        return np.asarray(np.flatnonzero(bits).astype(np.uint64) + first[0])
    gaps = np.frombuffer(zlib.decompress(body[8:]), dtype=np.uint64)
    return np.cumsum(np.concatenate((first, gaps)), dtype=np.uint64)


def pack_pairs(stream: Seqs, consumer: Seqs) -> tuple[bytes, int, bytes]:
    """Pack stream and consumer sequences.

    Return the stream sequences, the common offset, and the consumer sequences if there is no common offset.
    """
    if not len(stream):
        return b"", 0, b""
    offsets = consumer.astype(np.int64) - stream.astype(np.int64)
    if (offsets == offsets[0]).all():
        return pack_set(stream), int(offsets[0]), b""
    return pack_set(stream), 0, pack_set(consumer)


def unpack_pairs(added: bytes, offset: int, consumer: bytes) -> list[tuple[int, int]]:
    """Unpack the result of `pack_pairs`."""
    stream = unpack_set(added).tolist()
    if consumer:
        return list(zip(stream, unpack_set(consumer).tolist(), strict=True))
    return [(seq, seq + offset) for seq in stream]


class PackedSet(NamedTuple):
    """Sequences that were packed off the event loop, because there are many."""

    seqs: Seqs
    packed: bytes

    def pack(self, seqs: Seqs) -> bytes:
        """Pack sequences; it costs nothing as long as they are the same array."""
        return self.packed if seqs is self.seqs else pack_set(seqs)


_decoder = msgspec.msgpack.Decoder(AckStateDelta)
_encoder = msgspec.msgpack.Encoder()


def encode_delta(delta: AckStateDelta) -> bytes:
    return _encoder.encode(delta)


def append_passed_keys(encoded: bytes, count: int, pairs: list[bytes]) -> bytes:
    """Return an encoded delta, which has no passed keys, with `count` of them, which are encoded as pairs."""
    if not encoded.endswith(_NO_PASSED_KEYS):
        raise ValueError("the delta has passed keys")
    return b"".join([encoded.removesuffix(_NO_PASSED_KEYS), _ARRAY_HEAD.pack(0xDD, count), *pairs])


def decode_delta(data: bytes) -> AckStateDelta:
    return _decoder.decode(data)
