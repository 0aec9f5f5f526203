"""Parser, route cache and fan-out in pure Python, with the names and behaviour of the compiled `parser`.

Owns the framing of one client's input (`Parser`), the cache of routes (`RouteTable`) and the encoding of deliveries. It
is used where the compiled version was not built, and documents in readable form what that version does.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple

from headrace._native.reserved_subjects import is_reserved_reply
from headrace.errors import ProtocolError

KEY_EXACT: Final = 0
KEY_PARENT: Final = 1
KEY_TWO_TOKENS: Final = 2

UNKNOWN = "Unknown Protocol Operation"
TOO_LONG = "maximum control line exceeded"
TOO_LARGE = "Maximum Payload Violation"
UNAUTHORIZED = "Authorization Violation"
BLANK_VERBS = (b"PUB", b"SUB", b"HPUB", b"UNSUB", b"INFO", b"-ERR")
FREE_VERBS = (b"CONNECT", b"PING", b"PONG", b"+OK")
VERBS = FREE_VERBS + BLANK_VERBS
ARGLESS = (b"PING", b"PONG", b"+OK")
TRACE_DEST = b"Nats-Trace-Dest"
DENIED_PREFIXES = (b"$NRG.", b"_GR_.")
#: Payloads of at least this size are not copied for each of several receivers.
SHARED_MIN = 16384
LINE_BYTES = 24  # approximate size of a line without subject and reply
DIGITS_MAX = 9
VERB_MAX = 8
_TO_SPACES = bytes.maketrans(b"\t\r", b"  ")


class Publication(NamedTuple):
    """The control line of a publish: sizes as the client wrote them, and as numbers. `total_size` is header and payload."""

    subject: bytes
    reply: bytes
    header_digits: bytes
    total_digits: bytes
    header_size: int
    total_size: int


def split_args(line: bytes) -> list[bytes]:
    """Split a line into words at space, tab and carriage return; `split` alone knows two more separators."""
    if b"\x0b" in line or b"\x0c" in line:
        return [word for word in line.translate(_TO_SPACES).split(b" ") if word]
    return line.split()


def parse_digits(digits: bytes) -> int:
    """Return the value of one to nine decimal digits, or -1."""
    return int(digits) if len(digits) <= DIGITS_MAX and digits.isdigit() else -1


def is_well_formed(subject: bytes) -> bool:
    """Return whether no token between dots is empty."""
    return b"" not in subject.split(b".")


def pattern_affects_key(pattern: list[bytes], key: list[bytes], kind: int) -> bool:
    """Return whether a pattern matches some subject that a cached key covers."""
    for position, token in enumerate(pattern):
        more = position < len(key)
        if token == b">":
            return more or kind != KEY_EXACT
        if not more:
            return kind == KEY_TWO_TOKENS or (kind == KEY_PARENT and position == len(pattern) - 1)
        if token not in (b"*", key[position]):
            return False
    return len(pattern) == len(key) and kind == KEY_EXACT


class ClientState:
    """What the parser and the fan-out know about one client: its output, its settings, its counters.

    Anyone may append to `buffer` and then call `mark_dirty()`. The `chunks` before it, `chunk_bytes` bytes in all, are
    payloads shared with other clients and what was written between them. A subclass implements control operations.
    `table` may be replaced by one with the same list of dirty clients. `fanout_bytes` is roughly what its messages
    added to all outputs. `traces_external`: any message with headers may have to be traced.
    """

    __slots__ = (
        "authenticated",
        "buffer",
        "chunk_bytes",
        "chunks",
        "dirty",
        "echo",
        "fanout_bytes",
        "has_permissions",
        "headers",
        "in_bytes",
        "in_msgs",
        "no_responders",
        "out_bytes",
        "out_msgs",
        "pedantic",
        "table",
        "traces_external",
        "verbose",
    )

    def __init__(self, table: RouteTable) -> None:
        self.table = table
        self.buffer = bytearray()
        self.chunks: list[bytes | bytearray] = []
        self.chunk_bytes = 0
        self.echo = self.verbose = self.pedantic = True
        self.headers = self.no_responders = self.authenticated = self.has_permissions = self.dirty = False
        self.traces_external = False
        self.in_msgs = self.in_bytes = self.out_msgs = self.out_bytes = self.fanout_bytes = 0

    def mark_dirty(self) -> None:
        """Record that `buffer` has something to flush."""
        if not self.dirty:
            self.dirty = True
            self.table.add_dirty(self)

    def send(self, data: bytes | bytearray) -> None:
        """Add bytes to the output."""
        self.buffer += data
        self.mark_dirty()

    def drain(self) -> bytearray:
        """Return the output and start a new one."""
        if self.chunk_bytes:
            return bytearray().join(self.drain_chunks())
        buffer, self.buffer = self.buffer, bytearray()
        self.dirty = False
        return buffer

    def drain_chunks(self) -> list[bytes | bytearray]:
        """Like `drain`, without joining the chunks."""
        chunks = [*self.chunks, self.buffer]
        self.buffer, self.chunks, self.chunk_bytes = bytearray(), [], 0
        self.dirty = False
        return chunks

    def append_shared(self, payload: bytes) -> None:
        """Append a payload that is shared with other clients."""
        self.chunks += (self.buffer, payload)
        self.chunk_bytes += len(self.buffer) + len(payload)
        self.buffer = bytearray()


class Subscription:
    """One client's subscription: deliveries carry `sid`; `max_msgs` is the total number of deliveries (0: unlimited)."""

    __slots__ = ("client", "closed", "delivered", "max_msgs", "needs_check", "pattern", "queue", "sid")

    def __init__(self, client: ClientState, pattern: bytes, queue: bytes | None, sid: bytes) -> None:
        self.client: Any = client
        self.pattern = pattern
        self.queue = queue
        self.sid = sid
        self.delivered = self.max_msgs = 0
        self.closed = self.needs_check = False


class Route:
    """The receivers of a subject. When interest changes it is invalidated (no receivers) and built again."""

    __slots__ = (
        "empty",
        "internal_subscribers",
        "key",
        "kind",
        "publish_denied",
        "queue_groups",
        "subscribers",
        "valid",
    )

    def __init__(
        self,
        key: bytes,
        kind: int,
        subscribers: list[Any],
        queue_groups: list[list[Any]],
        internal_subscribers: list[Any],
    ) -> None:
        self.key = key
        self.kind = kind
        self.subscribers = subscribers
        self.queue_groups = queue_groups
        self.internal_subscribers = internal_subscribers
        self.empty = not (subscribers or queue_groups or internal_subscribers)
        self.publish_denied = key.startswith(DENIED_PREFIXES)
        self.valid = True

    def invalidate(self) -> None:
        """Drop all receivers, so that the route keeps no closed client alive."""
        self.valid, self.empty = False, True
        self.subscribers, self.queue_groups, self.internal_subscribers = [], [], []


class RouteTable:
    """Cached routes by subject, at most `size_max`; a miss calls `resolve`.

    Keys: a subject; `prefix.` for all its children; `one.two. ` (with a blank) for all below two tokens. `dirty` lists
    the clients whose output became non-empty; `wakeup` is called when the first one is added. Tables may share one such
    list.
    """

    __slots__ = ("_routes", "_size_max", "dirty", "resolve", "wakeup")

    def __init__(
        self, resolve: Callable[[bytes], Route], size_max: int = 16384, dirty: list[Any] | None = None
    ) -> None:
        self.resolve = resolve
        self.dirty: list[Any] = [] if dirty is None else dirty
        self.wakeup: Callable[[], None] | None = None
        self._routes: dict[bytes, Route] = {}
        self._size_max = size_max

    def add_dirty(self, client: ClientState) -> None:
        self.dirty.append(client)
        if len(self.dirty) == 1 and self.wakeup is not None:
            self.wakeup()

    def __len__(self) -> int:
        return len(self._routes)

    def __contains__(self, key: bytes) -> bool:
        return key in self._routes

    def lookup(self, subject: bytes) -> Route | None:
        """Return the cached route of a subject, or None."""
        route = self._routes.get(subject)
        if route is not None:
            # `a.b.` as a subject is not well-formed; as a key it covers the children of `a.b`.
            return route if route.kind == KEY_EXACT else None
        dot = subject.rfind(b".")
        if dot <= 0 or dot == len(subject) - 1:
            return None
        route = self._routes.get(subject[: dot + 1])
        if route is not None:
            return route
        second = subject.find(b".", subject.find(b".") + 1)
        if second < 0:
            return None
        route = self._routes.get(subject[: second + 1] + b" ")
        return route if route is not None and is_well_formed(subject[second + 1 :]) else None

    def find(self, subject: bytes) -> Route:
        """Return the route of a well-formed subject."""
        route = self.lookup(subject)
        if route is None:
            route = self.resolve(subject)
            if len(self._routes) >= self._size_max:
                self.drop(next(iter(self._routes)))
            self._routes[route.key] = route
        return route

    def drop(self, key: bytes) -> None:
        """Drop one key."""
        route = self._routes.pop(key, None)
        if route is not None:
            route.invalidate()

    def drop_matching(self, pattern: bytes) -> None:
        """Drop every key that covers a subject the pattern matches."""
        tokens = pattern.split(b".")
        for route in list(self._routes.values()):
            if pattern_affects_key(tokens, route.key[: len(route.key) - route.kind].split(b"."), route.kind):
                self.drop(route.key)

    def clear(self) -> None:
        """Drop every route."""
        for route in self._routes.values():
            route.invalidate()
        self._routes.clear()

    def publish(self, subject: bytes, reply: bytes, header: bytes, payload: bytes) -> int:
        """Publish from inside the server to all receivers; return their number."""
        return self.publish_for(None, subject, reply, header, payload)

    def publish_for(
        self, source: ClientState | None, subject: bytes, reply: bytes, header: bytes, payload: bytes
    ) -> int:
        """Publish a client's message to all receivers; return their number."""
        if not is_well_formed(subject):
            return 0
        return self._publish_on_route(self.find(subject), source, subject, reply, header, payload)

    def publish_many(self, messages: Iterable[tuple[bytes, bytes, bytes, bytes]]) -> None:
        """Call `publish` for each (subject, reply, header, payload)."""
        failure: Exception | None = None
        for subject, reply, header, payload in messages:
            try:
                self.publish(subject, reply, header, payload)
            except Exception as error:  # an error of one receiver must not affect others
                failure = failure or error
        if failure is not None:
            raise failure

    def deliver(self, route: Route, subject: bytes, reply: bytes, header: bytes, payload: bytes) -> int:
        """Send along a route with this subject; return the number of receivers."""
        return self._publish_on_route(route, None, subject, reply, header, payload)

    def _publish_on_route(
        self,
        route: Route,
        source: ClientState | None,
        subject: bytes,
        reply: bytes,
        header: bytes,
        payload: bytes,
    ) -> int:
        if route.empty:
            return 0
        size = len(header)
        total = size + len(payload)
        pub = Publication(subject, reply, b"%d" % size, b"%d" % total, size, total)
        return self.fan_out(route, source, pub, header, payload)

    def fan_out(
        self, route: Route, source: ClientState | None, pub: Publication, header: bytes, payload: bytes
    ) -> int:
        """Write a message to all receivers of a route."""
        received = 0
        muted = source if source is not None and not source.echo else None
        subscribers, queue_groups = route.subscribers, route.queue_groups
        internal_subscribers = route.internal_subscribers
        shared = len(payload) >= SHARED_MIN and len(subscribers) > 1
        for sub in subscribers:
            if sub.client is not muted and not sub.closed:
                received += self._write_to(sub, pub, header, payload, shared)
        for group in filter(None, queue_groups):
            start = random.randrange(len(group))
            for sub in group[start:] + group[:start]:
                if sub.client is muted or sub.closed:
                    continue
                if self._write_to(sub, pub, header, payload, shared):
                    received += 1
                    break
        for subscriber in internal_subscribers:
            count = subscriber.on_message(source, pub.subject, pub.reply, header, payload)
            received += 1 if count is None else count
        return received

    def _write_to(
        self, sub: Subscription, pub: Publication, header: bytes, payload: bytes, shared: bool
    ) -> int:
        """Write a message to one receiver's output: MSG, or HMSG if it has headers and the client wants them."""
        client = sub.client
        subject, reply, header_digits, total_digits, header_size, total = pub
        if sub.needs_check and not client.may_deliver(sub, subject, reply):
            return 0
        target = b"%s %s %s " % (subject, sub.sid, reply) if reply else b"%s %s " % (subject, sub.sid)
        if header_size and client.headers:
            client.buffer += b"HMSG %s%s %s\r\n%s" % (target, header_digits, total_digits, header)
            client.out_bytes += total
        else:
            digits = b"%d" % len(payload) if header_size else total_digits
            client.buffer += b"MSG %s%s\r\n" % (target, digits)
            client.out_bytes += len(payload)
        if shared:
            client.append_shared(payload)
        else:
            client.buffer += payload
        client.buffer += b"\r\n"
        client.mark_dirty()
        client.out_msgs += 1
        sub.delivered += 1
        if sub.max_msgs and sub.delivered >= sub.max_msgs:
            client.on_max_msgs(sub)
        return 1


class Parser:
    """Parses one client's bytes: publishes go straight along their routes, other operations to the client.

    Between two chunks it keeps an unfinished control line (at most `line_max` of arguments) or an unfinished payload
    (at most `payload_max`), never more. It must not be fed after a ProtocolError.
    """

    __slots__ = ("_body", "_line", "_line_max", "_pub", "_skipped_verb", "client", "payload_max")

    def __init__(self, client: ClientState, line_max: int = 4096, payload_max: int = 1048576) -> None:
        self.client: Any = client
        self._line_max = line_max
        self.payload_max = payload_max
        self._line = bytearray()
        self._skipped_verb = b""
        self._pub: Publication | None = None
        self._body = bytearray()

    @property
    def buffered_bytes(self) -> int:
        """Number of bytes kept until more arrive."""
        return len(self._line) + len(self._body)

    def feed(self, data: bytes | bytearray | memoryview, size: int = -1) -> None:
        """Parse the next chunk (`size` bytes of `data`); raise ProtocolError if the client must be disconnected."""
        if size > len(data):
            raise ValueError("the size is larger than the chunk")
        chunk = bytes(data) if size < 0 else bytes(memoryview(data)[:size])
        at, end = 0, len(chunk)
        while at < end:
            if self._pub is not None:
                at = self._read_payload(self._pub, chunk, at)
                continue
            stop = chunk.find(b"\n", at)
            if self._skipped_verb:
                if stop < 0:
                    return
                at, verb, self._skipped_verb = stop + 1, self._skipped_verb, b""
                self._control(verb, b"")
                continue
            if not self.client.authenticated and not self._line and chunk[at] not in b"Cc":
                raise ProtocolError(UNAUTHORIZED)
            self._line += chunk[at:] if stop < 0 else chunk[at:stop]
            if stop < 0:
                self._buffer_line()
                return
            line, self._line, at = bytes(self._line), bytearray(), stop + 1
            self._operation(line)

    def _buffer_line(self) -> None:
        """Keep an unfinished line if it may still become valid and is short enough."""
        line = self._line
        start = bytes(line[:VERB_MAX]).upper()
        verb = next((verb for verb in VERBS if start.startswith(verb)), None)
        if verb is None:
            if any(verb.startswith(start) for verb in VERBS):
                return
            raise ProtocolError(UNKNOWN)
        if verb in ARGLESS:
            self._line, self._skipped_verb = bytearray(), verb
            return
        self._line = bytearray(verb) + self._blank_after(verb, bytes(line)) + self._arguments(verb, line)

    @staticmethod
    def _blank_after(verb: bytes, line: bytes) -> bytes:
        """Return the blank after a verb; most verbs require it."""
        found = line[len(verb) : len(verb) + 1]
        if found in (b"", b" ", b"\t"):
            return found
        if verb in BLANK_VERBS:
            raise ProtocolError(UNKNOWN)
        return b""

    def _arguments(self, verb: bytes, line: bytes | bytearray) -> bytes:
        """Return what follows the blanks after a verb, of bounded length."""
        args = bytes(line[len(verb) :].lstrip(b" \t"))
        if len(args) - args.endswith(b"\r") > self._line_max:
            raise ProtocolError(TOO_LONG)
        return args

    def _operation(self, line: bytes) -> None:
        """Process one complete control line, without its line feed."""
        start = line[:VERB_MAX].upper()
        verb = next((verb for verb in VERBS if start.startswith(verb)), None)
        if verb is None or (verb in BLANK_VERBS and not self._blank_after(verb, line)):
            raise ProtocolError(UNKNOWN)
        if verb in ARGLESS:
            self._control(verb, b"")
            return
        args = self._arguments(verb, line).removesuffix(b"\r")
        if verb == b"PUB" or verb == b"HPUB":
            self._parse_publish(split_args(args), verb == b"HPUB")
        else:
            self._control(verb, args)

    def _control(self, verb: bytes, args: bytes) -> None:
        """Pass a control operation to the client."""
        if verb == b"PING":
            self.client.on_ping()
        elif verb == b"PONG":
            self.client.on_pong()
        elif verb == b"SUB":
            self._sub(split_args(args))
        elif verb == b"UNSUB":
            words = split_args(args)
            if not 1 <= len(words) <= 2:
                raise ProtocolError(None)
            self.client.on_unsub(words[0], words[1] if len(words) == 2 else None)
        elif verb == b"CONNECT":
            self.client.on_connect(args)
        elif verb == b"-ERR":
            raise ProtocolError(None)

    def _sub(self, words: list[bytes]) -> None:
        if not 2 <= len(words) <= 3:
            raise ProtocolError(None)
        self.client.on_sub(words[0], words[1] if len(words) == 3 else None, words[-1])

    def _parse_publish(self, words: list[bytes], headed: bool) -> None:
        """Parse `subject [reply] [header-size] size` of PUB or HPUB; the payload comes next."""
        fixed = 3 if headed else 2
        if len(words) not in (fixed, fixed + 1) or (headed and not self.client.headers):
            raise ProtocolError(None)
        reply = words[1] if len(words) > fixed else b""
        header = parse_digits(words[-2]) if headed else 0
        total = parse_digits(words[-1])
        if not 0 <= header <= total:
            raise ProtocolError(None)
        if total > self.payload_max:
            raise ProtocolError(TOO_LARGE)
        if self.client.pedantic:
            self.client.on_pedantic_publish(words[0])
        self._pub = Publication(words[0], reply, words[-2] if headed else b"", words[-1], header, total)

    def _read_payload(self, pub: Publication, chunk: bytes, at: int) -> int:
        """Continue with a payload; return where the next operation starts."""
        header_size, total = pub.header_size, pub.total_size
        body = self._body
        until = at + total + 2 - len(body)
        body += chunk[at:until]
        if len(body) > total and body[total] != 13:
            raise ProtocolError(UNKNOWN)
        if len(body) == total + 2:
            if body[total + 1] != 10:
                raise ProtocolError(UNKNOWN)
            self._pub, self._body = None, bytearray()
            self._publish(pub, bytes(body[:header_size]), bytes(body[header_size:total]))
        return until

    def _publish(self, pub: Publication, header: bytes, payload: bytes) -> None:
        """Process a complete message: check it, find its route, fan it out."""
        client = self.client
        subject, reply = pub.subject, pub.reply
        client.in_msgs += 1
        client.in_bytes += pub.total_size
        traced = header and (client.traces_external or TRACE_DEST in header)
        if traced and client.on_traced_publish(subject, reply, header, payload):
            return
        if subject.startswith(DENIED_PREFIXES) or (
            client.has_permissions and not client.may_publish(subject)
        ):
            client.deny_publish(subject)
            return
        if reply and (is_reserved_reply(reply) or (client.has_permissions and not client.may_reply(reply))):
            client.deny_reply(reply)
            return
        if client.verbose:
            client.send(b"+OK\r\n")
        received = 0
        if is_well_formed(subject):
            table = client.table
            received = table.fan_out(table.find(subject), client, pub, header, payload)
            client.fanout_bytes += received * (pub.total_size + len(subject) + len(reply) + LINE_BYTES)
        if not received and reply and client.no_responders:
            client.on_no_responders(subject, reply)
