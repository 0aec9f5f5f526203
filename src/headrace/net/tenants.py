"""The accounts of a server as its options, or an operator's tokens, want them.

Owns how what was configured becomes accounts: their limits, what passes between them; at the start and again on a
reload. Their streams, if there are any, are kept by `streams`. The accounts themselves are the broker's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from headrace.broker import GLOBAL, Account, AccountLimits, Accounts, Handle, Timers
from headrace.broker.exchange import Exchange
from headrace.broker.exports import ExchangeError, Export, Import, check_import, without_cycles
from headrace.broker.redirects import Redirect, redirect
from headrace.net.auth import Authenticator
from headrace.net.logs import Log
from headrace.net.options import AccountOptions, Options, OptionsError

if TYPE_CHECKING:
    from headrace.net.streams import Streams

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
        self._streams: Streams | None = None
        self._imported: Imports = {}
        self._turn: Handle | None = None
        #: Called with each account that is new.
        self.on_new: Callable[[Account], None] = lambda account: None

    def settle(self, options: Options, judge: Authenticator) -> None:
        """Bring the accounts to what is wanted now; OptionsError, before anything changes, for an import that cannot be."""
        now_s = time.time()
        plans = self._plans(options, judge, now_s)
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
            self._keeper(options).settle(options, plans)
        self._connect(plans, imports)
        self._redirect(options, plans)
        self._await_turn(options, judge, now_s)

    def _await_turn(self, options: Options, judge: Authenticator, now_s: float) -> None:
        """Look again at who may import what when the next token for it begins or ends to count."""
        if self._turn is not None:
            self._turn.cancel()
            self._turn = None
        at_s = judge.trust.next_turn(now_s) if judge.trust is not None else 0
        if at_s:
            delay_ns = max(int((at_s - now_s) * 1e9), 0)
            self._turn = self._timers.after(delay_ns, lambda: self._take_turn(options, judge, at_s))

    def _take_turn(self, options: Options, judge: Authenticator, at_s: float) -> None:
        now_s = max(time.time(), at_s)
        plans = self._plans(options, judge, now_s)
        imports = self._imports(plans, strict=False)
        changed = {name: wanted for name, wanted in imports.items() if wanted != self._imported.get(name)}
        for name, wanted in changed.items():
            self._exchange.connect(name, wanted, lambda exporter: _exports(plans, exporter))
        self._imported = imports
        self._await_turn(options, judge, now_s)

    def _keeper(self, options: Options) -> Streams:
        if self._streams is None:
            from headrace.net.streams import Streams

            self._streams = Streams(options, self._accounts, self._timers, self._server_name, self._log)
        return self._streams

    def _plans(self, options: Options, judge: Authenticator, now_s: float) -> dict[str, AccountOptions]:
        if judge.trust is not None:
            return {plan.name: plan for plan in judge.trust.plans(now_s)}
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
        self._imported = imports

    def _redirect(self, options: Options, plans: dict[str, AccountOptions]) -> None:
        for account in self._accounts:
            plan = plans.get(account.name)
            rules = options.redirects if account.name == GLOBAL else plan.redirects if plan else ()
            if rules != self._redirects.get(account.name, ()):
                self._redirects[account.name] = rules
                redirect(account.hub, rules)
                for session in account.sessions:
                    session.table = account.hub.client_table

    def close(self) -> None:
        """End what passes between accounts, then their streams."""
        if self._turn is not None:
            self._turn.cancel()
        self._exchange.close()
        if self._streams is not None:
            self._streams.close()


def _exports(plans: dict[str, AccountOptions], name: str) -> Iterable[Export]:
    return plans[name].exports if name in plans else ()
