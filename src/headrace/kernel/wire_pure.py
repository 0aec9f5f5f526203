"""The hot path in plain Python: the same names and the same behaviour as the compiled `wire`.

Owns the framing of one peer's input (`Parser`), the cache of routes (`RouteTable`) and the encoding of
deliveries. It runs where no compiler was at hand, and says in readable form what the compiled version does.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import Any, Final

from headrace.errors import ProtocolError

EXACT: Final = 0
PARENT: Final = 1
HEAD: Final = 2

UNKNOWN = "Unknown Protocol Operation"
TOO_LONG = "maximum control line exceeded"
TOO_LARGE = "Maximum Payload Violation"
UNAUTHORIZED = "Authorization Violation"
BLANK_VERBS = (b"PUB", b"SUB", b"HPUB", b"UNSUB", b"INFO", b"-ERR")
FREE_VERBS = (b"CONNECT", b"PING", b"PONG", b"+OK")
VERBS = FREE_VERBS + BLANK_VERBS
ARGLESS = (b"PING", b"PONG", b"+OK")
REFUSED = (b"$NRG.", b"_GR_.")
#: Payloads of this size on are not copied for each of several receivers.
SHARED_MIN = 16384
LINE_BYTES = 24  # what a line needs beside subject and reply, about
RESERVED = (b"_R_.", b"_GR_.", b"$JS.ACK.", b"$JS.API.")
DIGITS_MAX = 9
VERB_MAX = 8
_TO_SPACES = bytes.maketrans(b"\t\r", b"  ")

Publication = tuple[bytes, bytes, bytes, bytes, int, int]


def words_of(line: bytes) -> list[bytes]:
    """The words of a line. Blanks are space, tab and carriage return; `split` alone would part words at two more."""
    if b"\x0b" in line or b"\x0c" in line:
        return [word for word in line.translate(_TO_SPACES).split(b" ") if word]
    return line.split()


def number(digits: bytes) -> int:
    """The value of one to nine decimal digits, or -1."""
    return int(digits) if len(digits) <= DIGITS_MAX and digits.isdigit() else -1


def whole(subject: bytes) -> bool:
    """Whether no token between dots is empty."""
    return b"" not in subject.split(b".")


def reserved(reply: bytes) -> bool:
    """Whether a reply belongs to the server itself."""
    return reply.startswith(RESERVED) and reply not in RESERVED


def touched(pattern: list[bytes], key: list[bytes], kind: int) -> bool:
    """Whether a pattern matches some subject that a cached key stands for."""
    for position, token in enumerate(pattern):
        more = position < len(key)
        if token == b">":
            return more or kind != EXACT
        if not more:
            return kind == HEAD or (kind == PARENT and position == len(pattern) - 1)
        if token not in (b"*", key[position]):
            return False
    return len(pattern) == len(key) and kind == EXACT


class Peer:
    """What the kernel knows of one client: its output, its settings, its counters.

    `out` may be appended to by anyone who then calls `touch()`. What stands before it, `parted` bytes in all, are the
    payloads that several peers share and what was written between them. A subclass brings the control operations.
    `table` may be exchanged for one that shares its list of dirty peers. `carried` counts roughly what its messages
    added to the outputs of all who received them.
    """

    __slots__ = (
        "carried",
        "dirty",
        "echo",
        "guarded",
        "headers",
        "in_bytes",
        "in_msgs",
        "no_responders",
        "out",
        "out_bytes",
        "out_msgs",
        "parted",
        "parts",
        "pedantic",
        "ready",
        "table",
        "verbose",
    )

    def __init__(self, table: RouteTable) -> None:
        self.table = table
        self.out = bytearray()
        self.parts: list[bytes | bytearray] = []
        self.parted = 0
        self.echo = self.verbose = self.pedantic = True
        self.headers = self.no_responders = self.ready = self.guarded = self.dirty = False
        self.in_msgs = self.in_bytes = self.out_msgs = self.out_bytes = self.carried = 0

    def touch(self) -> None:
        """Note that `out` holds something to flush."""
        if not self.dirty:
            self.dirty = True
            self.table.note(self)

    def send(self, data: bytes | bytearray) -> None:
        """Add bytes to the output."""
        self.out += data
        self.touch()

    def take(self) -> bytearray:
        """Hand over the output; what comes next goes into a new one."""
        if self.parted:
            return bytearray().join(self.take_parts())
        out, self.out = self.out, bytearray()
        self.dirty = False
        return out

    def take_parts(self) -> list[bytes | bytearray]:
        """The same without putting the parts together."""
        parts = [*self.parts, self.out]
        self.out, self.parts, self.parted = bytearray(), [], 0
        self.dirty = False
        return parts

    def share(self, payload: bytes) -> None:
        """Go on with a payload that others are sent, too."""
        self.parts += (self.out, payload)
        self.parted += len(self.out) + len(payload)
        self.out = bytearray()


class Subscription:
    """One client's interest: deliveries carry `sid`; `limit` is how many there are in all (0: any number)."""

    __slots__ = ("closed", "delivered", "limit", "pattern", "peer", "queue", "sid", "watched")

    def __init__(self, peer: Peer, pattern: bytes, queue: bytes | None, sid: bytes) -> None:
        self.peer: Any = peer
        self.pattern = pattern
        self.queue = queue
        self.sid = sid
        self.delivered = self.limit = 0
        self.closed = self.watched = False


class Route:
    """Who receives a subject. When interest changes it is dropped (not `live`, nobody on it) and made anew."""

    __slots__ = ("empty", "groups", "key", "kind", "live", "plain", "refused", "sinks")

    def __init__(
        self, key: bytes, kind: int, plain: list[Any], groups: list[list[Any]], sinks: list[Any]
    ) -> None:
        self.key = key
        self.kind = kind
        self.plain = plain
        self.groups = groups
        self.sinks = sinks
        self.empty = not (plain or groups or sinks)
        self.refused = key.startswith(REFUSED)
        self.live = True

    def end(self) -> None:
        """It is dropped: keep nobody alive who may have gone."""
        self.live, self.empty = False, True
        self.plain, self.groups, self.sinks = [], [], []


class RouteTable:
    """Routes by subject, at most `size_max` of them; a miss asks `resolve`.

    Keys: a subject; `prefix.` for all its children; `one.two. ` (with a blank) for all below two tokens.
    `dirty` lists the peers whose output became non-empty; `wake` is called when the first one is noted.
    Tables may share one such list.
    """

    __slots__ = ("_routes", "_size_max", "dirty", "resolve", "wake")

    def __init__(
        self, resolve: Callable[[bytes], Route], size_max: int = 16384, dirty: list[Any] | None = None
    ) -> None:
        self.resolve = resolve
        self.dirty: list[Any] = [] if dirty is None else dirty
        self.wake: Callable[[], None] | None = None
        self._routes: dict[bytes, Route] = {}
        self._size_max = size_max

    def note(self, peer: Peer) -> None:
        self.dirty.append(peer)
        if len(self.dirty) == 1 and self.wake is not None:
            self.wake()

    def __len__(self) -> int:
        return len(self._routes)

    def __contains__(self, key: bytes) -> bool:
        return key in self._routes

    def lookup(self, subject: bytes) -> Route | None:
        """The cached route of a subject, or None."""
        route = self._routes.get(subject)
        if route is not None:
            # `a.b.` as a subject is not whole; as a key it stands for the children of `a.b`.
            return route if route.kind == EXACT else None
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
        return route if route is not None and whole(subject[second + 1 :]) else None

    def find(self, subject: bytes) -> Route:
        """The route of a subject that is whole."""
        route = self.lookup(subject)
        if route is None:
            route = self.resolve(subject)
            if len(self._routes) >= self._size_max:
                self.clear()
            self._routes[route.key] = route
        return route

    def drop(self, key: bytes) -> None:
        """Forget one key."""
        route = self._routes.pop(key, None)
        if route is not None:
            route.end()

    def drop_matching(self, pattern: bytes) -> None:
        """Forget every key that stands for a subject the pattern matches."""
        tokens = pattern.split(b".")
        for route in list(self._routes.values()):
            if touched(tokens, route.key[: len(route.key) - route.kind].split(b"."), route.kind):
                self.drop(route.key)

    def clear(self) -> None:
        """Forget every route."""
        for route in self._routes.values():
            route.end()
        self._routes.clear()

    def publish(self, subject: bytes, reply: bytes, header: bytes, payload: bytes) -> int:
        """Send from inside the server to all who match; how many received it."""
        return self.publish_for(None, subject, reply, header, payload)

    def publish_for(
        self, source: Peer | None, subject: bytes, reply: bytes, header: bytes, payload: bytes
    ) -> int:
        """Send what a peer published to all who match; how many received it."""
        if not whole(subject):
            return 0
        return self._carry(self.find(subject), source, subject, reply, header, payload)

    def publish_many(self, parcels: Iterable[tuple[bytes, bytes, bytes, bytes]]) -> None:
        """`publish` for each (subject, reply, header, payload)."""
        failure: Exception | None = None
        for subject, reply, header, payload in parcels:
            try:
                self.publish(subject, reply, header, payload)
            except Exception as error:  # one receiver's trouble is not another's
                failure = failure or error
        if failure is not None:
            raise failure

    def send(self, route: Route, subject: bytes, reply: bytes, header: bytes, payload: bytes) -> int:
        """Send along a route, showing this subject; how many received it."""
        return self._carry(route, None, subject, reply, header, payload)

    def _carry(
        self, route: Route, source: Peer | None, subject: bytes, reply: bytes, header: bytes, payload: bytes
    ) -> int:
        if route.empty:
            return 0
        size = len(header)
        pub = (subject, reply, b"%d" % size, b"%d" % (size + len(payload)), size, size + len(payload))
        return self.spread(route, source, pub, header, payload)

    def spread(
        self, route: Route, source: Peer | None, pub: Publication, header: bytes, payload: bytes
    ) -> int:
        """Write a message to everybody on a route."""
        received = 0
        muted = source if source is not None and not source.echo else None
        plain, groups, sinks = route.plain, route.groups, route.sinks
        shared = len(payload) >= SHARED_MIN and len(plain) > 1
        for sub in plain:
            if sub.peer is not muted and not sub.closed:
                received += self._hand(sub, pub, header, payload, shared)
        for group in filter(None, groups):
            start = random.randrange(len(group))
            for sub in group[start:] + group[:start]:
                if sub.peer is muted or sub.closed:
                    continue
                if self._hand(sub, pub, header, payload, shared):
                    received += 1
                    break
        for sink in sinks:
            count = sink.offer(source, pub[0], pub[1], header, payload)
            received += 1 if count is None else count
        return received

    def _hand(self, sub: Subscription, pub: Publication, header: bytes, payload: bytes, shared: bool) -> int:
        """Write a message into one receiver's output: MSG, or HMSG if it has headers and they are wanted."""
        peer = sub.peer
        subject, reply, header_digits, total_digits, header_size, total = pub
        if sub.watched and not peer.admit(sub, subject, reply):
            return 0
        target = b"%s %s %s " % (subject, sub.sid, reply) if reply else b"%s %s " % (subject, sub.sid)
        if header_size and peer.headers:
            peer.out += b"HMSG %s%s %s\r\n%s" % (target, header_digits, total_digits, header)
            peer.out_bytes += total
        else:
            digits = b"%d" % len(payload) if header_size else total_digits
            peer.out += b"MSG %s%s\r\n" % (target, digits)
            peer.out_bytes += len(payload)
        if shared:
            peer.share(payload)
        else:
            peer.out += payload
        peer.out += b"\r\n"
        peer.touch()
        peer.out_msgs += 1
        sub.delivered += 1
        if sub.limit and sub.delivered >= sub.limit:
            peer.spent(sub)
        return 1


class Parser:
    """Turns one peer's bytes into operations: publishes go straight along their routes, the rest to the peer.

    Between two chunks it holds an unfinished control line (at most `line_max` of arguments) or an unfinished
    payload (at most `payload_max`), never more. After a ProtocolError it is not to be fed again.
    """

    __slots__ = ("_body", "_junk", "_line", "_line_max", "_pub", "payload_max", "peer")

    def __init__(self, peer: Peer, line_max: int = 4096, payload_max: int = 1048576) -> None:
        self.peer: Any = peer
        self._line_max = line_max
        self.payload_max = payload_max
        self._line = bytearray()
        self._junk = b""
        self._pub: Publication | None = None
        self._body = bytearray()

    @property
    def held(self) -> int:
        """How many bytes are kept until more arrive."""
        return len(self._line) + len(self._body)

    def feed(self, data: bytes | bytearray | memoryview, size: int = -1) -> None:
        """Take the next chunk (`size` bytes of `data`); raises ProtocolError when the peer has to go."""
        if size > len(data):
            raise ValueError("a chunk has no more bytes than it has")
        chunk = bytes(data) if size < 0 else bytes(memoryview(data)[:size])
        at, end = 0, len(chunk)
        while at < end:
            if self._pub is not None:
                at = self._payload(self._pub, chunk, at)
                continue
            stop = chunk.find(b"\n", at)
            if self._junk:
                if stop < 0:
                    return
                at, verb, self._junk = stop + 1, self._junk, b""
                self._control(verb, b"")
                continue
            if not self.peer.ready and not self._line and chunk[at] not in b"Cc":
                raise ProtocolError(UNAUTHORIZED)
            self._line += chunk[at:] if stop < 0 else chunk[at:stop]
            if stop < 0:
                self._hold()
                return
            line, self._line, at = bytes(self._line), bytearray(), stop + 1
            self._operation(line)

    def _hold(self) -> None:
        """Keep an unfinished line as far as it may become a good one and is short enough."""
        line = self._line
        start = bytes(line[:VERB_MAX]).upper()
        verb = next((verb for verb in VERBS if start.startswith(verb)), None)
        if verb is None:
            if any(verb.startswith(start) for verb in VERBS):
                return
            raise ProtocolError(UNKNOWN)
        if verb in ARGLESS:
            self._line, self._junk = bytearray(), verb
            return
        self._line = bytearray(verb) + self._blank_after(verb, bytes(line)) + self._arguments(verb, line)

    @staticmethod
    def _blank_after(verb: bytes, line: bytes) -> bytes:
        """The blank that ends a verb; it must be there for most."""
        found = line[len(verb) : len(verb) + 1]
        if found in (b"", b" ", b"\t"):
            return found
        if verb in BLANK_VERBS:
            raise ProtocolError(UNKNOWN)
        return b""

    def _arguments(self, verb: bytes, line: bytes | bytearray) -> bytes:
        """What follows the blanks after a verb, of bounded length."""
        args = bytes(line[len(verb) :].lstrip(b" \t"))
        if len(args) - args.endswith(b"\r") > self._line_max:
            raise ProtocolError(TOO_LONG)
        return args

    def _operation(self, line: bytes) -> None:
        """One whole control line, without its line feed."""
        start = line[:VERB_MAX].upper()
        verb = next((verb for verb in VERBS if start.startswith(verb)), None)
        if verb is None or (verb in BLANK_VERBS and not self._blank_after(verb, line)):
            raise ProtocolError(UNKNOWN)
        if verb in ARGLESS:
            self._control(verb, b"")
            return
        args = self._arguments(verb, line).removesuffix(b"\r")
        if verb == b"PUB" or verb == b"HPUB":
            self._publication(words_of(args), verb == b"HPUB")
        else:
            self._control(verb, args)

    def _control(self, verb: bytes, args: bytes) -> None:
        """Let the peer act on a control operation."""
        if verb == b"PING":
            self.peer.on_ping()
        elif verb == b"PONG":
            self.peer.on_pong()
        elif verb == b"SUB":
            self._sub(words_of(args))
        elif verb == b"UNSUB":
            words = words_of(args)
            if not 1 <= len(words) <= 2:
                raise ProtocolError(None)
            self.peer.on_unsub(words[0], words[1] if len(words) == 2 else None)
        elif verb == b"CONNECT":
            self.peer.on_connect(args)
        elif verb == b"-ERR":
            raise ProtocolError(None)

    def _sub(self, words: list[bytes]) -> None:
        if len(words) == 2:
            self.peer.on_sub(words[0], None, words[1])
        elif len(words) == 3:
            self.peer.on_sub(words[0], words[1], words[2])
        else:
            raise ProtocolError(None)

    def _publication(self, words: list[bytes], headed: bool) -> None:
        """`subject [reply] [header-size] size` of PUB or HPUB; the payload comes next."""
        fixed = 3 if headed else 2
        if len(words) not in (fixed, fixed + 1) or (headed and not self.peer.headers):
            raise ProtocolError(None)
        reply = words[1] if len(words) > fixed else b""
        header = number(words[-2]) if headed else 0
        total = number(words[-1])
        if not 0 <= header <= total:
            raise ProtocolError(None)
        if total > self.payload_max:
            raise ProtocolError(TOO_LARGE)
        if self.peer.pedantic:
            self.peer.on_pedantic(words[0])
        self._pub = (words[0], reply, words[-2] if headed else b"", words[-1], header, total)

    def _payload(self, pub: Publication, chunk: bytes, at: int) -> int:
        """Go on with a payload; where the next operation starts."""
        total = pub[5]
        body = self._body
        until = at + total + 2 - len(body)
        body += chunk[at:until]
        if len(body) > total and body[total] != 13:
            raise ProtocolError(UNKNOWN)
        if len(body) == total + 2:
            if body[total + 1] != 10:
                raise ProtocolError(UNKNOWN)
            self._pub, self._body = None, bytearray()
            self._route(pub, bytes(body[: pub[4]]), bytes(body[pub[4] : total]))
        return until

    def _route(self, pub: Publication, header: bytes, payload: bytes) -> None:
        """A whole message has arrived: check it, find its route, hand it on."""
        peer = self.peer
        subject, reply = pub[0], pub[1]
        peer.in_msgs += 1
        peer.in_bytes += pub[5]
        if subject.startswith(REFUSED) or (peer.guarded and not peer.may_publish(subject)):
            peer.refuse_publish(subject)
            return
        if reply and (reserved(reply) or (peer.guarded and not peer.may_reply(reply))):
            peer.refuse_reply(reply)
            return
        if peer.verbose:
            peer.send(b"+OK\r\n")
        received = 0
        if whole(subject):
            table = peer.table
            received = table.spread(table.find(subject), peer, pub, header, payload)
            peer.carried += received * (pub[5] + len(subject) + len(reply) + LINE_BYTES)
        if not received and reply and peer.no_responders:
            peer.on_no_responders(subject, reply)
