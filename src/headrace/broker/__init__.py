"""The broker without I/O: client sessions, subject routing, and the streams.

Interfaces for the parts of the server that are not clients:

- `router.subscribe_internal(pattern, subscriber)`: `subscriber.on_message(session, subject, reply, header, payload)`
  is called for each message that matches; a subscriber counts as a receiver, so the publisher gets no 503.
- `router.publish(subject, reply, header, payload)`: send to all subscribers; returns how many received it.
  `router.publish_many(messages)` does it for many at once.
- `router.deliver(deliver_subject, shown_subject, reply, header, payload)`: the same, showing another subject.
- `router.has_interest(subject, queue=None)` and `router.watch_subject(subject, call)`: whether there is a subscriber,
  and a notification when that may have changed.
- `session.send(data)`: answer one client; `router.dirty` lists the sessions with output to flush.
- `Accounts`: the subject spaces of a server; `accounts.main.router` is the one of `$G`, and a session or another kind
  of connection belongs to one `Account` (`account.router`, `account.jetstream`).
- `Timers`: calls at a given time of the server's clock.
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
