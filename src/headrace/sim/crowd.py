"""What a world holds besides its streams: users who may not do everything, and a stream that comes and goes.

Owns what is expected of both: what is denied neither arrives nor is stored, what is allowed still works, a queue group
gets a message once, and nothing of a deleted stream is in the next one of its name.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING

from headrace.sim.checks import Violation
from headrace.sim.clients import Arrival, SimClient
from headrace.sim.events import send
from headrace.sim.setting import EXTRA, SUBJECTS

if TYPE_CHECKING:
    from headrace.sim.world import World
    from headrace.store import Log


class Crowd:
    """Everybody who talks on `g.>`."""

    def __init__(self) -> None:
        self._said = 0
        self._forbidden: set[bytes] = set()
        self._crew: set[bytes] = set()

    def enter(self, client: SimClient) -> None:
        """A client listens to all that it may and, if it is a guest, to what it may not."""
        client.listen(self._heard(client), b"g.>")
        client.listen(self._heard(client, self._crew), b"g.>", b"crew")
        if client.guest:
            for subject, queue in ((b"g.3", b""), (b"g.>", b"spies"), (b"d.push", b""), (b"k.>", b"crew")):
                client.listen(_overheard, subject, queue)

    def talk(self, client: SimClient, number: int) -> bytes:
        """Say something; what was said."""
        self._said += 1
        words, subject = b"said %d" % self._said, f"g.{number}"
        if client.who.denied(subject):
            self._forbidden.add(words)
        client.publish(subject, words)
        return words

    def _heard(self, client: SimClient, once: set[bytes] | None = None) -> Callable[[Arrival], None]:
        def heard(arrival: Arrival) -> None:
            words = arrival.payload
            if words in self._forbidden:
                raise Violation(f"rights: {words!r} on {arrival.subject!r} was not allowed and arrived")
            if client.guest and arrival.subject == b"g.3":
                raise Violation("rights: a guest got what is withheld from it")
            if once is None:
                client.heard.append(words)
            elif words in once:
                raise Violation(f"a queue group got {words!r} twice")
            else:
                once.add(words)

        return heard

    def judge(self, world: World) -> None:
        """When nothing fails: everybody hears exactly what it should, and is told what it may not."""
        host, guest = world.connect(guest=False), world.connect(guest=True)
        world.clients += [host, guest]
        world.settle()
        said = {(who, number): self.talk(who, number) for who in (host, guest) for number in range(SUBJECTS)}
        stored = send(world, guest, "P", "p.0", {})
        send(world, guest, "P", "p.3", {})
        world.settle()
        for who in (host, guest):
            wanted = [
                words for (speaker, number), words in said.items() if number < 3 or speaker is host is who
            ]
            if who.heard != wanted and sorted(who.heard) != sorted(wanted):
                raise Violation(f"rights: {who.heard} was heard instead of {wanted}")
        if len(guest.complaints) != 6:
            raise Violation(f"rights: six things are not allowed, refused were {guest.complaints}")
        if not (stored.seq or stored.refused):
            raise Violation("rights: what a guest may publish is not answered")


def _overheard(arrival: Arrival) -> None:
    raise Violation(f"rights: a guest got {arrival.payload[:40]!r} on {arrival.subject!r}")


class Extra:
    """The stream that comes and goes. Its messages begin with who sent them and a number that only grows."""

    def __init__(self) -> None:
        self._number = 0
        self._gone: dict[int, int] = {}  # of each client, up to which number nothing may be there any more

    def next(self, client: SimClient) -> bytes:
        """The beginning of a message."""
        self._number += 1
        return b"%d#%d#" % (client.cid, self._number)

    def made(self, arrival: Arrival) -> None:
        """The answer to its creation; it may be there already, or be one too many."""
        if arrival.payload:
            error = json.loads(arrival.payload).get("error", {})
            if error.get("err_code", 0) not in (0, 10023, 10027, 10047, 10058):
                raise Violation(f"{EXTRA} is refused: {error}")

    def deleting(self, client: SimClient) -> Callable[[Arrival], None]:
        """A client is about to delete it; what to do with the answer."""
        sent = self._number

        def answered(arrival: Arrival) -> None:
            if arrival.payload and json.loads(arrival.payload).get("success"):
                self._gone[client.cid] = max(self._gone.get(client.cid, 0), sent)

        return answered

    def judge(self, log: Log) -> None:
        """C8: what was sent before a stream was deleted is not in its successor."""
        for seq in log.seqs(None, log.first_seq, log.last_seq).tolist():
            found = log.get(seq)
            if found is None:
                raise Violation(f"C9: {EXTRA} {seq} is listed and cannot be read")
            cid, number = map(int, found[3].split(b"#")[:2])
            if number <= self._gone.get(cid, 0):
                raise Violation(f"C8: {EXTRA} {seq} is of a stream that was deleted")
