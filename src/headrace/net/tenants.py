"""The accounts of a server as its options, or an operator's tokens, want them.

Owns how what was configured becomes accounts: their limits, their streams, what passes between them; at the start
and again on a reload. The accounts themselves are the broker's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

import msgspec

from headrace.api.limits import Limits
from headrace.broker import GLOBAL, Account, AccountLimits, Accounts, Timers
from headrace.broker.door import ClosedDoor
from headrace.broker.exchange import Exchange
from headrace.broker.exports import ExchangeError, Export, Import, check_import, without_cycles
from headrace.broker.jetstream import ENDPOINTS
from headrace.broker.redirects import Redirect, redirect
from headrace.broker.room import Room
from headrace.errors import StoreError
from headrace.net.auth import Authenticator
from headrace.net.logs import Log
from headrace.net.options import AccountOptions, Options, OptionsError

Imports = dict[str, tuple[Import, ...]]


class Tenants:
    """Sets accounts up and keeps them so."""

    def __init__(self, accounts: Accounts, timers: Timers, server_name: str, log: Log) -> None:
        self._accounts = accounts
        self._timers = timers
        self._server_name = server_name
        self._log = log
        self._exchange = Exchange(accounts, timers, server_name)
        self._redirects: dict[str, tuple[Redirect, ...]] = {}
        self._refusing: dict[str, ClosedDoor] = {}
        self._room: Room | None = None
        #: Called with each account that is new.
        self.on_new: Callable[[Account], None] = lambda account: None

    def settle(self, options: Options, judge: Authenticator) -> None:
        """Bring the accounts to what is wanted now; OptionsError, before anything changes, for an import that cannot be."""
        plans = self._plans(options, judge)
        imports = self._imports(plans, strict=judge.trust is None)
        for plan in plans.values():
            fresh = self._accounts.get(plan.name) is None
            account = self._accounts.make(plan.name)
            account.limits = plan.limits or AccountLimits()
            if judge.trust is not None and plan.name in judge.trust.accounts:
                account.title = judge.trust.accounts[plan.name].name or plan.name
            if fresh:
                self.on_new(account)
        if options.jetstream:
            if self._room is None:
                self._room = Room(options.max_memory_store or -1, options.max_file_store or -1)
            self._settle_streams(options, plans)
        self._connect(plans, imports)
        self._redirect(options, plans)

    def _plans(self, options: Options, judge: Authenticator) -> dict[str, AccountOptions]:
        if judge.trust is not None:
            return {plan.name: plan for plan in judge.trust.plans(time.time())}
        return {plan.name: plan for plan in options.accounts}

    def _imports(self, plans: dict[str, AccountOptions], *, strict: bool) -> Imports:
        """What each account imports. One that is not to be had, or leads back to itself, is an error where `strict`, else
        it is left out.
        """
        refused: list[ExchangeError] = []
        wanted = {
            plan.name: tuple(each for each in plan.imports if self._to_be_had(plans, plan, each, refused))
            for plan in plans.values()
        }
        kept, cycles = without_cycles(wanted)
        refused += cycles
        if strict and refused:
            raise OptionsError(str(refused[0])) from refused[0]
        for reason in refused:
            self._log.warn(f"An import is left out: {reason}")
        return kept

    @staticmethod
    def _to_be_had(
        plans: dict[str, AccountOptions], plan: AccountOptions, wanted: Import, refused: list[ExchangeError]
    ) -> bool:
        try:
            check_import(_exports(plans, wanted.account), wanted, plan.name)
        except ExchangeError as error:
            refused.append(error)
            return False
        return True

    def _connect(self, plans: dict[str, AccountOptions], imports: Imports) -> None:
        for account in self._accounts:
            self._exchange.disconnect(account.name)
        for name, wanted in imports.items():
            self._exchange.connect(name, wanted, lambda exporter: _exports(plans, exporter))

    def _redirect(self, options: Options, plans: dict[str, AccountOptions]) -> None:
        for account in self._accounts:
            plan = plans.get(account.name)
            rules = options.redirects if account.name == GLOBAL else plan.redirects if plan else ()
            if rules != self._redirects.get(account.name, ()):
                self._redirects[account.name] = rules
                redirect(account.hub, rules)
                for session in account.sessions:
                    session.table = account.hub.client_table

    # Streams

    def _settle_streams(self, options: Options, plans: dict[str, AccountOptions]) -> None:
        own = [name for name in plans if name != self._accounts.system.name]
        for account in self._accounts:
            plan = plans.get(account.name)
            if account is self._accounts.system:
                continue
            # Without accounts of anybody's own everybody is in the global one.
            limits = plan.streams if plan is not None else None
            if not own and account.name == GLOBAL:
                self._enable(options, account, server_limits(options))
            elif limits is not None:
                self._enable(options, account, within(limits, server_limits(options)))
            else:
                self._disable(account)

    def _enable(self, options: Options, account: Account, limits: Limits) -> None:
        refusing = self._refusing.pop(account.name, None)
        if refusing is not None:
            refusing.close()
        if account.jetstream is None:
            from headrace.net.streams import open_streams

            account.jetstream = open_streams(
                options, account, self._timers, self._server_name, self._log, limits, self._room
            )
        elif account.jetstream.limits != limits:
            account.jetstream.adopt_limits(limits)

    def _disable(self, account: Account) -> None:
        if account.jetstream is not None:
            self._log.warn(f"Account {account.name} keeps its streams until a restart")
        elif account.name not in self._refusing:
            self._refusing[account.name] = ClosedDoor(account.hub, ENDPOINTS)
            self._refusing[account.name].open()

    def close_streams(self, account: Account) -> None:
        """Take nothing more in an account's streams; all of it is durable then."""
        jetstream, account.jetstream = account.jetstream, None
        if jetstream is None:
            return
        try:
            jetstream.close()
        except StoreError as error:
            self._log.error(f"The store could not be closed: {error}")
        finally:
            jetstream.store.disk.close()

    def close(self) -> None:
        """End what passes between accounts, then their streams."""
        self._exchange.close()
        for account in self._accounts:
            self.close_streams(account)


def _exports(plans: dict[str, AccountOptions], name: str) -> Iterable[Export]:
    return plans[name].exports if name in plans else ()


def server_limits(options: Options) -> Limits:
    """What the server as a whole allows, for an account that has no limits of its own."""
    return Limits(server_memory=options.max_memory_store or -1, server_storage=options.max_file_store or -1)


def within(limits: Limits, server: Limits) -> Limits:
    """An account's limits, and the server's beside them."""
    return msgspec.structs.replace(
        limits, server_memory=server.server_memory, server_storage=server.server_storage
    )
