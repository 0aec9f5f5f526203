# cython: language_level=3
"""The keys of a consumer that delivers in order per key, compiled.

Owns, for each key, how many of its messages are pending and the first that was passed over; for each pending message
its key; and the queue of keys that may deliver again. Keys are numbers. Must not know subjects, logs or clocks.
`key_table_pure` is the same in pure Python; the same tests run on both.
"""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memset

cdef enum:
    SLOTS_MIN = 16
    SLOTS_KEPT = 4096  # tables up to this size do not shrink: what is pending changes all the time
    QUEUED = 0x80000000  # flag in a count: the key is in the queue
    SEARCHED = 0x40000000  # the same: its next message is being searched
    CHANGED = 0x20000000  # the same: it is in the list of changed keys
    COUNT = 0x1FFFFFFF


cdef inline Py_ssize_t key_home(uint32_t key, Py_ssize_t slots) noexcept nogil:
    """Return the preferred slot of a key."""
    cdef uint32_t mixed = key * <uint32_t>2654435769
    return <Py_ssize_t>((<uint64_t>mixed * <uint64_t>slots) >> 32)


cdef inline Py_ssize_t seq_home(uint64_t seq, Py_ssize_t slots) noexcept nogil:
    """Return the preferred slot of a sequence."""
    cdef uint32_t mixed = <uint32_t>((seq * <uint64_t>0x9E3779B97F4A7C15) >> 32)
    return <Py_ssize_t>((<uint64_t>mixed * <uint64_t>slots) >> 32)


cdef inline bint lies_between(Py_ssize_t home, Py_ssize_t gap, Py_ssize_t at) noexcept nogil:
    """Return whether `home` is after `gap` and not after `at`, in a ring."""
    if gap <= at:
        return gap < home <= at
    return home > gap or home <= at


def find_first_rows(
    const uint32_t[::1] keys not None,
    const uint8_t[::1] live,
    const uint32_t[::1] wanted not None,
    const Py_ssize_t[::1] starts not None,
    Py_ssize_t[::1] out not None,
):
    """Find the first live row of each wanted key; see `key_table_pure.find_first_rows`."""
    cdef Py_ssize_t count = wanted.shape[0], rows = keys.shape[0], slots = SLOTS_MIN, i, at, row, left = 0
    cdef uint32_t *numbers  # number of a wanted key + 1; 0: the slot is free
    if starts.shape[0] < count or out.shape[0] < count or (live is not None and live.shape[0] < rows):
        raise IndexError(count)
    while slots < 4 * count:
        slots *= 2
    numbers = <uint32_t *>calloc(slots, 4)
    if not numbers:
        raise MemoryError
    for i in range(count):
        out[i] = -1
        if starts[i] < rows:
            at = key_home(wanted[i], slots)
            while numbers[at]:
                at = (at + 1) & (slots - 1)
            numbers[at] = <uint32_t>i + 1
            left += 1
    for row in range(rows if left else 0):
        at = key_home(keys[row], slots)
        while numbers[at]:
            i = numbers[at] - 1
            if wanted[i] == keys[row]:
                if out[i] < 0 and row >= starts[i] and (live is None or live[row]):
                    out[i] = row
                    left -= 1
                break
            at = (at + 1) & (slots - 1)
        if not left:
            break
    free(numbers)


cdef class KeyTable:
    """At most `limit` pending messages of a key; see `key_table_pure.KeyTable`."""

    cdef uint32_t *names  # key + 1; 0: the slot is free
    cdef uint32_t *counts
    cdef uint64_t *firsts
    cdef uint64_t *seqs  # 0: the slot is free
    cdef uint32_t *owners
    cdef uint32_t *ring
    cdef uint32_t *changed
    cdef Py_ssize_t key_slots, keys_used, seq_slots, seqs_used
    cdef Py_ssize_t ring_size, ring_at, ring_used, changed_size, changed_used
    cdef uint64_t lowest
    cdef bint lowest_known
    cdef public uint32_t limit
    cdef readonly Py_ssize_t blocked
    cdef public Py_ssize_t passed

    def __cinit__(self, uint32_t limit):
        self.limit = limit
        self.key_slots = self.seq_slots = SLOTS_MIN
        self.names = <uint32_t *>calloc(SLOTS_MIN, 4)
        self.counts = <uint32_t *>calloc(SLOTS_MIN, 4)
        self.firsts = <uint64_t *>calloc(SLOTS_MIN, 8)
        self.seqs = <uint64_t *>calloc(SLOTS_MIN, 8)
        self.owners = <uint32_t *>calloc(SLOTS_MIN, 4)
        if not (self.names and self.counts and self.firsts and self.seqs and self.owners):
            raise MemoryError
        self.lowest_known = True

    def __dealloc__(self):
        free(self.names)
        free(self.counts)
        free(self.firsts)
        free(self.seqs)
        free(self.owners)
        free(self.ring)
        free(self.changed)

    # Slots of keys

    cdef Py_ssize_t find_key(self, uint32_t key) noexcept:
        cdef Py_ssize_t at = key_home(key, self.key_slots)
        while self.names[at]:
            if self.names[at] == key + 1:
                return at
            at += 1
            if at == self.key_slots:
                at = 0
        return -1

    cdef Py_ssize_t get_key(self, uint32_t key) except -1:
        """Return the slot of a key, which is added if it is not there."""
        cdef Py_ssize_t at = self.find_key(key)
        if at >= 0:
            return at
        if (self.keys_used + 1) * 20 > self.key_slots * 17:
            self.resize_keys(self.key_slots + self.key_slots // 5 + 4)
        at = key_home(key, self.key_slots)
        while self.names[at]:
            at += 1
            if at == self.key_slots:
                at = 0
        self.names[at] = key + 1
        self.counts[at] = 0
        self.firsts[at] = 0
        self.keys_used += 1
        return at

    cdef int resize_keys(self, Py_ssize_t slots) except -1:
        cdef uint32_t *names = <uint32_t *>calloc(slots, 4)
        cdef uint32_t *counts = <uint32_t *>calloc(slots, 4)
        cdef uint64_t *firsts = <uint64_t *>calloc(slots, 8)
        cdef Py_ssize_t i, at
        if not (names and counts and firsts):
            free(names)
            free(counts)
            free(firsts)
            raise MemoryError
        for i in range(self.key_slots):
            if not self.names[i]:
                continue
            at = key_home(self.names[i] - 1, slots)
            while names[at]:
                at += 1
                if at == slots:
                    at = 0
            names[at] = self.names[i]
            counts[at] = self.counts[i]
            firsts[at] = self.firsts[i]
        free(self.names)
        free(self.counts)
        free(self.firsts)
        self.names, self.counts, self.firsts, self.key_slots = names, counts, firsts, slots
        return 0

    cdef int drop_if_unused(self, Py_ssize_t at) except -1:
        """Remove a key with neither pending nor passed-over messages."""
        cdef Py_ssize_t gap = at, slots = self.key_slots
        if self.firsts[at] or self.counts[at] & COUNT:
            return 0
        self.keys_used -= 1
        while True:
            at += 1
            if at == slots:
                at = 0
            if not self.names[at]:
                break
            if lies_between(key_home(self.names[at] - 1, slots), gap, at):
                continue
            self.names[gap] = self.names[at]
            self.counts[gap] = self.counts[at]
            self.firsts[gap] = self.firsts[at]
            gap = at
        self.names[gap] = 0
        if slots > SLOTS_KEPT and self.keys_used * 4 < slots:
            self.resize_keys(max(self.keys_used * 3 // 2, SLOTS_KEPT))
        return 0

    cdef int drop_unused(self) except -1:
        """Remove all keys with neither pending nor passed-over messages."""
        cdef Py_ssize_t i, kept = 0
        for i in range(self.key_slots):
            if self.names[i] and not self.firsts[i] and not self.counts[i] & COUNT:
                self.names[i] = 0
            kept += self.names[i] != 0
        self.keys_used = kept
        return self.resize_keys(max(kept * 3 // 2, SLOTS_MIN))

    # Slots of pending messages

    cdef Py_ssize_t find_seq(self, uint64_t seq) noexcept:
        cdef Py_ssize_t at = seq_home(seq, self.seq_slots)
        while self.seqs[at]:
            if self.seqs[at] == seq:
                return at
            at += 1
            if at == self.seq_slots:
                at = 0
        return -1

    cdef int put_seq(self, uint64_t seq, uint32_t key) except -1:
        cdef Py_ssize_t at
        if (self.seqs_used + 1) * 20 > self.seq_slots * 17:
            self.resize_seqs(self.seq_slots + self.seq_slots // 5 + 4)
        at = seq_home(seq, self.seq_slots)
        while self.seqs[at]:
            at += 1
            if at == self.seq_slots:
                at = 0
        self.seqs[at] = seq
        self.owners[at] = key
        self.seqs_used += 1
        return 0

    cdef int resize_seqs(self, Py_ssize_t slots) except -1:
        cdef uint64_t *seqs = <uint64_t *>calloc(slots, 8)
        cdef uint32_t *owners = <uint32_t *>calloc(slots, 4)
        cdef Py_ssize_t i, at
        if not (seqs and owners):
            free(seqs)
            free(owners)
            raise MemoryError
        for i in range(self.seq_slots):
            if not self.seqs[i]:
                continue
            at = seq_home(self.seqs[i], slots)
            while seqs[at]:
                at += 1
                if at == slots:
                    at = 0
            seqs[at] = self.seqs[i]
            owners[at] = self.owners[i]
        free(self.seqs)
        free(self.owners)
        self.seqs, self.owners, self.seq_slots = seqs, owners, slots
        return 0

    cdef int drop_seq(self, Py_ssize_t at) except -1:
        cdef Py_ssize_t gap = at, slots = self.seq_slots
        self.seqs_used -= 1
        while True:
            at += 1
            if at == slots:
                at = 0
            if not self.seqs[at]:
                break
            if lies_between(seq_home(self.seqs[at], slots), gap, at):
                continue
            self.seqs[gap] = self.seqs[at]
            self.owners[gap] = self.owners[at]
            gap = at
        self.seqs[gap] = 0
        if slots > SLOTS_KEPT and self.seqs_used * 4 < slots:
            self.resize_seqs(max(self.seqs_used * 3 // 2, SLOTS_KEPT))
        return 0

    # Passed-over messages and the queue

    cdef int put_first(self, Py_ssize_t at, uint64_t seq) except -1:
        """Set the first passed-over sequence of the key in a slot; 0: none."""
        cdef uint64_t old = self.firsts[at]
        if old == seq:
            return 0
        self.blocked += (seq != 0) - (old != 0)
        self.firsts[at] = seq
        if seq and self.lowest_known and (self.lowest == 0 or seq <= self.lowest):
            self.lowest = seq
        elif old == self.lowest:
            self.lowest_known = False
        if not self.counts[at] & CHANGED:
            if self.changed_used == self.changed_size:
                self.grow_changed()
            self.changed[self.changed_used] = self.names[at] - 1
            self.changed_used += 1
            self.counts[at] |= CHANGED
        return 0

    cdef int grow_changed(self) except -1:
        cdef Py_ssize_t size = self.changed_size * 2 or SLOTS_MIN
        cdef uint32_t *grown = <uint32_t *>realloc(self.changed, size * 4)
        if not grown:
            raise MemoryError
        self.changed, self.changed_size = grown, size
        return 0

    cdef int queue_if_ready(self, Py_ssize_t at) except -1:
        if not self.is_ready(at) or self.counts[at] & QUEUED:
            return 0
        if self.ring_used == self.ring_size:
            self.grow_ring()
        self.ring[(self.ring_at + self.ring_used) % self.ring_size] = self.names[at] - 1
        self.ring_used += 1
        self.counts[at] |= QUEUED
        return 1

    cdef bint is_ready(self, Py_ssize_t at) noexcept:
        """Return whether the key in a slot may deliver what was passed over, as far as that is known."""
        cdef uint32_t count = self.counts[at]
        return self.firsts[at] != 0 and not count & SEARCHED and (count & COUNT) < self.limit

    cdef int grow_ring(self) except -1:
        cdef Py_ssize_t i, size = self.ring_size * 2 or SLOTS_MIN
        cdef uint32_t *grown = <uint32_t *>calloc(size, 4)
        if not grown:
            raise MemoryError
        for i in range(self.ring_used):
            grown[i] = self.ring[(self.ring_at + i) % self.ring_size]
        free(self.ring)
        self.ring, self.ring_size, self.ring_at = grown, size, 0
        return 0

    # Deliveries

    def admit(
        self,
        const uint64_t[::1] seqs not None,
        const uint32_t[::1] keys not None,
        Py_ssize_t at,
        Py_ssize_t most,
        uint64_t[::1] out not None,
    ):
        cdef Py_ssize_t end = seqs.shape[0], count = 0, slot
        if at < 0 or keys.shape[0] < end:
            raise IndexError(at)
        if most > out.shape[0]:
            most = out.shape[0]
        while at < end and count < most:
            slot = self.get_key(keys[at])
            if not self.firsts[slot] and (self.counts[slot] & COUNT) < self.limit:
                self.counts[slot] += 1
                self.put_seq(seqs[at], keys[at])
                out[count] = seqs[at]
                count += 1
            else:
                self.passed += 1
                if not self.firsts[slot]:
                    self.put_first(slot, seqs[at])
            at += 1
        return count, at

    def undo(
        self,
        const uint64_t[::1] seqs not None,
        const uint32_t[::1] keys not None,
        Py_ssize_t start,
        Py_ssize_t end,
    ):
        cdef Py_ssize_t slot, place
        if start < 0 or end > seqs.shape[0] or end > keys.shape[0]:
            raise IndexError(end)
        while end > start:
            end -= 1
            slot = self.find_key(keys[end])
            place = self.find_seq(seqs[end])
            if slot < 0:
                continue
            if place >= 0:
                self.drop_seq(place)
                self.counts[slot] -= 1
            else:
                self.passed -= 1
                if self.firsts[slot] == seqs[end]:
                    self.put_first(slot, 0)
            self.drop_if_unused(slot)

    def add(self, uint64_t seq, uint32_t key):
        if seq == 0 or self.find_seq(seq) >= 0:
            return
        self.counts[self.get_key(key)] += 1
        self.put_seq(seq, key)

    def add_many(self, const uint64_t[::1] seqs not None, const uint32_t[::1] keys not None):
        cdef Py_ssize_t i
        if keys.shape[0] < seqs.shape[0]:
            raise IndexError(seqs.shape[0])
        for i in range(seqs.shape[0]):
            if seqs[i] and self.find_seq(seqs[i]) < 0:
                self.counts[self.get_key(keys[i])] += 1
                self.put_seq(seqs[i], keys[i])

    def release(self, uint64_t seq):
        cdef Py_ssize_t place = self.find_seq(seq) if seq else -1
        cdef Py_ssize_t slot
        cdef int queued
        if place < 0:
            return False
        slot = self.find_key(self.owners[place])
        self.drop_seq(place)
        if slot < 0:
            return False
        self.counts[slot] -= 1
        queued = self.queue_if_ready(slot)
        self.drop_if_unused(slot)
        return queued != 0

    # Keys

    def next_ready(self):
        cdef Py_ssize_t slot
        while self.ring_used:
            slot = self.find_key(self.ring[self.ring_at])
            if slot >= 0 and self.counts[slot] & QUEUED:
                if self.is_ready(slot):
                    return self.names[slot] - 1
                self.counts[slot] &= ~<uint32_t>QUEUED
            self.ring_at = (self.ring_at + 1) % self.ring_size
            self.ring_used -= 1
        return -1

    def take_ready(self):
        cdef Py_ssize_t slot
        if self.ring_used:
            slot = self.find_key(self.ring[self.ring_at])
            if slot >= 0:
                self.counts[slot] &= ~<uint32_t>QUEUED
            self.ring_at = (self.ring_at + 1) % self.ring_size
            self.ring_used -= 1

    def take_ready_run(self, Py_ssize_t most, uint64_t[::1] seqs not None, uint32_t[::1] keys not None):
        cdef Py_ssize_t slot, count = 0
        cdef uint32_t key
        most = min(most, seqs.shape[0], keys.shape[0])
        while count < most and self.ring_used:
            key = self.ring[self.ring_at]
            slot = self.find_key(key)
            if slot >= 0 and self.counts[slot] & QUEUED:
                self.counts[slot] &= ~<uint32_t>QUEUED
                if self.is_ready(slot):
                    keys[count] = key
                    seqs[count] = self.firsts[slot]
                    count += 1
            self.ring_at = (self.ring_at + 1) % self.ring_size
            self.ring_used -= 1
        return count

    def put_back(self, const uint64_t[::1] seqs not None, const uint32_t[::1] keys not None):
        cdef Py_ssize_t i, slot
        if seqs.shape[0] < keys.shape[0]:
            raise IndexError(keys.shape[0])
        for i in range(keys.shape[0] - 1, -1, -1):
            slot = self.get_key(keys[i])
            self.put_first(slot, seqs[i])
            if self.is_ready(slot) and not self.counts[slot] & QUEUED:
                if self.ring_used == self.ring_size:
                    self.grow_ring()
                self.ring_at = (self.ring_at or self.ring_size) - 1
                self.ring[self.ring_at] = keys[i]
                self.ring_used += 1
                self.counts[slot] |= QUEUED
            self.drop_if_unused(slot)

    def start_search(self, const uint32_t[::1] keys not None):
        cdef Py_ssize_t i, slot
        for i in range(keys.shape[0]):
            slot = self.find_key(keys[i])
            if slot >= 0 and self.firsts[slot]:
                self.counts[slot] |= SEARCHED

    def end_search(self, const uint32_t[::1] keys not None, const uint64_t[::1] seqs not None):
        cdef Py_ssize_t i, slot
        if seqs.shape[0] < keys.shape[0]:
            raise IndexError(keys.shape[0])
        for i in range(keys.shape[0]):
            slot = self.find_key(keys[i])
            if slot < 0 or not self.counts[slot] & SEARCHED:
                continue
            self.counts[slot] &= ~<uint32_t>SEARCHED
            self.put_first(slot, seqs[i])
            self.queue_if_ready(slot)
            self.drop_if_unused(slot)

    def add_late(self, const uint64_t[::1] seqs not None, const uint32_t[::1] keys not None,
                 const uint64_t[::1] lasts not None):
        cdef Py_ssize_t i, slot
        if keys.shape[0] < seqs.shape[0] or lasts.shape[0] < seqs.shape[0]:
            raise IndexError(seqs.shape[0])
        for i in range(seqs.shape[0]):
            if self.find_seq(seqs[i]) < 0:
                self.counts[self.get_key(keys[i])] += 1
                self.put_seq(seqs[i], keys[i])
            slot = self.get_key(keys[i])
            self.put_first(slot, seqs[i] + 1 if lasts[i] > seqs[i] else 0)
            self.queue_if_ready(slot)
            self.drop_if_unused(slot)
            self.passed -= 1

    def get_first(self, uint32_t key):
        cdef Py_ssize_t slot = self.find_key(key)
        return self.firsts[slot] if slot >= 0 else 0

    def get_count(self, uint32_t key):
        cdef Py_ssize_t slot = self.find_key(key)
        return self.counts[slot] & COUNT if slot >= 0 else 0

    def set_first(self, uint32_t key, uint64_t seq):
        cdef Py_ssize_t slot = self.find_key(key) if seq == 0 else self.get_key(key)
        if slot < 0:
            return
        self.put_first(slot, seq)
        self.queue_if_ready(slot)
        self.drop_if_unused(slot)

    def min_first(self):
        cdef Py_ssize_t i
        if not self.lowest_known:
            self.lowest = 0
            for i in range(self.key_slots):
                if self.names[i] and self.firsts[i] and (self.lowest == 0 or self.firsts[i] < self.lowest):
                    self.lowest = self.firsts[i]
            self.lowest_known = True
        return self.lowest

    def get_firsts(self, const uint32_t[::1] keys not None, uint64_t[::1] out not None):
        cdef Py_ssize_t i, slot
        if out.shape[0] < keys.shape[0]:
            raise IndexError(keys.shape[0])
        for i in range(keys.shape[0]):
            slot = self.find_key(keys[i])
            out[i] = self.firsts[slot] if slot >= 0 else 0

    def list_firsts(self):
        cdef Py_ssize_t i
        return [
            (self.names[i] - 1, self.firsts[i])
            for i in range(self.key_slots)
            if self.names[i] and self.firsts[i]
        ]

    def copy_blocked(self, uint32_t[::1] out):
        cdef Py_ssize_t i, found = 0
        if out.shape[0] != self.blocked:
            raise ValueError(f"an array of {out.shape[0]} for {self.blocked} keys")
        for i in range(self.key_slots):
            if self.names[i] and self.firsts[i]:
                if found == out.shape[0]:
                    raise AssertionError("more blocked keys than counted")
                out[found] = self.names[i] - 1
                found += 1

    def take_changed(self):
        cdef Py_ssize_t i, slot
        found = {self.changed[i] for i in range(self.changed_used)}
        for i in range(self.changed_used):
            slot = self.find_key(self.changed[i])
            if slot >= 0:
                self.counts[slot] &= ~<uint32_t>CHANGED
        self.changed_used = 0
        if self.changed_size > 4096:
            free(self.changed)
            self.changed, self.changed_size = NULL, 0
        return found

    def queue_ready(self, const uint32_t[::1] keys not None):
        cdef Py_ssize_t i, slot
        for i in range(keys.shape[0]):
            slot = self.find_key(keys[i])
            if slot >= 0:
                self.queue_if_ready(slot)

    def clear_firsts(self):
        cdef Py_ssize_t i
        for i in range(self.key_slots):
            self.firsts[i] = 0
            self.counts[i] &= COUNT
        self.blocked = self.passed = self.ring_used = self.changed_used = 0
        self.lowest, self.lowest_known = 0, True
        self.drop_unused()

    def remap(self, const uint32_t[::1] new_keys not None, const unsigned char[::1] kept not None):
        cdef KeyTable old = KeyTable(self.limit)
        cdef Py_ssize_t i, slot, known = min(new_keys.shape[0], kept.shape[0])
        cdef uint32_t key
        self.swap_with(old)
        self.passed = old.passed
        # Full size from the start: in the order of slots, a smaller table would be filled from one end.
        self.resize_keys(old.key_slots)
        self.resize_seqs(old.seq_slots)
        for i in range(old.seq_slots):
            key = old.owners[i]
            if old.seqs[i] and key < known and kept[key]:
                self.counts[self.get_key(new_keys[key])] += 1
                self.put_seq(old.seqs[i], new_keys[key])
        for i in range(old.ring_used):  # keeps its order
            key = old.ring[(old.ring_at + i) % old.ring_size]
            slot = old.find_key(key)
            if slot >= 0 and key < known and kept[key]:
                self.restore_first(new_keys[key], old.firsts[slot])
        for slot in range(old.key_slots):
            key = old.names[slot] - 1
            if old.names[slot] and key < known and kept[key]:
                self.restore_first(new_keys[key], old.firsts[slot])

    cdef int restore_first(self, uint32_t key, uint64_t seq) except -1:
        """Set the first passed-over sequence of a key, if there is one, and queue the key if it is ready."""
        cdef Py_ssize_t slot
        if seq:
            slot = self.get_key(key)
            self.put_first(slot, seq)
            self.queue_if_ready(slot)
        return 0

    cdef int swap_with(self, KeyTable other) except -1:
        """Exchange the content with another table."""
        self.names, other.names = other.names, self.names
        self.counts, other.counts = other.counts, self.counts
        self.firsts, other.firsts = other.firsts, self.firsts
        self.seqs, other.seqs = other.seqs, self.seqs
        self.owners, other.owners = other.owners, self.owners
        self.ring, other.ring = other.ring, self.ring
        self.changed, other.changed = other.changed, self.changed
        self.key_slots, other.key_slots = other.key_slots, self.key_slots
        self.keys_used, other.keys_used = other.keys_used, self.keys_used
        self.seq_slots, other.seq_slots = other.seq_slots, self.seq_slots
        self.seqs_used, other.seqs_used = other.seqs_used, self.seqs_used
        self.ring_size, other.ring_size = other.ring_size, self.ring_size
        self.ring_at, other.ring_at = other.ring_at, self.ring_at
        self.ring_used, other.ring_used = other.ring_used, self.ring_used
        self.changed_size, other.changed_size = other.changed_size, self.changed_size
        self.changed_used, other.changed_used = other.changed_used, self.changed_used
        self.lowest, other.lowest = other.lowest, self.lowest
        self.lowest_known, other.lowest_known = other.lowest_known, self.lowest_known
        self.blocked, other.blocked = other.blocked, self.blocked
        self.passed, other.passed = other.passed, self.passed
        return 0

    def clear(self):
        memset(self.names, 0, self.key_slots * 4)
        memset(self.seqs, 0, self.seq_slots * 8)
        self.keys_used = self.seqs_used = self.ring_used = self.changed_used = 0
        self.blocked = self.passed = 0
        self.lowest, self.lowest_known = 0, True

    @property
    def changed_count(self):
        return self.changed_used

    @property
    def nbytes(self):
        return self.key_slots * 16 + self.seq_slots * 12 + self.ring_size * 4
