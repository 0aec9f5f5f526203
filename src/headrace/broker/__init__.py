"""What a server is, without I/O: sessions of clients, interest and routing, and the streams behind them.

Seams for the parts of the server that are not clients:

- `hub.subscribe_internal(pattern, sink)`: `sink.offer(session, subject, reply, header, payload)` is called
  for each message that matches; a sink counts as a receiver, so the publisher gets no 503.
- `hub.publish(subject, reply, header, payload)`: send to whoever listens; returns how many received it.
  `hub.publish_many(parcels)` does it for many at once.
- `hub.deliver(deliver_subject, shown_subject, reply, header, payload)`: the same, showing another subject.
- `router.has_interest(subject, queue=None)` and `hub.watch(subject, call)`: whether somebody listens, and when that
  changes.
- `session.send(data)`: answer one client; `hub.dirty` lists the sessions with something to flush.
- `Accounts`: the subject spaces of a server; `accounts.main.hub` is the one of `$G`, and a session or another kind
  of connection belongs to one `Account` (`account.hub`, `account.jetstream`).
- `Timers`: what has to happen at a moment of the server's clock.
"""

from headrace.broker.accounts import GLOBAL, SYSTEM, Account, AccountLimits, Accounts
from headrace.broker.routing.permissions import Permissions
from headrace.broker.routing.router import SubjectRouter
from headrace.broker.routing.session import Session, SessionIdentity, SessionLimits, SessionTransport
from headrace.broker.routing.subscription_trie import InternalSubscriber
from headrace.broker.timers import TimerHandle, Timers
from headrace.clock import Clock

__all__ = [
    "GLOBAL",
    "SYSTEM",
    "Account",
    "AccountLimits",
    "Accounts",
    "Clock",
    "InternalSubscriber",
    "Permissions",
    "Session",
    "SessionIdentity",
    "SessionLimits",
    "SessionTransport",
    "SubjectRouter",
    "TimerHandle",
    "Timers",
]
