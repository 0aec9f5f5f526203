"""What the parts of an account's JetStream may use of it: time, storage, routing, commits, quotas.

Owns no behaviour. `AccountJetStream` implements it; parts name this protocol instead, so that none of them depends on the
module that puts all of them together.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from headrace._native import AccountClock
from headrace.broker.commit.account_quota import AccountQuota
from headrace.broker.commit.account_totals import AccountTotals
from headrace.broker.commit.advisories import Advisories
from headrace.broker.commit.disk_backpressure import DiskBackpressure
from headrace.broker.commit.event_history import EventHistory
from headrace.broker.commit.group_commit import GroupCommit
from headrace.broker.routing.router import SubjectRouter
from headrace.broker.timers import Timers
from headrace.storage import Store


class JetStreamContext(Protocol):
    """One account's JetStream, seen from its parts."""

    router: SubjectRouter
    store: Store
    timers: Timers
    clock: AccountClock
    group_commit: GroupCommit
    disk_backpressure: DiskBackpressure
    advisories: Advisories
    event_history: EventHistory
    quota: AccountQuota
    call_soon: Callable[[Callable[[], None]], object]
    #: Which replicator reads with a durable consumer (subject of the upstream API, name): one at a time.
    copiers: dict[tuple[bytes, str], Any]
    totals: AccountTotals
    server_name: str
    account: str
    domain: str
