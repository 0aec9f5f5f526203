"""Two whole servers, each with its own disk, joined by a leafnode connection that can be cut at any byte.

Owns the order in which things happen in both and on the way between them: everything is a choice of the seed. The bytes on
the way are those of the real protocol, spoken by the real sessions. A crash of one side takes the connection with it and
leaves the other side running.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any

from headrace.broker.leaf import LeafSession
from headrace.broker.leaf_interest import Leaves
from headrace.broker.leaf_owner import Local
from headrace.broker.session import Identity
from headrace.errors import ProtocolError
from headrace.protocol import frames
from headrace.protocol.leaf import LeafParser
from headrace.sim.broker import NO_BOUNDS, Bounds, SimBroker
from headrace.sim.clients import ANYBODY
from headrace.sim.clock import SimClock
from headrace.sim.disk import SimDisk
from headrace.sim.site import power_loss, reopened
from headrace.store import StoreOptions

_TURNS_MAX = 200_000
_PAYLOAD_MAX = 1 << 20
#: Whether a message (subject, reply, header, payload) is lost on the way.
Losing = Callable[[bytes, bytes, bytes, bytes], bool]


class _LossySession(LeafSession):
    """A session whose messages can be lost."""

    __slots__ = ("losing",)
    losing: Losing | None

    def carry(
        self, subject: bytes, reply: bytes, queues: Sequence[bytes], header: bytes, payload: bytes
    ) -> None:
        if self.losing is None or not self.losing(subject, reply, header, payload):
            super().carry(subject, reply, queues, header, payload)

    def carry_run(self, data: bytes, count: int, size: int) -> None:
        """Message by message, so that each can be lost."""
        if self.losing is None:
            super().carry_run(data, count, size)
        else:
            LeafParser(_Repeater(self), _PAYLOAD_MAX).feed(data)


class _Repeater:
    """Sends the messages of a run one by one."""

    ready = True

    def __init__(self, session: _LossySession) -> None:
        self.on_message = session.carry

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"a run holds messages only, not {name}")


class End:
    """One end of the connection; the `owner` of its session. `pipe` holds what is on the way to the other end."""

    client_ip = "sim"

    def __init__(self, broker: SimBroker, leaves: Leaves, *, dialled: bool, losing: Losing | None) -> None:
        local = Local(broker.name, broker.name, "0", broker.domain, jetstream=True)
        self._leaves, self._local = leaves, local
        self.pipe = bytearray()
        self.broken = False
        self.session = _LossySession(leaves, self, 1, local, dialled=dialled)
        self.session.losing = losing
        self._parser = LeafParser(self.session, _PAYLOAD_MAX)

    def collect(self) -> None:
        """Put what the session has to say on the way."""
        self.pipe += self.session.take()
        dirty = self.session.hub.dirty
        if self.session in dirty:
            dirty.remove(self.session)

    def feed(self, data: bytes) -> None:
        try:
            self._parser.feed(data)
        except ProtocolError as error:
            self.fail(error.text)

    # What the session asks of its owner

    def authenticate(self, fields: Mapping[str, Any]) -> Identity | None:
        return ANYBODY

    def leaves(self, account: str) -> Leaves:
        return self._leaves

    def secure(self, *, asked: bool) -> None:
        """Nobody asks for TLS here."""
        self.session.greet()

    def credentials(self, nonce: str) -> dict[str, str]:
        return {}

    def info(
        self, account: str, imports: dict[str, list[str]] | None, exports: dict[str, list[str]] | None
    ) -> bytes:
        local = self._local
        fields = {"server_name": local.name, "domain": local.domain, "cluster": local.name, "headers": True}
        fields |= {"client_id": 1, "leafnode_urls": [], "info_on_connect": True}
        return frames.info(fields | ({"connect_info": True, "remote_account": account} if account else {}))

    def may_want(self, count: int) -> bool:
        return True

    def joined(self) -> None:
        """Nothing to do."""

    def complained(self, text: str) -> None:
        self.broken = True

    def fail(self, text: str | None) -> None:
        self.broken = True

    def flush(self) -> None:
        """What is to be sent is collected when the simulation moves it."""


class SimPair:
    """`near` dials `far`. Nothing happens by itself: `step` does one thing, `advance` lets time pass."""

    stays_full = 0.0

    def __init__(
        self,
        seed: int | str,
        options: StoreOptions,
        bounds: Bounds = NO_BOUNDS,
        *,
        disks: tuple[int, int] = (1, 2),
    ) -> None:
        self.rng = Random(seed)
        self.clock = SimClock()
        self._options, self._bounds = options, bounds
        self._leaves: dict[str, Leaves] = {}
        self.near = self._open(SimDisk(disks[0]), "NEAR")
        self.far = self._open(SimDisk(disks[1]), "FAR")
        self.losing: Losing | None = None
        self._ends: tuple[End, End] | None = None
        self._stale: list[End] = []  # of the far side, which has not noticed yet that nobody is there

    def _open(self, disk: SimDisk, name: str) -> SimBroker:
        bounds = self._bounds if name == "NEAR" else NO_BOUNDS
        broker = SimBroker(disk, self._options, self.clock, name=name, domain=name, bounds=bounds)
        self._leaves[name] = Leaves(broker.hub)
        broker.start()
        return broker

    # The connection

    @property
    def joined(self) -> bool:
        return self._ends is not None

    def join(self, *, unnoticed: bool = False) -> None:
        """Dial; `unnoticed`: the far side still believes in the connection before this one."""
        if unnoticed and self._ends is not None:
            near, far = self._ends
            near.session.close()
            self._stale.append(far)
            self._ends = None
        self.cut()
        sides = ((self.near, True), (self.far, False))
        near, far = (
            End(broker, self._leaves[broker.name], dialled=dialled, losing=self.losing)
            for broker, dialled in sides
        )
        self._ends = (near, far)
        far.pipe += far.info("", None, None)

    def cut(self) -> None:
        """What is on the way gets lost, from a byte that the seed chooses."""
        if self._ends is None:
            return
        self._notice(all_of_them=True)
        ends, self._ends = self._ends, None
        for end, other in (ends, ends[::-1]):
            end.collect()
            if end.pipe and not other.broken:
                other.feed(bytes(end.pipe[: self.rng.randrange(len(end.pipe) + 1)]))
        for end in ends:
            end.session.close()

    def _notice(self, *, all_of_them: bool = False) -> None:
        """The far side learns that connections are gone; at the latest when it is dialled again."""
        for end in self._stale:
            end.collect()
            if end.broken or all_of_them:
                end.session.close()
        self._stale = [] if all_of_them else [end for end in self._stale if not end.broken]

    def _carry(self) -> bool:
        """Move some bytes; False when nothing is on the way."""
        if self._ends is None:
            return False
        for end in self._ends:
            end.collect()
        ways = [(end, other) for end, other in (self._ends, self._ends[::-1]) if end.pipe]
        if not ways:
            return False
        end, other = self.rng.choice(ways)
        size = self.rng.randrange(1, len(end.pipe) + 1)
        data = bytes(end.pipe[:size])
        del end.pipe[:size]
        other.feed(data)
        if self._stale:
            self._notice()
        if other.broken:
            self.cut()
        return True

    # Crashes

    def crash_near(self) -> None:
        """The side that dialled loses power and comes back."""
        self.near = self._crashed(self.near)

    def crash_far(self) -> None:
        """The other side does."""
        self.far = self._crashed(self.far)

    def kill_near(self) -> None:
        """The process of the side that dialled is killed and started again."""
        self.near = self._back(self.near, self.near.disk.kill)

    def _crashed(self, broker: SimBroker) -> SimBroker:
        return self._back(broker, lambda: power_loss(broker.disk, self.rng))

    def _back(self, broker: SimBroker, end: Callable[[], SimDisk]) -> SimBroker:
        self.cut()
        self._notice(all_of_them=True)
        return reopened(end(), self.rng, lambda disk: self._open(disk, broker.name), self.stays_full)

    def close(self) -> None:
        """The end; both can be forgotten."""
        self.cut()
        for broker in (self.near, self.far):
            broker.hub.table.clear()

    # Time

    def step(self) -> bool:
        """One thing happens, somewhere; False when all is quiet."""
        first = int(self.rng.random() * 3)
        acts = (self.near.step, self.far.step, self._carry)
        return acts[first]() or acts[first - 1]() or acts[first - 2]()

    def settle(self) -> None:
        """Until nothing is left to do at this moment."""
        for _ in range(_TURNS_MAX):
            if not self.step():
                return
        raise RuntimeError("the servers do not come to rest")

    def advance(self, duration_ns: int) -> None:
        """Let time pass; everything that falls due meanwhile has happened on return."""
        end_ns = self.clock.now_ns() + duration_ns
        self.settle()
        while (due := self._next_due()) is not None and due <= end_ns:
            self.clock.advance(max(due - self.clock.now_ns(), 0))
            for broker in (self.near, self.far):
                broker.timers.run_due()
            self.settle()
        self.clock.advance(end_ns - self.clock.now_ns())
        self.settle()

    def pass_time(self, duration_ns: int) -> None:
        """Let time pass while things are under way: what falls due is begun, and nothing waits for anything."""
        self.clock.advance(duration_ns)
        for broker in (self.near, self.far):
            broker.timers.run_due()

    def _next_due(self) -> int | None:
        deadlines = [broker.timers.next_deadline() for broker in (self.near, self.far)]
        return min((each for each in deadlines if each is not None), default=None)

    def call(self, broker: SimBroker, endpoint: str, **body: Any) -> Any:
        """Call the API of one side and wait for the answer."""
        number = broker.api(endpoint, **body)
        for _ in range(_TURNS_MAX):
            if number in broker.answers:
                return broker.answers[number].json
            self.step()
        raise RuntimeError("there is no answer")
