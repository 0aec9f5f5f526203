# cython: language_level=3
"""The hot path, compiled: parse what a client publishes, find its route, write it into each receiver's output.

Owns the framing of one peer's input (`Parser`), the cache of routes (`RouteTable`) and the encoding of deliveries.
Invariant: whatever the input is cut into, the same operations happen in the same order. Knows no sockets, no clock,
and of control operations only where they end; their meaning is the business of the peer's methods. `wire_pure` does
the same in plain Python and passes the same tests.
"""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_GET_SIZE, PyByteArray_Resize
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.ref cimport PyObject
from libc.stdint cimport uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memchr, memcmp, memcpy, memset

import os

from headrace.errors import ProtocolError
from headrace.kernel.wire_pure import words_of

cdef extern from *:
    """
    #if PY_VERSION_HEX >= 0x030E0000
    #define wire_hash(p, n) ((uint64_t)Py_HashBuffer((p), (n)))
    #else
    #define wire_hash(p, n) ((uint64_t)_Py_HashBytes((p), (n)))
    #endif
    #define wire_room(o) (((PyByteArrayObject *)(o))->ob_alloc)
    """
    uint64_t wire_hash(const char *p, Py_ssize_t n)
    Py_ssize_t wire_room(PyObject *o)

cdef enum:
    # What a route's key stands for: one subject, all children of a prefix, everything below a head of two tokens.
    EXACT = 0
    PARENT = 1
    HEAD = 2

cdef enum:
    # What the parser is in the middle of.
    OPERATION = 0
    PAYLOAD = 1
    JUNK = 2

cdef enum:
    DIGITS_MAX = 9
    VERB_MAX = 8
    # Payloads of this size on are not copied for each of several receivers.
    SHARED_MIN = 16384
    # What a line needs beside subject and reply, about.
    LINE_BYTES = 24

UNKNOWN = "Unknown Protocol Operation"
TOO_LONG = "maximum control line exceeded"
TOO_LARGE = "Maximum Payload Violation"
UNAUTHORIZED = "Authorization Violation"
# Verbs by first letters; those followed by a blank need one, the rest take anything up to the end of the line.
BLANK_VERBS = (b"PUB", b"SUB", b"HPUB", b"UNSUB", b"INFO", b"-ERR")
FREE_VERBS = (b"CONNECT", b"PING", b"PONG", b"+OK")


cdef list NOBODY = []


cdef struct Span:
    const char *at
    Py_ssize_t size


cdef struct Publication:
    Span subject
    Span reply
    Span header_digits
    Span total_digits
    Py_ssize_t header
    Py_ssize_t total


cdef inline bint blank(char c) noexcept nogil:
    return c == 32 or c == 9 or c == 13


cdef inline Py_ssize_t split(const char *at, const char *end, Span *args, Py_ssize_t most) noexcept nogil:
    """Fill `args` with the words between blanks; how many there are, at most `most` + 1."""
    cdef Py_ssize_t found = 0
    while True:
        while at < end and blank(at[0]):
            at += 1
        if at == end:
            return found
        if found == most:
            return found + 1
        args[found].at = at
        while at < end and not blank(at[0]):
            at += 1
        args[found].size = at - args[found].at
        found += 1


cdef inline Py_ssize_t number(Span *digits) noexcept nogil:
    """The value of one to nine decimal digits, or -1."""
    cdef Py_ssize_t value = 0, i
    cdef char c
    if digits.size < 1 or digits.size > DIGITS_MAX:
        return -1
    for i in range(digits.size):
        c = digits.at[i]
        if c < 48 or c > 57:
            return -1
        value = value * 10 + (c - 48)
    return value


cdef inline bint whole(const char *at, const char *end) noexcept nogil:
    """Whether no token between dots is empty."""
    cdef bint empty = True
    while at < end:
        if at[0] == 46:
            if empty:
                return False
            empty = True
        else:
            empty = False
        at += 1
    return not empty


cdef inline bint reserved(const char *at, Py_ssize_t size) noexcept nogil:
    """Whether a reply belongs to the server itself."""
    if size > 4 and at[0] == 95:
        return memcmp(at, b"_R_.", 4) == 0 or (size > 5 and memcmp(at, b"_GR_.", 5) == 0)
    return size > 8 and at[0] == 36 and (memcmp(at, b"$JS.ACK.", 8) == 0 or memcmp(at, b"$JS.API.", 8) == 0)


cdef bint touched(const char *pattern, const char *pattern_end, const char *key, const char *key_end, int kind) noexcept nogil:
    """Whether a pattern matches some subject that a cached key stands for."""
    cdef const char *p
    cdef const char *k
    while True:
        if pattern >= pattern_end:
            return key >= key_end and kind == EXACT
        p = <const char *>memchr(pattern, 46, pattern_end - pattern)
        if p == NULL:
            p = pattern_end
        if p - pattern == 1 and pattern[0] == 62:
            return key < key_end or kind != EXACT
        if key >= key_end:
            if kind == EXACT:
                return False
            return kind == HEAD or p == pattern_end
        k = <const char *>memchr(key, 46, key_end - key)
        if k == NULL:
            k = key_end
        if not (p - pattern == 1 and pattern[0] == 42):
            if p - pattern != k - key or memcmp(pattern, key, p - pattern) != 0:
                return False
        pattern, key = p + 1, k + 1


cdef inline char *digits_of(Py_ssize_t value, char *end) noexcept nogil:
    """Write a number in front of `end`; where it starts."""
    while True:
        end -= 1
        end[0] = <char>(48 + value % 10)
        value //= 10
        if value == 0:
            return end


cdef inline char *put(char *to, const char *data, Py_ssize_t size) noexcept nogil:
    memcpy(to, data, size)
    return to + size


cdef class Peer:
    """What the kernel knows of one client: its output, its settings, its counters.

    `out` may be appended to by anyone who then calls `touch()`. What stands before it, `parted` bytes in all, are the
    payloads that several peers share and what was written between them. A subclass brings the control operations.
    `table` may be exchanged for one that shares its list of dirty peers. `carried` counts roughly what its messages
    added to the outputs of all who received them.
    """

    cdef public bytearray out
    cdef list parts
    cdef readonly Py_ssize_t parted
    cdef public bint headers, echo, verbose, pedantic, no_responders, ready, guarded, dirty
    cdef public long long in_msgs, in_bytes, out_msgs, out_bytes, carried
    cdef public RouteTable table

    def __init__(self, RouteTable table not None):
        self.table = table
        self.out = bytearray()
        self.echo = self.verbose = self.pedantic = True

    cpdef touch(self):
        """Note that `out` holds something to flush."""
        if not self.dirty:
            self.table.note(self)

    cpdef send(self, data):
        """Add bytes to the output."""
        self.out += data
        self.touch()

    cpdef bytearray take(self):
        """Hand over the output; what comes next goes into a new one."""
        cdef bytearray out = self.out
        if self.parted:
            return bytearray().join(self.take_parts())
        self.out = bytearray()
        self.dirty = False
        return out

    cpdef list take_parts(self):
        """The same without putting the parts together."""
        cdef list parts = self.parts if self.parted else []
        parts.append(self.out)
        self.parts = None
        self.parted = 0
        self.out = bytearray()
        self.dirty = False
        return parts

    cdef share(self, bytes payload):
        """Go on with a payload that others are sent, too."""
        if self.parts is None:
            self.parts = []
        self.parts.append(self.out)
        self.parts.append(payload)
        self.parted += PyByteArray_GET_SIZE(self.out) + PyBytes_GET_SIZE(payload)
        self.out = bytearray()


cdef class Subscription:
    """One client's interest: `sid` is what deliveries carry, `limit` how many there are in all (0: any number)."""

    cdef readonly Peer peer
    cdef readonly bytes pattern, queue, sid
    cdef public long long delivered, limit
    cdef public bint closed, watched

    def __init__(self, Peer peer not None, bytes pattern not None, bytes queue, bytes sid not None):
        self.peer = peer
        self.pattern = pattern
        self.queue = queue
        self.sid = sid


cdef class Route:
    """Who receives a subject. When interest changes it is dropped (no longer `live`, nobody on it) and made anew."""

    cdef readonly bytes key
    cdef readonly list plain, groups, sinks
    cdef readonly int kind
    cdef readonly bint live, refused, empty
    cdef uint64_t hash

    def __init__(self, bytes key not None, int kind, list plain not None, list groups not None, list sinks not None):
        self.key = key
        self.kind = kind
        self.plain = plain
        self.groups = groups
        self.sinks = sinks
        self.empty = not (plain or groups or sinks)
        self.refused = key.startswith(b"$NRG.") or key.startswith(b"_GR_.")
        self.live = True
        self.hash = wire_hash(PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key))

    cdef void end(self) noexcept:
        """It is dropped: keep nobody alive who may have gone."""
        self.live = False
        self.empty = True
        self.plain = self.groups = self.sinks = NOBODY

    cdef inline bint covers(self, const char *at, Py_ssize_t size) noexcept:
        """Whether this route is that of a subject."""
        cdef const char *key = PyBytes_AS_STRING(self.key)
        cdef Py_ssize_t length = PyBytes_GET_SIZE(self.key)
        if self.kind == EXACT:
            return size == length and memcmp(key, at, size) == 0
        if self.kind == HEAD:
            length -= 1
        if size <= length or memcmp(key, at, length) != 0:
            return False
        if self.kind == PARENT:
            return memchr(at + length, 46, size - length) == NULL
        return whole(at + length, at + size)


cdef struct Slot:
    uint64_t hash
    PyObject *route


@cython.no_gc_clear  # the slots point at what `owned` holds, to the very end
cdef class RouteTable:
    """Routes by subject, at most `size_max` of them; a miss asks `resolve`.

    Keys: a subject; `prefix.` for all its children; `one.two. ` (with a blank) for everything below two tokens.
    `dirty` lists the peers whose output became non-empty; `wake` is called when the first one is noted. Tables may share
    one such list.
    """

    cdef Slot *slots
    cdef set owned  # what the slots point at, where the garbage collector sees it
    cdef Py_ssize_t mask, used, used_max
    cdef uint64_t random
    cdef readonly object resolve
    cdef readonly list dirty
    cdef public object wake

    def __cinit__(self, resolve, Py_ssize_t size_max=16384, list dirty=None):
        cdef Py_ssize_t room = 64
        self.slots = <Slot *>calloc(room, sizeof(Slot))
        if self.slots == NULL:
            raise MemoryError()
        self.owned = set()
        self.mask = room - 1
        self.used_max = size_max
        self.random = int.from_bytes(os.urandom(8), "little") | 1
        self.resolve = resolve
        self.dirty = [] if dirty is None else dirty

    def __dealloc__(self):
        free(self.slots)

    cdef note(self, Peer peer):
        peer.dirty = True
        self.dirty.append(peer)
        if len(self.dirty) == 1 and self.wake is not None:
            self.wake()

    def __len__(self):
        return self.used

    def __contains__(self, bytes key not None):
        return self.place(PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key)) >= 0

    cdef inline Py_ssize_t place(self, const char *at, Py_ssize_t size) noexcept:
        """The slot of a key, or -1."""
        cdef uint64_t hash = wire_hash(at, size)
        cdef Py_ssize_t i = <Py_ssize_t>(hash & <uint64_t>self.mask)
        cdef Route route
        while self.slots[i].route != NULL:
            if self.slots[i].hash == hash:
                route = <Route>self.slots[i].route
                if PyBytes_GET_SIZE(route.key) == size and memcmp(PyBytes_AS_STRING(route.key), at, size) == 0:
                    return i
            i = (i + 1) & self.mask
        return -1

    cdef Route lookup(self, const char *at, Py_ssize_t size):
        """The cached route of a subject, or None."""
        cdef Py_ssize_t i = self.place(at, size), dot = size - 1, dots = 0
        cdef char head[258]
        cdef Route route
        if i >= 0:
            route = <Route>self.slots[i].route
            # `a.b.` as a subject is not whole; as a key it stands for the children of `a.b`.
            return route if route.kind == EXACT else None
        while dot > 0 and at[dot] != 46:
            dot -= 1
        if dot <= 0 or dot == size - 1:
            return None
        i = self.place(at, dot + 1)
        if i >= 0:
            return <Route>self.slots[i].route
        for i in range(min(dot + 1, 256)):
            if at[i] == 46:
                dots += 1
                if dots == 2:
                    memcpy(head, at, i + 1)
                    head[i + 1] = 32
                    dot = i + 1
                    i = self.place(head, dot + 1)
                    if i >= 0 and whole(at + dot, at + size):
                        return <Route>self.slots[i].route
                    return None
        return None

    cdef Route seek(self, const char *at, Py_ssize_t size):
        """The route of a subject, cached or resolved."""
        cdef Route route = self.lookup(at, size)
        if route is None:
            route = self.resolve(PyBytes_FromStringAndSize(at, size))
            self.keep(route)
        return route

    cdef keep(self, Route route):
        self.drop(route.key)
        if self.used >= self.used_max:
            self.clear()
        if self.used * 2 >= self.mask:
            self.grow()
        self.owned.add(route)
        self.settle(route.hash, <PyObject *>route)
        self.used += 1

    cdef void settle(self, uint64_t hash, PyObject *route) noexcept:
        """Put a route into the first free slot from its home on."""
        cdef Py_ssize_t i = <Py_ssize_t>(hash & <uint64_t>self.mask)
        while self.slots[i].route != NULL:
            i = (i + 1) & self.mask
        self.slots[i].hash = hash
        self.slots[i].route = route

    cdef grow(self):
        """Double the slots."""
        cdef Slot *old = self.slots
        cdef Py_ssize_t room = self.mask + 1, i
        cdef Slot *slots = <Slot *>calloc(room * 2, sizeof(Slot))
        if slots == NULL:
            raise MemoryError()
        self.slots, self.mask = slots, room * 2 - 1
        for i in range(room):
            if old[i].route != NULL:
                self.settle(old[i].hash, old[i].route)
        free(old)

    cdef remove(self, Py_ssize_t i):
        """Empty a slot, moving up those that were pushed behind it."""
        cdef Route route = <Route>self.slots[i].route
        cdef Py_ssize_t j = i, home
        route.end()
        self.owned.discard(route)
        self.used -= 1
        while True:
            self.slots[i].route = NULL
            while True:
                j = (j + 1) & self.mask
                if self.slots[j].route == NULL:
                    return
                home = <Py_ssize_t>(self.slots[j].hash & <uint64_t>self.mask)
                if (i <= j and (home <= i or home > j)) or (i > j and home <= i and home > j):
                    break
            self.slots[i] = self.slots[j]
            i = j

    def find(self, bytes subject not None):
        """The route of a subject that is whole."""
        return self.seek(PyBytes_AS_STRING(subject), PyBytes_GET_SIZE(subject))

    cpdef drop(self, bytes key):
        """Forget one key."""
        cdef Py_ssize_t i = self.place(PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key))
        if i >= 0:
            self.remove(i)

    def drop_matching(self, bytes pattern not None):
        """Forget every key that stands for a subject the pattern matches."""
        cdef const char *at = PyBytes_AS_STRING(pattern)
        cdef const char *end = at + PyBytes_GET_SIZE(pattern)
        cdef const char *key
        cdef Py_ssize_t i, size
        cdef Route route
        cdef list found = []
        cdef bint fixed = at[0] != 42 and at[0] != 62
        if self.used == 0:
            return
        for i in range(self.mask + 1):
            if self.slots[i].route == NULL:
                continue
            route = <Route>self.slots[i].route
            key = PyBytes_AS_STRING(route.key)
            if fixed and key[0] != at[0]:
                continue
            size = PyBytes_GET_SIZE(route.key) - route.kind
            if touched(at, end, key, key + size, route.kind):
                found.append(route)
        for route in found:
            self.drop(route.key)

    cpdef clear(self):
        """Forget every route."""
        cdef Py_ssize_t i
        for i in range(self.mask + 1):
            if self.slots[i].route != NULL:
                (<Route>self.slots[i].route).end()
        memset(self.slots, 0, (self.mask + 1) * sizeof(Slot))
        self.used = 0
        self.owned.clear()

    cpdef Py_ssize_t publish(self, bytes subject, bytes reply, bytes header, bytes payload) except -1:
        """Send from inside the server to all who match; how many received it."""
        return self.publish_for(None, subject, reply, header, payload)

    cpdef Py_ssize_t publish_for(self, Peer source, bytes subject, bytes reply, bytes header, bytes payload) except -1:
        """Send what a peer published to all who match; how many received it."""
        cdef const char *at = PyBytes_AS_STRING(subject)
        cdef Route route = self.lookup(at, PyBytes_GET_SIZE(subject))
        if route is None:
            if not whole(at, at + PyBytes_GET_SIZE(subject)):
                return 0
            route = self.seek(at, PyBytes_GET_SIZE(subject))
        return self.carry(route, source, subject, reply, header, payload)

    def publish_many(self, parcels):
        """`publish` for each (subject, reply, header, payload)."""
        cdef bytes subject, reply, header, payload
        failure = None
        for subject, reply, header, payload in parcels:
            try:
                self.publish(subject, reply, header, payload)
            except Exception as error:  # one receiver's trouble is not another's
                failure = failure or error
        if failure is not None:
            raise failure

    cpdef Py_ssize_t send(self, Route route, bytes subject, bytes reply, bytes header, bytes payload) except -1:
        """Send along a route, showing this subject; how many received it."""
        return self.carry(route, None, subject, reply, header, payload)

    cdef Py_ssize_t carry(self, Route route, Peer source, bytes subject, bytes reply, bytes header,
                          bytes payload) except -1:
        cdef Publication pub
        cdef char digits[48]
        cdef char *at
        if route.empty:
            return 0
        pub.subject.at, pub.subject.size = PyBytes_AS_STRING(subject), PyBytes_GET_SIZE(subject)
        pub.reply.at, pub.reply.size = PyBytes_AS_STRING(reply), PyBytes_GET_SIZE(reply)
        pub.header, pub.total = PyBytes_GET_SIZE(header), PyBytes_GET_SIZE(header) + PyBytes_GET_SIZE(payload)
        at = digits_of(pub.header, digits + 24)
        pub.header_digits.at, pub.header_digits.size = at, digits + 24 - at
        at = digits_of(pub.total, digits + 48)
        pub.total_digits.at, pub.total_digits.size = at, digits + 48 - at
        return self.spread(route, source, &pub, PyBytes_AS_STRING(header), PyBytes_AS_STRING(payload),
                           subject, reply, header, payload)

    cdef Py_ssize_t spread(self, Route route, Peer source, Publication *pub, const char *header, const char *payload,
                           bytes subject, bytes reply, bytes block, bytes body) except -1:
        """Write a message to everybody on a route. The last four are its parts as objects, where they exist."""
        cdef Py_ssize_t received = 0, i, j, start, count
        cdef Subscription sub
        cdef Peer muted = source if source is not None and not source.echo else None
        cdef list plain = route.plain, groups = route.groups, sinks = route.sinks, group
        cdef bytes shared = None
        if pub.total - pub.header >= SHARED_MIN and len(plain) > 1:
            shared = PyBytes_FromStringAndSize(payload, pub.total - pub.header) if body is None else body
        for i in range(len(plain)):
            sub = <Subscription>plain[i]
            if sub.peer is muted or sub.closed:
                continue
            received += self.hand(sub, pub, header, payload, shared)
        if groups:
            for group in groups:
                count = len(group)
                if count == 0:
                    continue
                self.random ^= self.random << 13
                self.random ^= self.random >> 7
                self.random ^= self.random << 17
                start = <Py_ssize_t>((self.random >> 33) % <uint64_t>count)
                for j in range(count):
                    sub = <Subscription>group[(start + j) % count]
                    if sub.peer is muted or sub.closed:
                        continue
                    if self.hand(sub, pub, header, payload, shared):
                        received += 1
                        break
        if sinks:
            if subject is None:
                if route.kind == EXACT:
                    subject = route.key
                else:
                    subject = PyBytes_FromStringAndSize(pub.subject.at, pub.subject.size)
                reply = PyBytes_FromStringAndSize(pub.reply.at, pub.reply.size)
                block = PyBytes_FromStringAndSize(header, pub.header)
                body = PyBytes_FromStringAndSize(payload, pub.total - pub.header)
            for sink in sinks:
                count_there = sink.offer(source, subject, reply, block, body)
                received += 1 if count_there is None else <Py_ssize_t>count_there
        return received

    cdef Py_ssize_t hand(self, Subscription sub, Publication *pub, const char *header, const char *payload,
                         bytes shared) except -1:
        """Write a message into one receiver's output: MSG, or HMSG when it has headers and the receiver wants them.

        `shared` is the payload once more, where it is large and others get it, too.
        """
        cdef Peer peer = sub.peer
        cdef Py_ssize_t body = pub.total - pub.header
        cdef Py_ssize_t sid = PyBytes_GET_SIZE(sub.sid)
        cdef Py_ssize_t room, size
        cdef bint headed = pub.header > 0 and peer.headers
        cdef char scratch[24]
        cdef Span digits = pub.total_digits
        cdef char *to
        if sub.watched and not peer.admit(
            sub,
            PyBytes_FromStringAndSize(pub.subject.at, pub.subject.size),
            PyBytes_FromStringAndSize(pub.reply.at, pub.reply.size),
        ):
            return 0
        room = 4 + pub.subject.size + 1 + sid + 1 + 2
        if shared is None:
            room += body + 2
        if pub.reply.size:
            room += pub.reply.size + 1
        if headed:
            room += 1 + pub.header_digits.size + 1 + pub.header
        elif pub.header > 0:
            digits.at = digits_of(body, scratch + 24)
            digits.size = scratch + 24 - digits.at
        room += digits.size
        size = PyByteArray_GET_SIZE(peer.out)
        if size + room >= wire_room(<PyObject *>peer.out):
            PyByteArray_Resize(peer.out, 2 * (size + room))
        PyByteArray_Resize(peer.out, size + room)
        to = PyByteArray_AS_STRING(peer.out) + size
        if headed:
            to[0] = 72
            to += 1
        to = put(to, b"MSG ", 4)
        to = put(to, pub.subject.at, pub.subject.size)
        to[0] = 32
        to = put(to + 1, PyBytes_AS_STRING(sub.sid), sid)
        to[0] = 32
        to += 1
        if pub.reply.size:
            to = put(to, pub.reply.at, pub.reply.size)
            to[0] = 32
            to += 1
        if headed:
            to = put(to, pub.header_digits.at, pub.header_digits.size)
            to[0] = 32
            to += 1
        to = put(to, digits.at, digits.size)
        to = put(to, b"\r\n", 2)
        if headed:
            to = put(to, header, pub.header)
        if shared is None:
            to = put(to, payload, body)
            put(to, b"\r\n", 2)
        else:
            peer.share(shared)
            peer.out += b"\r\n"
        if not peer.dirty:
            self.note(peer)
        peer.out_msgs += 1
        peer.out_bytes += body + pub.header if headed else body
        sub.delivered += 1
        if sub.limit and sub.delivered >= sub.limit:
            peer.spent(sub)
        return 1


cdef class Parser:
    """Turns one peer's bytes into operations: publishes go straight along their routes, the rest to the peer.

    Between two chunks it holds an unfinished control line (at most `line_max` of arguments) or an unfinished
    payload (at most `payload_max`), never more. After a ProtocolError it is not to be fed again.
    """

    cdef readonly Peer peer
    cdef Py_ssize_t line_max
    cdef public Py_ssize_t payload_max
    cdef RouteTable table
    cdef Route last
    cdef bytearray line, body
    cdef bytes args, junk
    cdef int state
    cdef bint headed

    def __init__(self, Peer peer not None, Py_ssize_t line_max=4096, Py_ssize_t payload_max=1048576):
        self.peer = peer
        self.table = peer.table
        self.line_max = line_max
        self.payload_max = payload_max

    @property
    def held(self):
        """How many bytes are kept until more arrive."""
        return (len(self.line) if self.line is not None else 0) + (
            len(self.body) + len(self.args) if self.body is not None else 0)

    def feed(self, data, Py_ssize_t size=-1):
        """Take the next chunk (the first `size` bytes of `data`); raises ProtocolError when the peer has to go."""
        cdef Py_buffer view
        # Held as long as it is read: a callback that wants to resize it meanwhile gets an error.
        PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
        try:
            if size > view.len:
                raise ValueError("a chunk has no more bytes than it has")
            self.run(<const char *>view.buf, <const char *>view.buf + (view.len if size < 0 else size))
        finally:
            PyBuffer_Release(&view)

    cdef run(self, const char *at, const char *end):
        cdef const char *stop
        cdef bytearray line
        while at < end:
            if self.state == PAYLOAD:
                at = self.resume_payload(at, end)
                continue
            stop = <const char *>memchr(at, 10, end - at)
            if self.state == JUNK:
                if stop == NULL:
                    return
                self.state = OPERATION
                at = stop + 1
                self.control(self.junk, b"")
                continue
            if not self.peer.ready and self.line is None and at[0] != 67 and at[0] != 99:
                raise ProtocolError(UNAUTHORIZED)
            if self.line is not None:
                line = self.line
                line += PyBytes_FromStringAndSize(at, (end if stop == NULL else stop) - at)
                if stop == NULL:
                    self.hold(line)
                    return
                self.line = None
                at = self.operation(PyByteArray_AS_STRING(line), PyByteArray_AS_STRING(line) + len(line), stop + 1, end)
            elif stop == NULL:
                self.hold(bytearray(PyBytes_FromStringAndSize(at, end - at)))
                return
            else:
                at = self.operation(at, stop, stop + 1, end)

    cdef hold(self, bytearray line):
        """Keep an unfinished line as far as it may become a good one and is short enough."""
        cdef bytes verb = bytes(line[:VERB_MAX]).upper()
        cdef bytes known
        self.line = line
        for known in FREE_VERBS + BLANK_VERBS:
            if verb.startswith(known):
                break
            if known.startswith(verb):
                return
        else:
            raise ProtocolError(UNKNOWN)
        if known in BLANK_VERBS and len(line) > len(known) and line[len(known)] not in b" \t":
            raise ProtocolError(UNKNOWN)
        if known in (b"PING", b"PONG", b"+OK"):
            self.line, self.state, self.junk = None, JUNK, known
            return
        args = line[len(known):].lstrip(b" \t")
        if len(args) - args.endswith(b"\r") > self.line_max:
            raise ProtocolError(TOO_LONG)
        if len(args) + len(known) + 1 < len(line):
            self.line = bytearray(known) + b" " + args

    cdef const char *operation(self, const char *at, const char *stop, const char *rest, const char *end) except NULL:
        """One whole control line from `at` to `stop`; where the next operation starts, at or after `rest`."""
        cdef Py_ssize_t size = stop - at
        if size > 4 and blank(at[3]) and at[3] != 13 and (
            (at[0] == 80 and at[1] == 85 and at[2] == 66) or
            ((at[0] | 32) == 112 and (at[1] | 32) == 117 and (at[2] | 32) == 98)
        ):
            return self.publication(at + 4, stop, rest, end, False)
        if size > 5 and blank(at[4]) and at[4] != 13 and (
            (at[0] | 32) == 104 and (at[1] | 32) == 112 and (at[2] | 32) == 117 and (at[3] | 32) == 98
        ):
            return self.publication(at + 5, stop, rest, end, True)
        self.other(PyBytes_FromStringAndSize(at, size))
        return rest

    cdef other(self, bytes line):
        """A control line that publishes nothing."""
        cdef bytes verb = line[:VERB_MAX].upper()
        cdef bytes known
        for known in FREE_VERBS + BLANK_VERBS:
            if verb.startswith(known):
                break
        else:
            raise ProtocolError(UNKNOWN)
        if known in (b"PING", b"PONG", b"+OK"):
            self.control(known, b"")
            return
        if known in BLANK_VERBS and line[len(known):len(known) + 1] not in (b" ", b"\t"):
            raise ProtocolError(UNKNOWN)
        args = line[len(known):].lstrip(b" \t")
        if args.endswith(b"\r"):
            args = args[:len(args) - 1]
        if len(args) > self.line_max:
            raise ProtocolError(TOO_LONG)
        self.control(known, args)

    cdef control(self, bytes verb, bytes args):
        """Let the peer act on a control operation."""
        if verb == b"PING":
            self.peer.on_ping()
        elif verb == b"PONG":
            self.peer.on_pong()
        elif verb == b"SUB":
            words = words_of(args)
            if len(words) == 2:
                self.peer.on_sub(words[0], None, words[1])
            elif len(words) == 3:
                self.peer.on_sub(words[0], words[1], words[2])
            else:
                raise ProtocolError(None)
        elif verb == b"UNSUB":
            words = words_of(args)
            if not 1 <= len(words) <= 2:
                raise ProtocolError(None)
            self.peer.on_unsub(words[0], words[1] if len(words) == 2 else None)
        elif verb == b"CONNECT":
            self.peer.on_connect(args)
        elif verb == b"-ERR" or verb == b"PUB" or verb == b"HPUB":
            raise ProtocolError(None)

    cdef const char *publication(self, const char *at, const char *stop, const char *rest, const char *end,
                                 bint headed) except NULL:
        """PUB or HPUB with its arguments from `at` to `stop` and its payload from `rest` on, if it is there already."""
        cdef Publication pub
        cdef Py_ssize_t there = end - rest
        while at < stop and (at[0] == 32 or at[0] == 9):
            at += 1
        if stop > at and (stop - 1)[0] == 13:
            stop -= 1
        if stop - at > self.line_max:
            raise ProtocolError(TOO_LONG)
        if not self.arguments(at, stop, headed, &pub):
            raise ProtocolError(None)
        if pub.total > self.payload_max:
            raise ProtocolError(TOO_LARGE)
        if self.peer.pedantic:
            self.peer.on_pedantic(PyBytes_FromStringAndSize(pub.subject.at, pub.subject.size))
        if there > pub.total and rest[pub.total] != 13:
            raise ProtocolError(UNKNOWN)
        if there >= pub.total + 2:
            if rest[pub.total + 1] != 10:
                raise ProtocolError(UNKNOWN)
            self.route(&pub, rest)
            return rest + pub.total + 2
        self.args = PyBytes_FromStringAndSize(at, stop - at)
        self.headed = headed
        self.body = bytearray(PyBytes_FromStringAndSize(rest, there))
        self.state = PAYLOAD
        return end

    cdef bint arguments(self, const char *at, const char *stop, bint headed, Publication *pub):
        """Take `subject [reply] [header-size] size` apart; False when it is malformed."""
        cdef Span words[5]
        cdef Py_ssize_t fixed = 3 if headed else 2
        cdef Py_ssize_t count
        if headed and not self.peer.headers:
            return False
        count = split(at, stop, words, fixed + 1)
        if count != fixed and count != fixed + 1:
            return False
        pub.subject = words[0]
        pub.reply = words[1]
        if count == fixed:
            pub.reply.size = 0
        pub.total_digits = words[count - 1]
        pub.total = number(&words[count - 1])
        pub.header = 0
        if headed:
            pub.header_digits = words[count - 2]
            pub.header = number(&words[count - 2])
        return pub.total >= 0 and 0 <= pub.header <= pub.total

    cdef const char *resume_payload(self, const char *at, const char *end) except NULL:
        """Go on with a payload that was cut; where the next operation starts."""
        cdef Publication pub
        cdef bytes args = self.args
        cdef bytearray body = self.body
        cdef const char *start = PyBytes_AS_STRING(args)
        cdef Py_ssize_t missing
        if not self.arguments(start, start + PyBytes_GET_SIZE(args), self.headed, &pub):
            raise ProtocolError(None)  # the peer takes no headers any more
        missing = min(pub.total + 2 - len(body), end - at)
        body += PyBytes_FromStringAndSize(at, missing)
        if len(body) > pub.total and body[pub.total] != 13:
            raise ProtocolError(UNKNOWN)
        if len(body) == pub.total + 2:
            if body[pub.total + 1] != 10:
                raise ProtocolError(UNKNOWN)
            self.args, self.body, self.state = None, None, OPERATION
            self.route(&pub, PyByteArray_AS_STRING(body))
        return at + missing

    cdef route(self, Publication *pub, const char *body):
        """A whole message has arrived: check it, find its route, hand it on."""
        cdef Peer peer = self.peer
        cdef Route route = self.last
        cdef Py_ssize_t received = 0
        peer.in_msgs += 1
        peer.in_bytes += pub.total
        if self.table is not peer.table:
            self.table, route = peer.table, None
        if route is None or not route.live or not route.covers(pub.subject.at, pub.subject.size):
            route = self.table.lookup(pub.subject.at, pub.subject.size)
            if route is None:
                if not whole(pub.subject.at, pub.subject.at + pub.subject.size):
                    self.nowhere(pub)
                    return
                route = self.table.seek(pub.subject.at, pub.subject.size)
            self.last = route
        if peer.guarded or route.refused:
            if route.refused or not peer.may_publish(PyBytes_FromStringAndSize(pub.subject.at, pub.subject.size)):
                peer.refuse_publish(PyBytes_FromStringAndSize(pub.subject.at, pub.subject.size))
                return
        if pub.reply.size and not self.answerable(pub):
            peer.refuse_reply(PyBytes_FromStringAndSize(pub.reply.at, pub.reply.size))
            return
        if peer.verbose:
            peer.send(b"+OK\r\n")
        if not route.empty:
            received = self.table.spread(route, peer, pub, body, body + pub.header, None, None, None, None)
            peer.carried += received * (pub.total + pub.subject.size + pub.reply.size + LINE_BYTES)
        if received == 0 and pub.reply.size and peer.no_responders:
            peer.on_no_responders(
                PyBytes_FromStringAndSize(pub.subject.at, pub.subject.size),
                PyBytes_FromStringAndSize(pub.reply.at, pub.reply.size),
            )

    cdef inline bint answerable(self, Publication *pub) except -1:
        """Whether answers may be asked to this reply: it is not the server's own, and nothing that is denied."""
        if reserved(pub.reply.at, pub.reply.size):
            return False
        return not self.peer.guarded or self.peer.may_reply(PyBytes_FromStringAndSize(pub.reply.at, pub.reply.size))

    cdef nowhere(self, Publication *pub):
        """A subject with an empty token matches nothing; it is not worth a place in the cache."""
        cdef Peer peer = self.peer
        cdef bytes subject = PyBytes_FromStringAndSize(pub.subject.at, pub.subject.size)
        if subject.startswith(b"$NRG.") or subject.startswith(b"_GR_.") or (
            peer.guarded and not peer.may_publish(subject)
        ):
            peer.refuse_publish(subject)
            return
        if pub.reply.size and not self.answerable(pub):
            peer.refuse_reply(PyBytes_FromStringAndSize(pub.reply.at, pub.reply.size))
            return
        if peer.verbose:
            peer.send(b"+OK\r\n")
        if pub.reply.size and peer.no_responders:
            peer.on_no_responders(subject, PyBytes_FromStringAndSize(pub.reply.at, pub.reply.size))
