"""What the parts of an account's JetStream may use of it: time, storage, routing, commits, quotas.

Owns no behaviour. `AccountJetStream` implements it; parts name this protocol instead, so that none of them depends on the
module that puts all of them together.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from headrace.broker.commit.advisories import Advisories
from headrace.broker.commit.event_history import EventHistory
from headrace.broker.commit.group_commit import GroupCommit
from headrace.broker.commit.server_quota import ServerQuota
from headrace.broker.commit.storage_usage import StorageUsage
from headrace.broker.routing.router import SubjectRouter
from headrace.broker.timers import Timers
from headrace.errors import RequestError, StoreError
from headrace.storage import Store


class JetStreamContext(Protocol):
    """One account's JetStream, seen from its parts."""

    router: SubjectRouter
    store: Store
    timers: Timers
    group_commit: GroupCommit
    advisories: Advisories
    event_history: EventHistory
    storage_usage: StorageUsage
    server_quota: ServerQuota
    call_soon: Callable[[Callable[[], None]], object]
    #: Which replicator reads with a durable consumer (subject of the upstream API, name): one at a time.
    copiers: dict[tuple[bytes, str], Any]
    #: How many streams and consumers have ended since the start.
    ended: int
    server_name: str
    account: str
    domain: str

    def now_ns(self) -> int:
        """Return the time for a new message: never the same twice."""

    def clock_ns(self) -> int:
        """Return the wall-clock time."""

    def reserve_times(self, count: int) -> int:
        """Return the first of `count` consecutive times."""

    def quota(self, storage: str) -> int:
        """Return the account's limit in bytes for one kind of storage; -1 is no limit."""

    def has_quota(self, storage: str) -> bool:
        """Return whether messages must be checked against a quota."""

    def to_api_error(self, failure: StoreError) -> RequestError:
        """Return the API error for a publish that the store rejected."""
