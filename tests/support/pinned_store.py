"""A real store on real files, small enough that every file turns over within a few messages."""

import time
from random import Random

from headrace.storage import FileDisk, StoreOptions, open_store

KIB = 1 << 10
TINY = StoreOptions(
    journal_bytes=64 * KIB,
    block_bytes=2 * KIB,
    segment_bytes=12 * KIB,
    segment_rows=64,
    large_bytes=4 * KIB,
    checkpoint_bytes=48 * KIB,
    headroom_bytes=64 * KIB,
    cache_bytes=16 * KIB,
    flush_bytes=8 * KIB,
)
NOW = 1_700_000_000_000_000_000


class WallClock:
    def now_ns(self):
        return time.time_ns()


class Opened:
    """A store with one stream S, and the messages that must be in it."""

    def __init__(self, root, seed=1):
        self.root = root
        self.rng = Random(seed)
        self.disk = FileDisk(root)
        self.store = open_store(self.disk, WallClock(), TINY)
        self.log = self.store.logs.get("S") or self.store.create("S")
        self.model = {}

    def append(self, count, size=120, ttl_s=0, header=b""):
        for _ in range(count):
            seq = self.log.last_seq + 1
            subject = b"s.%d" % self.rng.randrange(7)
            payload = self.rng.randbytes(self.rng.randrange(size))
            assert self.log.append(subject, header, payload, NOW + seq, ttl_s) == seq
            self.model[seq] = (subject.decode(), payload)

    def remove(self, count):
        for seq in self.rng.sample(sorted(self.model), min(count, len(self.model))):
            assert self.log.remove(seq)
            del self.model[seq]

    def trim(self, seq):
        self.log.remove_below(seq)
        self.model = {each: value for each, value in self.model.items() if each >= seq}

    def commit(self):
        while self.store.dirty or self.store.in_flight:
            if self.store.poisoned:
                raise self.store.poisoned
            if not self.store.in_flight:
                self.store.commit()
            self.disk.drain()

    def checkpoint(self):
        self.commit()
        self.store.checkpoint()
        self.commit()
        self.disk.drain()

    def rows(self):
        return [(seq, *self.model[seq]) for seq in sorted(self.model)]

    def close(self):
        self.store.close()
        self.disk.close()

    def crash(self):
        """Stop without closing the store, as a killed process does; finished disk operations stay."""
        self.disk.drain()
        self.disk.close()
