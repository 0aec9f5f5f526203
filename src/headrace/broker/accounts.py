"""Accounts: isolated subject spaces, each with its own streams.

Owns which accounts exist and which connections are in them. Every account has its own router, so a message published in
one account reaches another only through an import. All routers share the list of sessions with output: one flush serves
them all. Knows no sockets, no passwords and no files. See ADR 70.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.broker.routing.message_trace import AccountTracing, TraceServer
from headrace.broker.routing.router import CallSoon, SubjectRouter

if TYPE_CHECKING:
    from headrace.broker.jetstream import AccountJetStream
    from headrace.broker.routing.session import Session

#: The account of clients that belong to no other account.
GLOBAL = "$G"
#: The system account: its users can monitor and query the server.
SYSTEM = "$SYS"


@dataclass(frozen=True, slots=True)
class AccountLimits:
    """Limits for all clients of one account together; -1 is no limit."""

    connections: int = -1
    leafs: int = -1
    subscriptions: int = -1
    payload: int = -1


UNLIMITED = AccountLimits()


class Account:
    """One subject space: `router` routes in it, `jetstream` holds its streams (None if it has no JetStream)."""

    __slots__ = ("display_name", "jetstream", "limits", "name", "router", "sessions")

    def __init__(self, name: str, router: SubjectRouter) -> None:
        self.name = name
        #: A readable name, if `name` is a key.
        self.display_name = name
        self.router = router
        self.jetstream: AccountJetStream | None = None
        self.limits = UNLIMITED
        self.sessions: set[Session] = set()

    @property
    def at_max_connections(self) -> bool:
        """Whether one more client would exceed the limit."""
        return 0 <= self.limits.connections <= len(self.sessions)


class Accounts:
    """The accounts of a server, by name. `main` and `system` always exist."""

    def __init__(self, system: str = SYSTEM) -> None:
        self._by_name: dict[str, Account] = {}
        self._wakeup: Callable[[], None] | None = None
        self._call_soon: CallSoon | None = None
        self.dirty: list[Any] = []
        self.trace_server = TraceServer()
        self.main = self.get_or_create(GLOBAL)
        self.system = self.get_or_create(system)
        self.trace_server.system_account = system

    def get_or_create(self, name: str) -> Account:
        """Return the account with that name; create it if it does not exist."""
        account = self._by_name.get(name)
        if account is None:
            account = self._by_name[name] = Account(name, SubjectRouter(dirty=self.dirty))
            account.router.tracing = AccountTracing(name, self.trace_server)
            account.router.set_wakeup(self._wakeup, self._call_soon)
        return account

    def get(self, name: str) -> Account | None:
        return self._by_name.get(name)

    def __getitem__(self, name: str) -> Account:
        return self._by_name[name]

    def __iter__(self) -> Iterator[Account]:
        return iter(tuple(self._by_name.values()))

    def set_wakeup(self, call: Callable[[], None] | None, call_soon: CallSoon | None = None) -> None:
        """Call `call` when the first session has output, in any account; see `SubjectRouter.set_wakeup`."""
        self._wakeup, self._call_soon = call, call_soon
        for account in self:
            account.router.set_wakeup(call, call_soon)

    @property
    def subscriptions(self) -> int:
        """The number of subscriptions in all accounts."""
        return sum(account.router.subscriptions for account in self)

    def end_pulls(self) -> None:
        """End the pull requests that wait, in all accounts: the server shuts down."""
        for jetstream in self.jetstreams():
            jetstream.end_pulls()

    def jetstreams(self) -> Iterator[AccountJetStream]:
        """Iterate over the JetStreams of all accounts that have one."""
        for account in self:
            if account.jetstream is not None:
                yield account.jetstream
