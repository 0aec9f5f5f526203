# cython: language_level=3
"""Parser, route cache and fan-out, compiled: parses publishes, finds their routes, writes them to each receiver's output.

Owns the framing of one client's input (`Parser`), the cache of routes (`RouteTable`) and the encoding of deliveries.
Invariant: however the input is split into chunks, the same operations happen in the same order. Must not know sockets,
clocks or the meaning of control operations, which the client's methods implement. `parser_pure` is the same in pure
Python; the same tests run on both.
"""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_GET_SIZE, PyByteArray_Resize
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.ref cimport PyObject
from libc.stdint cimport uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memchr, memcmp, memcpy, memset

from headrace._native.protocol_words cimport Span, asks_for_trace, blank, is_well_formed, split

import os

from headrace.errors import ProtocolError
from headrace._native.parser_pure import split_args

cdef extern from *:
    """
    #if PY_VERSION_HEX >= 0x030E0000
    #define hash_bytes(p, n) ((uint64_t)Py_HashBuffer((p), (n)))
    #else
    #if PY_VERSION_HEX >= 0x030D0000
    // Python 3.13 exports it, but declares it only in an internal header.
    PyAPI_FUNC(Py_hash_t) _Py_HashBytes(const void *, Py_ssize_t);
    #endif
    #define hash_bytes(p, n) ((uint64_t)_Py_HashBytes((p), (n)))
    #endif
    #define bytearray_capacity(o) (((PyByteArrayObject *)(o))->ob_alloc)
    """
    uint64_t hash_bytes(const char *p, Py_ssize_t n)
    Py_ssize_t bytearray_capacity(PyObject *o)

cdef enum:
    # What the key of a route covers: one subject, all children of a prefix, everything below two tokens.
    KEY_EXACT = 0
    KEY_PARENT = 1
    KEY_TWO_TOKENS = 2

cdef enum:
    # What the parser expects next: a control line, a payload, or the rest of a line to skip.
    OPERATION = 0
    PAYLOAD = 1
    JUNK = 2

cdef enum:
    DIGITS_MAX = 9
    VERB_MAX = 8
    # Payloads of at least this size are not copied for each of several receivers.
    SHARED_MIN = 16384
    # Approximate size of a line without subject and reply.
    LINE_BYTES = 24

UNKNOWN = "Unknown Protocol Operation"
TOO_LONG = "maximum control line exceeded"
TOO_LARGE = "Maximum Payload Violation"
UNAUTHORIZED = "Authorization Violation"
# Verbs, matched by prefix. A blank must follow BLANK_VERBS; FREE_VERBS accept anything up to the end of the line.
BLANK_VERBS = (b"PUB", b"SUB", b"HPUB", b"UNSUB", b"INFO", b"-ERR")
FREE_VERBS = (b"CONNECT", b"PING", b"PONG", b"+OK")


cdef list NO_RECEIVERS = []


cdef struct Publication:
    Span subject
    Span reply
    Span header_digits
    Span total_digits
    Py_ssize_t header
    Py_ssize_t total


cdef inline Py_ssize_t parse_digits(Span *digits) noexcept nogil:
    """Return the value of one to nine decimal digits, or -1."""
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


cdef inline bint is_reserved_reply(const char *at, Py_ssize_t size) noexcept nogil:
    """Return whether a reply subject belongs to the server itself; `$JS.<domain>.API.` is the API, too."""
    cdef const char *dot
    if size > 4 and at[0] == 95:
        return memcmp(at, b"_R_.", 4) == 0 or (size > 5 and memcmp(at, b"_GR_.", 5) == 0)
    if size <= 8 or at[0] != 36 or memcmp(at, b"$JS.", 4) != 0:
        return False
    if memcmp(at + 4, b"ACK.", 4) == 0 or memcmp(at + 4, b"API.", 4) == 0:
        return True
    dot = <const char *>memchr(at + 4, 46, size - 4)
    return dot != NULL and at + size - dot > 5 and memcmp(dot, b".API.", 5) == 0


cdef bint pattern_affects_key(const char *pattern, const char *pattern_end, const char *key, const char *key_end, int kind) noexcept nogil:
    """Return whether a pattern matches some subject that a cached key covers."""
    cdef const char *p
    cdef const char *k
    while True:
        if pattern >= pattern_end:
            return key >= key_end and kind == KEY_EXACT
        p = <const char *>memchr(pattern, 46, pattern_end - pattern)
        if p == NULL:
            p = pattern_end
        if p - pattern == 1 and pattern[0] == 62:
            return key < key_end or kind != KEY_EXACT
        if key >= key_end:
            if kind == KEY_EXACT:
                return False
            return kind == KEY_TWO_TOKENS or p == pattern_end
        k = <const char *>memchr(key, 46, key_end - key)
        if k == NULL:
            k = key_end
        if not (p - pattern == 1 and pattern[0] == 42):
            if p - pattern != k - key or memcmp(pattern, key, p - pattern) != 0:
                return False
        pattern, key = p + 1, k + 1


cdef inline char *write_digits(Py_ssize_t value, char *end) noexcept nogil:
    """Write a number so that it ends at `end`; return where it starts."""
    while True:
        end -= 1
        end[0] = <char>(48 + value % 10)
        value //= 10
        if value == 0:
            return end


cdef inline char *put(char *to, const char *data, Py_ssize_t size) noexcept nogil:
    memcpy(to, data, size)
    return to + size


cdef class ClientState:
    """What the parser and the fan-out know about one client: its output, its settings, its counters.

    Anyone may append to `buffer` and then call `mark_dirty()`. The `chunks` before it, `chunk_bytes` bytes in all, are
    payloads shared with other clients and what was written between them. A subclass implements control operations.
    `table` may be replaced by one with the same list of dirty clients. `fanout_bytes` is roughly what its messages
    added to all outputs. `traces_external`: any message with headers may have to be traced.
    """

    cdef public bytearray buffer
    cdef list chunks
    cdef readonly Py_ssize_t chunk_bytes
    cdef public bint headers, echo, verbose, pedantic, no_responders, authenticated, has_permissions, dirty
    cdef public bint traces_external
    cdef public long long in_msgs, in_bytes, out_msgs, out_bytes, fanout_bytes
    cdef public RouteTable table

    def __init__(self, RouteTable table not None):
        self.table = table
        self.buffer = bytearray()
        self.echo = self.verbose = self.pedantic = True

    cpdef mark_dirty(self):
        """Record that `buffer` has something to flush."""
        if not self.dirty:
            self.table.add_dirty(self)

    cpdef send(self, data):
        """Add bytes to the output."""
        self.buffer += data
        self.mark_dirty()

    cpdef bytearray drain(self):
        """Return the output and start a new one."""
        cdef bytearray buffer = self.buffer
        if self.chunk_bytes:
            return bytearray().join(self.drain_chunks())
        self.buffer = bytearray()
        self.dirty = False
        return buffer

    cpdef list drain_chunks(self):
        """Like `drain`, without joining the chunks."""
        cdef list chunks = self.chunks if self.chunk_bytes else []
        chunks.append(self.buffer)
        self.chunks = None
        self.chunk_bytes = 0
        self.buffer = bytearray()
        self.dirty = False
        return chunks

    cdef append_shared(self, bytes payload):
        """Append a payload that is shared with other clients."""
        if self.chunks is None:
            self.chunks = []
        self.chunks.append(self.buffer)
        self.chunks.append(payload)
        self.chunk_bytes += PyByteArray_GET_SIZE(self.buffer) + PyBytes_GET_SIZE(payload)
        self.buffer = bytearray()


cdef class Subscription:
    """One client's subscription: deliveries carry `sid`; `max_msgs` is the total number of deliveries (0: unlimited)."""

    cdef readonly ClientState client
    cdef readonly bytes pattern, queue, sid
    cdef public long long delivered, max_msgs
    cdef public bint closed, needs_check

    def __init__(self, ClientState client not None, bytes pattern not None, bytes queue, bytes sid not None):
        self.client = client
        self.pattern = pattern
        self.queue = queue
        self.sid = sid


cdef class Route:
    """The receivers of a subject. When interest changes it is invalidated (no receivers) and built again."""

    cdef readonly bytes key
    cdef readonly list subscribers, queue_groups, internal_subscribers
    cdef readonly int kind
    cdef readonly bint valid, publish_denied, empty
    cdef uint64_t hash

    def __init__(self, bytes key not None, int kind, list subscribers not None, list queue_groups not None, list internal_subscribers not None):
        self.key = key
        self.kind = kind
        self.subscribers = subscribers
        self.queue_groups = queue_groups
        self.internal_subscribers = internal_subscribers
        self.empty = not (subscribers or queue_groups or internal_subscribers)
        self.publish_denied = key.startswith(b"$NRG.") or key.startswith(b"_GR_.")
        self.valid = True
        self.hash = hash_bytes(PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key))

    cdef void invalidate(self) noexcept:
        """Drop all receivers, so that the route keeps no closed client alive."""
        self.valid = False
        self.empty = True
        self.subscribers = self.queue_groups = self.internal_subscribers = NO_RECEIVERS

    cdef inline bint covers(self, const char *at, Py_ssize_t size) noexcept:
        """Return whether this is the route of a subject."""
        cdef const char *key = PyBytes_AS_STRING(self.key)
        cdef Py_ssize_t length = PyBytes_GET_SIZE(self.key)
        if self.kind == KEY_EXACT:
            return size == length and memcmp(key, at, size) == 0
        if self.kind == KEY_TWO_TOKENS:
            length -= 1
        if size <= length or memcmp(key, at, length) != 0:
            return False
        if self.kind == KEY_PARENT:
            return memchr(at + length, 46, size - length) == NULL
        return is_well_formed(at + length, at + size)


cdef struct Slot:
    uint64_t hash
    PyObject *route


@cython.no_gc_clear  # `owned` must keep alive what the slots point at until `__dealloc__`
cdef class RouteTable:
    """Cached routes by subject, at most `size_max`; a miss calls `resolve`.

    Keys: a subject; `prefix.` for all its children; `one.two. ` (with a blank) for all below two tokens. `dirty` lists
    the clients whose output became non-empty; `wakeup` is called when the first one is added. Tables may share one such
    list.
    """

    cdef Slot *slots
    cdef set owned  # the routes in the slots, visible to the garbage collector
    cdef Py_ssize_t mask, used, used_max
    cdef Py_ssize_t hand  # the slot from which the next route is evicted
    cdef uint64_t random
    cdef readonly object resolve
    cdef readonly list dirty
    cdef public object wakeup

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

    cdef add_dirty(self, ClientState client):
        client.dirty = True
        self.dirty.append(client)
        if len(self.dirty) == 1 and self.wakeup is not None:
            self.wakeup()

    def __len__(self):
        return self.used

    def __contains__(self, bytes key not None):
        return self.find_slot(PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key)) >= 0

    cdef inline Py_ssize_t find_slot(self, const char *at, Py_ssize_t size) noexcept:
        """Return the slot of a key, or -1."""
        cdef uint64_t hash = hash_bytes(at, size)
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
        """Return the cached route of a subject, or None."""
        cdef Py_ssize_t i = self.find_slot(at, size), dot = size - 1, dots = 0
        cdef char head[258]
        cdef Route route
        if i >= 0:
            route = <Route>self.slots[i].route
            # `a.b.` as a subject is not well-formed; as a key it covers the children of `a.b`.
            return route if route.kind == KEY_EXACT else None
        while dot > 0 and at[dot] != 46:
            dot -= 1
        if dot <= 0 or dot == size - 1:
            return None
        i = self.find_slot(at, dot + 1)
        if i >= 0:
            return <Route>self.slots[i].route
        for i in range(min(dot + 1, 256)):
            if at[i] == 46:
                dots += 1
                if dots == 2:
                    memcpy(head, at, i + 1)
                    head[i + 1] = 32
                    dot = i + 1
                    i = self.find_slot(head, dot + 1)
                    if i >= 0 and is_well_formed(at + dot, at + size):
                        return <Route>self.slots[i].route
                    return None
        return None

    cdef Route find_or_resolve(self, const char *at, Py_ssize_t size):
        """Return the route of a well-formed subject, cached or resolved."""
        cdef Route route = self.lookup(at, size)
        if route is None:
            route = self.resolve(PyBytes_FromStringAndSize(at, size))
            self.insert(route)
        return route

    cdef insert(self, Route route):
        self.drop(route.key)
        if self.used >= self.used_max:
            self.evict()
        if self.used * 2 >= self.mask:
            self.grow()
        self.owned.add(route)
        self.insert_slot(route.hash, <PyObject *>route)
        self.used += 1

    cdef evict(self):
        """Drop one route, another one each time: to drop all at once would take long."""
        while self.slots[self.hand & self.mask].route == NULL:
            self.hand += 1
        self.remove(self.hand & self.mask)
        self.hand += 1

    cdef void insert_slot(self, uint64_t hash, PyObject *route) noexcept:
        """Put a route into the first free slot at or after the one of its hash."""
        cdef Py_ssize_t i = <Py_ssize_t>(hash & <uint64_t>self.mask)
        while self.slots[i].route != NULL:
            i = (i + 1) & self.mask
        self.slots[i].hash = hash
        self.slots[i].route = route

    cdef grow(self):
        """Double the number of slots."""
        cdef Slot *old = self.slots
        cdef Py_ssize_t room = self.mask + 1, i
        cdef Slot *slots = <Slot *>calloc(room * 2, sizeof(Slot))
        if slots == NULL:
            raise MemoryError()
        self.slots, self.mask = slots, room * 2 - 1
        for i in range(room):
            if old[i].route != NULL:
                self.insert_slot(old[i].hash, old[i].route)
        free(old)

    cdef remove(self, Py_ssize_t i):
        """Empty a slot and move up the routes after it that do not have the slot of their hash."""
        cdef Route route = <Route>self.slots[i].route
        cdef Py_ssize_t j = i, home
        route.invalidate()
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
        """Return the route of a well-formed subject."""
        return self.find_or_resolve(PyBytes_AS_STRING(subject), PyBytes_GET_SIZE(subject))

    cpdef drop(self, bytes key):
        """Drop one key."""
        cdef Py_ssize_t i = self.find_slot(PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key))
        if i >= 0:
            self.remove(i)

    def drop_matching(self, bytes pattern not None):
        """Drop every key that covers a subject the pattern matches."""
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
            if pattern_affects_key(at, end, key, key + size, route.kind):
                found.append(route)
        for route in found:
            self.drop(route.key)

    cpdef clear(self):
        """Drop every route."""
        cdef Py_ssize_t i
        for i in range(self.mask + 1):
            if self.slots[i].route != NULL:
                (<Route>self.slots[i].route).invalidate()
        memset(self.slots, 0, (self.mask + 1) * sizeof(Slot))
        self.used = 0
        self.owned.clear()

    cpdef Py_ssize_t publish(self, bytes subject, bytes reply, bytes header, bytes payload) except -1:
        """Publish from inside the server to all receivers; return their number."""
        return self.publish_for(None, subject, reply, header, payload)

    cpdef Py_ssize_t publish_for(self, ClientState source, bytes subject, bytes reply, bytes header, bytes payload) except -1:
        """Publish a client's message to all receivers; return their number."""
        cdef const char *at = PyBytes_AS_STRING(subject)
        cdef Route route = self.lookup(at, PyBytes_GET_SIZE(subject))
        if route is None:
            if not is_well_formed(at, at + PyBytes_GET_SIZE(subject)):
                return 0
            route = self.find_or_resolve(at, PyBytes_GET_SIZE(subject))
        return self.publish_on_route(route, source, subject, reply, header, payload)

    def publish_many(self, messages):
        """Call `publish` for each (subject, reply, header, payload)."""
        cdef bytes subject, reply, header, payload
        failure = None
        for subject, reply, header, payload in messages:
            try:
                self.publish(subject, reply, header, payload)
            except Exception as error:  # an error of one receiver must not affect others
                failure = failure or error
        if failure is not None:
            raise failure

    cpdef Py_ssize_t deliver(self, Route route, bytes subject, bytes reply, bytes header, bytes payload) except -1:
        """Send along a route with this subject; return the number of receivers."""
        return self.publish_on_route(route, None, subject, reply, header, payload)

    cdef Py_ssize_t publish_on_route(self, Route route, ClientState source, bytes subject, bytes reply, bytes header,
                          bytes payload) except -1:
        cdef Publication pub
        cdef char digits[48]
        cdef char *at
        if route.empty:
            return 0
        pub.subject.at, pub.subject.size = PyBytes_AS_STRING(subject), PyBytes_GET_SIZE(subject)
        pub.reply.at, pub.reply.size = PyBytes_AS_STRING(reply), PyBytes_GET_SIZE(reply)
        pub.header, pub.total = PyBytes_GET_SIZE(header), PyBytes_GET_SIZE(header) + PyBytes_GET_SIZE(payload)
        at = write_digits(pub.header, digits + 24)
        pub.header_digits.at, pub.header_digits.size = at, digits + 24 - at
        at = write_digits(pub.total, digits + 48)
        pub.total_digits.at, pub.total_digits.size = at, digits + 48 - at
        return self.fan_out(route, source, &pub, PyBytes_AS_STRING(header), PyBytes_AS_STRING(payload),
                           subject, reply, header, payload)

    cdef Py_ssize_t fan_out(self, Route route, ClientState source, Publication *pub, const char *header, const char *payload,
                           bytes subject, bytes reply, bytes block, bytes body) except -1:
        """Write a message to all receivers of a route. The last four arguments are its parts as objects, or None: all, or without the first three."""
        cdef Py_ssize_t received = 0, i, j, start, count
        cdef Subscription sub
        cdef ClientState muted = source if source is not None and not source.echo else None
        cdef list subscribers = route.subscribers, queue_groups = route.queue_groups, internal_subscribers = route.internal_subscribers, group
        cdef bytes shared = None
        if pub.total - pub.header >= SHARED_MIN and len(subscribers) > 1:
            shared = PyBytes_FromStringAndSize(payload, pub.total - pub.header) if body is None else body
        for i in range(len(subscribers)):
            sub = <Subscription>subscribers[i]
            if sub.client is muted or sub.closed:
                continue
            received += self.write_to(sub, pub, header, payload, shared)
        if queue_groups:
            for group in queue_groups:
                count = len(group)
                if count == 0:
                    continue
                self.random ^= self.random << 13
                self.random ^= self.random >> 7
                self.random ^= self.random << 17
                start = <Py_ssize_t>((self.random >> 33) % <uint64_t>count)
                for j in range(count):
                    sub = <Subscription>group[(start + j) % count]
                    if sub.client is muted or sub.closed:
                        continue
                    if self.write_to(sub, pub, header, payload, shared):
                        received += 1
                        break
        if internal_subscribers:
            if subject is None:
                if route.kind == KEY_EXACT:
                    subject = route.key
                else:
                    subject = PyBytes_FromStringAndSize(pub.subject.at, pub.subject.size)
                reply = PyBytes_FromStringAndSize(pub.reply.at, pub.reply.size)
                block = PyBytes_FromStringAndSize(header, pub.header)
                if body is None:
                    body = PyBytes_FromStringAndSize(payload, pub.total - pub.header)
            for subscriber in internal_subscribers:
                count_there = subscriber.on_message(source, subject, reply, block, body)
                received += 1 if count_there is None else <Py_ssize_t>count_there
        return received

    cdef Py_ssize_t write_to(self, Subscription sub, Publication *pub, const char *header, const char *payload,
                         bytes shared) except -1:
        """Write a message to one receiver's output: MSG, or HMSG if it has headers and the client wants them.

        `shared` is the payload as an object if it is large and other receivers get it too, otherwise None.
        """
        cdef ClientState client = sub.client
        cdef Py_ssize_t body = pub.total - pub.header
        cdef Py_ssize_t sid = PyBytes_GET_SIZE(sub.sid)
        cdef Py_ssize_t room, size
        cdef bint headed = pub.header > 0 and client.headers
        cdef char scratch[24]
        cdef Span digits = pub.total_digits
        cdef char *to
        if sub.needs_check and not client.may_deliver(
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
            digits.at = write_digits(body, scratch + 24)
            digits.size = scratch + 24 - digits.at
        room += digits.size
        size = PyByteArray_GET_SIZE(client.buffer)
        if size + room >= bytearray_capacity(<PyObject *>client.buffer):
            PyByteArray_Resize(client.buffer, 2 * (size + room))
        PyByteArray_Resize(client.buffer, size + room)
        to = PyByteArray_AS_STRING(client.buffer) + size
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
            client.append_shared(shared)
            client.buffer += b"\r\n"
        if not client.dirty:
            self.add_dirty(client)
        client.out_msgs += 1
        client.out_bytes += body + pub.header if headed else body
        sub.delivered += 1
        if sub.max_msgs and sub.delivered >= sub.max_msgs:
            client.on_max_msgs(sub)
        return 1


cdef class Parser:
    """Parses one client's bytes: publishes go straight along their routes, other operations to the client.

    Between two chunks it keeps an unfinished control line (at most `line_max` of arguments) or an unfinished payload
    (at most `payload_max`), never more. It must not be fed after a ProtocolError.
    """

    cdef readonly ClientState client
    cdef Py_ssize_t line_max
    cdef public Py_ssize_t payload_max
    cdef RouteTable table
    cdef Route last
    cdef bytearray line
    cdef bytes args, skipped_verb
    # The parts of an unfinished message in their final size, so that each byte is copied once; `filled` counts received
    # bytes, those of the line end too.
    cdef bytes header, payload
    cdef Py_ssize_t filled
    cdef int state
    cdef bint headed

    def __init__(self, ClientState client not None, Py_ssize_t line_max=4096, Py_ssize_t payload_max=1048576):
        self.client = client
        self.table = client.table
        self.line_max = line_max
        self.payload_max = payload_max

    @property
    def buffered_bytes(self):
        """Number of bytes kept until more arrive."""
        return (len(self.line) if self.line is not None else 0) + (
            self.filled + len(self.args) if self.args is not None else 0)

    def feed(self, data, Py_ssize_t size=-1):
        """Parse the next chunk (`size` bytes of `data`); raise ProtocolError if the client must be disconnected."""
        cdef Py_buffer view
        # Locked while it is parsed: a callback that resizes it meanwhile gets a BufferError.
        PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
        try:
            if size > view.len:
                raise ValueError("the size is larger than the chunk")
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
                self.control(self.skipped_verb, b"")
                continue
            if not self.client.authenticated and self.line is None and at[0] != 67 and at[0] != 99:
                raise ProtocolError(UNAUTHORIZED)
            if self.line is not None:
                line = self.line
                line += PyBytes_FromStringAndSize(at, (end if stop == NULL else stop) - at)
                if stop == NULL:
                    self.buffer_line(line)
                    return
                self.line = None
                at = self.operation(PyByteArray_AS_STRING(line), PyByteArray_AS_STRING(line) + len(line), stop + 1, end)
            elif stop == NULL:
                self.buffer_line(bytearray(PyBytes_FromStringAndSize(at, end - at)))
                return
            else:
                at = self.operation(at, stop, stop + 1, end)

    cdef buffer_line(self, bytearray line):
        """Keep an unfinished line if it may still become valid and is short enough."""
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
            self.line, self.state, self.skipped_verb = None, JUNK, known
            return
        args = line[len(known):].lstrip(b" \t")
        if len(args) - args.endswith(b"\r") > self.line_max:
            raise ProtocolError(TOO_LONG)
        if len(args) + len(known) + 1 < len(line):
            self.line = bytearray(known) + b" " + args

    cdef const char *operation(self, const char *at, const char *stop, const char *rest, const char *end) except NULL:
        """Process one complete control line from `at` to `stop`; return where the next one starts, from `rest` on."""
        cdef Py_ssize_t size = stop - at
        if size > 4 and blank(at[3]) and at[3] != 13 and (
            (at[0] == 80 and at[1] == 85 and at[2] == 66) or
            ((at[0] | 32) == 112 and (at[1] | 32) == 117 and (at[2] | 32) == 98)
        ):
            return self.parse_publish(at + 4, stop, rest, end, False)
        if size > 5 and blank(at[4]) and at[4] != 13 and (
            (at[0] | 32) == 104 and (at[1] | 32) == 112 and (at[2] | 32) == 117 and (at[3] | 32) == 98
        ):
            return self.parse_publish(at + 5, stop, rest, end, True)
        self.handle_control_line(PyBytes_FromStringAndSize(at, size))
        return rest

    cdef handle_control_line(self, bytes line):
        """Process a control line other than PUB and HPUB."""
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
        """Pass a control operation to the client."""
        if verb == b"PING":
            self.client.on_ping()
        elif verb == b"PONG":
            self.client.on_pong()
        elif verb == b"SUB":
            words = split_args(args)
            if len(words) == 2:
                self.client.on_sub(words[0], None, words[1])
            elif len(words) == 3:
                self.client.on_sub(words[0], words[1], words[2])
            else:
                raise ProtocolError(None)
        elif verb == b"UNSUB":
            words = split_args(args)
            if not 1 <= len(words) <= 2:
                raise ProtocolError(None)
            self.client.on_unsub(words[0], words[1] if len(words) == 2 else None)
        elif verb == b"CONNECT":
            self.client.on_connect(args)
        elif verb == b"-ERR" or verb == b"PUB" or verb == b"HPUB":
            raise ProtocolError(None)

    cdef const char *parse_publish(self, const char *at, const char *stop, const char *rest, const char *end,
                                 bint headed) except NULL:
        """Process PUB or HPUB: arguments from `at` to `stop`; the payload, as far as received, from `rest` to `end`."""
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
        if self.client.pedantic:
            self.client.on_pedantic_publish(PyBytes_FromStringAndSize(pub.subject.at, pub.subject.size))
        if there > pub.total and rest[pub.total] != 13:
            raise ProtocolError(UNKNOWN)
        if there >= pub.total + 2:
            if rest[pub.total + 1] != 10:
                raise ProtocolError(UNKNOWN)
            self.publish(&pub, rest, rest + pub.header, None)
            return rest + pub.total + 2
        self.args = PyBytes_FromStringAndSize(at, stop - at)
        self.headed = headed
        self.header = PyBytes_FromStringAndSize(NULL, pub.header)
        self.payload = PyBytes_FromStringAndSize(NULL, pub.total - pub.header)
        self.filled = 0
        self.state = PAYLOAD
        return self.fill(rest, end)

    cdef bint arguments(self, const char *at, const char *stop, bint headed, Publication *pub):
        """Parse `subject [reply] [header-size] size`; return False if it is malformed."""
        cdef Span words[5]
        cdef Py_ssize_t fixed = 3 if headed else 2
        cdef Py_ssize_t count
        if headed and not self.client.headers:
            return False
        count = split(at, stop, words, fixed + 1)
        if count != fixed and count != fixed + 1:
            return False
        pub.subject = words[0]
        pub.reply = words[1]
        if count == fixed:
            pub.reply.size = 0
        pub.total_digits = words[count - 1]
        pub.total = parse_digits(&words[count - 1])
        pub.header = 0
        if headed:
            pub.header_digits = words[count - 2]
            pub.header = parse_digits(&words[count - 2])
        return pub.total >= 0 and 0 <= pub.header <= pub.total

    cdef const char *resume_payload(self, const char *at, const char *end) except NULL:
        """Continue with an incomplete payload; return where the next operation starts."""
        cdef Publication pub
        cdef bytes args = self.args, header, payload
        cdef const char *start = PyBytes_AS_STRING(args)
        if not self.arguments(start, start + PyBytes_GET_SIZE(args), self.headed, &pub):
            raise ProtocolError(None)  # the client has disabled headers meanwhile
        at = self.fill(at, end)
        if self.filled == pub.total + 2:
            header, payload = self.header, self.payload
            self.args = self.header = self.payload = None
            self.state = OPERATION
            self.publish(&pub, PyBytes_AS_STRING(header), PyBytes_AS_STRING(payload), payload)
        return at

    cdef const char *fill(self, const char *at, const char *end) except NULL:
        """Copy what was received of an unfinished message, up to its line end; return where the rest starts."""
        cdef Py_ssize_t header = PyBytes_GET_SIZE(self.header)
        cdef Py_ssize_t total = header + PyBytes_GET_SIZE(self.payload), size
        if self.filled < header:
            size = min(header - self.filled, end - at)
            memcpy(PyBytes_AS_STRING(self.header) + self.filled, at, size)
            at += size
            self.filled += size
        if header <= self.filled < total:
            size = min(total - self.filled, end - at)
            memcpy(PyBytes_AS_STRING(self.payload) + self.filled - header, at, size)
            at += size
            self.filled += size
        while at < end and total <= self.filled < total + 2:
            if at[0] != (13 if self.filled == total else 10):
                raise ProtocolError(UNKNOWN)
            at += 1
            self.filled += 1
        return at

    cdef publish(self, Publication *pub, const char *header, const char *payload, bytes body):
        """Process a complete message: check it, find its route, fan it out. `body` is the payload as an object, or None."""
        cdef ClientState client = self.client
        cdef Route route = self.last
        cdef Py_ssize_t received = 0
        client.in_msgs += 1
        client.in_bytes += pub.total
        if pub.header > 0 and (client.traces_external or asks_for_trace(header, pub.header)):
            if self.publish_traced(pub, header, payload):
                return
        if self.table is not client.table:
            self.table, route = client.table, None
        if route is None or not route.valid or not route.covers(pub.subject.at, pub.subject.size):
            route = self.table.lookup(pub.subject.at, pub.subject.size)
            if route is None:
                if not is_well_formed(pub.subject.at, pub.subject.at + pub.subject.size):
                    self.on_malformed_subject(pub)
                    return
                route = self.table.find_or_resolve(pub.subject.at, pub.subject.size)
            self.last = route
        if client.has_permissions or route.publish_denied:
            if route.publish_denied or not client.may_publish(PyBytes_FromStringAndSize(pub.subject.at, pub.subject.size)):
                client.deny_publish(PyBytes_FromStringAndSize(pub.subject.at, pub.subject.size))
                return
        if pub.reply.size and not self.may_use_reply(pub):
            client.deny_reply(PyBytes_FromStringAndSize(pub.reply.at, pub.reply.size))
            return
        if client.verbose:
            client.send(b"+OK\r\n")
        if not route.empty:
            received = self.table.fan_out(route, client, pub, header, payload, None, None, None, body)
            client.fanout_bytes += received * (pub.total + pub.subject.size + pub.reply.size + LINE_BYTES)
        if received == 0 and pub.reply.size and client.no_responders:
            client.on_no_responders(
                PyBytes_FromStringAndSize(pub.subject.at, pub.subject.size),
                PyBytes_FromStringAndSize(pub.reply.at, pub.reply.size),
            )

    cdef bint publish_traced(self, Publication *pub, const char *header, const char *payload) except -1:
        """Publish a message that may have to be traced; return False, without any effect, if it need not be."""
        return self.client.on_traced_publish(
            PyBytes_FromStringAndSize(pub.subject.at, pub.subject.size),
            PyBytes_FromStringAndSize(pub.reply.at, pub.reply.size),
            PyBytes_FromStringAndSize(header, pub.header),
            PyBytes_FromStringAndSize(payload, pub.total - pub.header),
        )

    cdef inline bint may_use_reply(self, Publication *pub) except -1:
        """Return whether the client may use this reply subject: it is neither reserved for the server nor denied."""
        if is_reserved_reply(pub.reply.at, pub.reply.size):
            return False
        return not self.client.has_permissions or self.client.may_reply(PyBytes_FromStringAndSize(pub.reply.at, pub.reply.size))

    cdef on_malformed_subject(self, Publication *pub):
        """Handle a subject with an empty token: it matches nothing and is not cached."""
        cdef ClientState client = self.client
        cdef bytes subject = PyBytes_FromStringAndSize(pub.subject.at, pub.subject.size)
        if subject.startswith(b"$NRG.") or subject.startswith(b"_GR_.") or (
            client.has_permissions and not client.may_publish(subject)
        ):
            client.deny_publish(subject)
            return
        if pub.reply.size and not self.may_use_reply(pub):
            client.deny_reply(PyBytes_FromStringAndSize(pub.reply.at, pub.reply.size))
            return
        if client.verbose:
            client.send(b"+OK\r\n")
        if pub.reply.size and client.no_responders:
            client.on_no_responders(subject, PyBytes_FromStringAndSize(pub.reply.at, pub.reply.size))
