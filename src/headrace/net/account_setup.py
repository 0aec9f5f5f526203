"""Sets up the accounts of a server from its options or from an operator's JWTs.

Owns how configuration becomes accounts - their limits, their imports and exports - at the start and again on a reload.
Their streams, if any, are set up by `jetstream_setup`. The accounts themselves belong to the broker.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol

from headrace.auth.authenticator import Authenticator
from headrace.broker import GLOBAL, Account, AccountLimits, Accounts, TimerHandle, Timers
from headrace.broker.account_imports import AccountImports
from headrace.broker.routing.exports import AccountImportError, Export, Import, check_import, drop_cycles
from headrace.broker.routing.subject_mapping import SubjectMapping, set_subject_mappings
from headrace.config.options import AccountOptions, OptionsError, ServerOptions
from headrace.config.trace_options import NO_TRACE
from headrace.net.logs import Logger
from headrace.net.loop_watchdog import LoopWatchdog

if TYPE_CHECKING:
    from headrace.net.jetstream_setup import JetStreamSetup

ImportsByAccount = dict[str, tuple[Import, ...]]


class AccountObserver(Protocol):
    """Is notified of accounts that are created while the server runs."""

    def add_account(self, account: Account) -> None:
        """Handle a new account."""


class AccountSetup:
    """Creates and updates the accounts of a server."""

    def __init__(
        self, accounts: Accounts, timers: Timers, server_name: str, log: Logger, watchdog: LoopWatchdog
    ) -> None:
        self._accounts = accounts
        self._timers = timers
        self._server_name = server_name
        self._log = log
        self._watchdog = watchdog
        self._account_imports = AccountImports(accounts, timers, server_name)
        self._subject_mappings: dict[str, tuple[SubjectMapping, ...]] = {}
        self._jetstream_setup: JetStreamSetup | None = None
        self._active_imports: ImportsByAccount = {}
        self._token_timer: TimerHandle | None = None
        self.observer: AccountObserver | None = None

    def apply(self, options: ServerOptions, authenticator: Authenticator) -> None:
        """Apply the options to the accounts; raise OptionsError for an impossible import before anything changes."""
        now_s = time.time()
        account_configs = self._get_account_configs(options, authenticator, now_s)
        imports = self._resolve_imports(account_configs, strict=authenticator.operator_trust is None)
        for account_config in account_configs.values():
            is_new = self._accounts.get(account_config.name) is None
            account = self._accounts.get_or_create(account_config.name)
            account.limits = account_config.limits or AccountLimits()
            if (
                authenticator.operator_trust is not None
                and account_config.name in authenticator.operator_trust.accounts
            ):
                account.display_name = (
                    authenticator.operator_trust.accounts[account_config.name].name or account_config.name
                )
            if is_new and self.observer is not None:
                self.observer.add_account(account)
        if options.jetstream:
            self._get_jetstream_setup(options).apply(options, account_configs)
        self._apply_imports(account_configs, imports)
        self._apply_subject_mappings(options, account_configs)
        self._apply_tracing(account_configs)
        self._schedule_token_check(options, authenticator, now_s)

    def _schedule_token_check(
        self, options: ServerOptions, authenticator: Authenticator, now_s: float
    ) -> None:
        """Schedule a check of imports for when the next activation token becomes valid or expires."""
        if self._token_timer is not None:
            self._token_timer.cancel()
            self._token_timer = None
        at_s = (
            authenticator.operator_trust.next_token_change(now_s)
            if authenticator.operator_trust is not None
            else 0
        )
        if at_s:
            delay_ns = max(int((at_s - now_s) * 1e9), 0)
            self._token_timer = self._timers.after(
                delay_ns, lambda: self._recheck_tokens(options, authenticator, at_s)
            )

    def _recheck_tokens(self, options: ServerOptions, authenticator: Authenticator, at_s: float) -> None:
        now_s = max(time.time(), at_s)
        account_configs = self._get_account_configs(options, authenticator, now_s)
        imports = self._resolve_imports(account_configs, strict=False)
        changed = {
            name: requested
            for name, requested in imports.items()
            if requested != self._active_imports.get(name)
        }
        for name, requested in changed.items():
            self._account_imports.set_imports(
                name, requested, lambda exporter: _get_exports(account_configs, exporter)
            )
        self._active_imports = imports
        self._schedule_token_check(options, authenticator, now_s)

    def _get_jetstream_setup(self, options: ServerOptions) -> JetStreamSetup:
        if self._jetstream_setup is None:
            from headrace.net.jetstream_setup import JetStreamSetup

            self._jetstream_setup = JetStreamSetup(
                options, self._accounts, self._timers, self._server_name, self._log, self._watchdog
            )
        return self._jetstream_setup

    def _get_account_configs(
        self, options: ServerOptions, authenticator: Authenticator, now_s: float
    ) -> dict[str, AccountOptions]:
        if authenticator.operator_trust is not None:
            return {
                account_config.name: account_config
                for account_config in authenticator.operator_trust.make_account_configs(now_s)
            }
        return {account_config.name: account_config for account_config in options.accounts}

    def _resolve_imports(
        self, account_configs: dict[str, AccountOptions], *, strict: bool
    ) -> ImportsByAccount:
        """Return the imports of each account.

        An import that is not allowed, or forms a cycle, is an error if `strict`; otherwise it is left out.
        """
        rejected: list[AccountImportError] = []
        requested = {
            account_config.name: tuple(
                each
                for each in account_config.imports
                if self._is_importable(account_configs, account_config, each, rejected)
            )
            for account_config in account_configs.values()
        }
        accepted, cycles = drop_cycles(requested)
        rejected += cycles
        if strict and rejected:
            raise OptionsError(str(rejected[0])) from rejected[0]
        for reason in rejected:
            self._log.warn(f"An import is left out: {reason}")
        return accepted

    @staticmethod
    def _is_importable(
        account_configs: dict[str, AccountOptions],
        account_config: AccountOptions,
        requested: Import,
        rejected: list[AccountImportError],
    ) -> bool:
        try:
            check_import(_get_exports(account_configs, requested.account), requested, account_config.name)
        except AccountImportError as error:
            rejected.append(error)
            return False
        return True

    def _apply_imports(self, account_configs: dict[str, AccountOptions], imports: ImportsByAccount) -> None:
        for account in self._accounts:
            self._account_imports.clear_imports(account.name)
        for name, requested in imports.items():
            self._account_imports.set_imports(
                name, requested, lambda exporter: _get_exports(account_configs, exporter)
            )
        self._active_imports = imports

    def _apply_subject_mappings(
        self, options: ServerOptions, account_configs: dict[str, AccountOptions]
    ) -> None:
        for account in self._accounts:
            account_config = account_configs.get(account.name)
            mappings = (
                options.redirects
                if account.name == GLOBAL
                else account_config.subject_mappings
                if account_config
                else ()
            )
            if mappings != self._subject_mappings.get(account.name, ()):
                self._subject_mappings[account.name] = mappings
                set_subject_mappings(account.router, mappings)
                for session in account.sessions:
                    session.table = account.router.client_table

    def _apply_tracing(self, account_configs: dict[str, AccountOptions]) -> None:
        for account in self._accounts:
            config, tracing = account_configs.get(account.name), account.router.tracing
            trace = config.trace if config is not None else NO_TRACE
            if tracing is not None:
                tracing.dest, tracing.sampling = trace.dest.encode(), trace.sampling
            for session in account.sessions:
                session.apply_tracing()

    def close(self) -> None:
        """Close imports between accounts, then their JetStreams."""
        if self._token_timer is not None:
            self._token_timer.cancel()
        self._account_imports.close()
        if self._jetstream_setup is not None:
            self._jetstream_setup.close()


def _get_exports(account_configs: dict[str, AccountOptions], name: str) -> Iterable[Export]:
    return account_configs[name].exports if name in account_configs else ()
