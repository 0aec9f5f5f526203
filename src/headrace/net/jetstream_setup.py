"""Sets up JetStream on a real disk, in a real event loop.

Owns which accounts have JetStream, and connects their streams to the store directory and the event loop. Must not know
what streams do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import quote

import msgspec

from headrace.broker import GLOBAL, Account, Accounts, Timers
from headrace.broker.commit.server_quota import ServerQuota
from headrace.broker.handlers.api_dispatch import DisabledApi
from headrace.broker.jetstream import ENDPOINTS, AccountJetStream
from headrace.broker.jetstream_settings import JetStreamSettings
from headrace.broker.streams.atomic_batch import DEFAULT_LIMITS, AtomicBatchBudget, BatchLimits
from headrace.broker.streams.fast_ingest import FastIngestBudget, FastIngestLimits
from headrace.config.archive_options import REMOTE
from headrace.config.options import AccountOptions, OptionsError, ServerOptions
from headrace.errors import StoreError
from headrace.jetstream_api.account_limits import JetStreamLimits
from headrace.net.logs import Logger
from headrace.net.loop_wakeup import LoopWakeup
from headrace.net.loop_watchdog import LoopWatchdog
from headrace.net.offloop import OffloopThread
from headrace.storage import FileDisk, Store, open_store
from headrace.storage.format_features import name_folder_in_errors

#: The directory inside `store_dir` that belongs to Headrace alone.
STORE_FOLDER = "headrace"

#: The directory beside it with one store for each other account.
ACCOUNTS_FOLDER = "headrace-accounts"


def store_path(options: ServerOptions, account: str = GLOBAL) -> Path:
    """Return the directory of an account's store."""
    root = Path(options.store_dir) if options.store_dir else _get_default_root()
    if account == GLOBAL:
        return root / STORE_FOLDER
    # Account names are free text: separators and dots must not lead to another directory.
    return root / ACCOUNTS_FOLDER / quote(account, safe="$").replace(".", "%2E")


def _get_default_root() -> Path:
    import tempfile  # here, because with what it imports it takes several milliseconds of each start

    return Path(tempfile.gettempdir()) / "headrace"


def find_stores(folder: Path) -> list[Path]:
    """Return the stores of all accounts below a `store_dir`; the directory itself if it is a store or has none."""
    if (folder / "journal").is_dir():
        return [folder]
    found = [folder / STORE_FOLDER, *sorted((folder / ACCOUNTS_FOLDER).glob("*"))]
    return [path for path in found if path.is_dir()] or [folder]


@dataclass(frozen=True, slots=True)
class SharedLimits:
    """What the accounts of a server share: storage, open atomic batches, open fast-ingest batches."""

    quota: ServerQuota
    batches: AtomicBatchBudget
    fast_ingest: FastIngestBudget

    @classmethod
    def make(cls, options: ServerOptions) -> SharedLimits:
        """Make the limits that are configured."""
        quota = ServerQuota(options.max_memory_store or -1, options.max_file_store or -1)
        batches = BatchLimits(
            per_stream=options.batch_max_inflight_per_stream,
            per_server=options.batch_max_inflight_total,
            messages=options.batch_max_msgs,
            timeout_ns=int(options.batch_timeout_s * 1e9),
        )
        fast_ingest = FastIngestBudget(_make_fast_ingest_limits(options))
        return cls(quota, AtomicBatchBudget(batches), fast_ingest)


class JetStreamSetup:
    """Opens JetStream for the accounts that may have it; requests of the others get an error."""

    def __init__(
        self,
        options: ServerOptions,
        accounts: Accounts,
        timers: Timers,
        server_name: str,
        log: Logger,
        watchdog: LoopWatchdog,
    ) -> None:
        self._accounts = accounts
        self._timers = timers
        self._server_name = server_name
        self._log = log
        self._watchdog = watchdog
        self._shared_limits = SharedLimits.make(options)
        self._disabled_apis: dict[str, DisabledApi] = {}
        self._is_started = False

    def apply(self, options: ServerOptions, account_configs: Mapping[str, AccountOptions]) -> None:
        """Enable or disable JetStream for each account, as configured now."""
        server = make_server_limits(options)
        configured_names = [name for name in account_configs if name != self._accounts.system.name]
        for account in self._accounts:
            account_config = account_configs.get(account.name)
            if account is self._accounts.system:
                continue
            # Without configured accounts, every client uses the global account.
            limits = account_config.jetstream_limits if account_config is not None else None
            is_only = not configured_names and account.name == GLOBAL
            if (is_only or limits is not None) and self._may_enable(options, account):
                self._enable(
                    options, account, combine_limits(limits, server) if limits is not None else server
                )
            else:
                self._disable(account)
        self._is_started = True

    def _may_enable(self, options: ServerOptions, account: Account) -> bool:
        """Return whether JetStream is enabled or can be: with `ack: remote`, a base must have a store before it serves."""
        is_remote = options.archive is not None and options.archive.ack == REMOTE
        if not self._is_started or account.jetstream is not None or not is_remote:
            return True
        self._log.warn(
            f"Enabling JetStream for account {account.name} requires a restart: the archive has ack: remote"
        )
        return False

    def _enable(self, options: ServerOptions, account: Account, limits: JetStreamLimits) -> None:
        disabled_api = self._disabled_apis.pop(account.name, None)
        if disabled_api is not None:
            disabled_api.unsubscribe()
        if account.jetstream is None:
            account.jetstream = open_jetstream(
                options,
                account,
                self._timers,
                self._server_name,
                self._log,
                self._watchdog,
                limits,
                self._shared_limits,
            )
        elif account.jetstream.quota.limits != limits:
            account.jetstream.quota.set_limits(limits)

    def _disable(self, account: Account) -> None:
        if account.jetstream is not None:
            self._log.warn(f"Disabling JetStream for account {account.name} requires a restart")
        elif account.name not in self._disabled_apis:
            self._disabled_apis[account.name] = DisabledApi(account.router, ENDPOINTS)
            self._disabled_apis[account.name].subscribe()

    def close(self) -> None:
        """Close all JetStreams; everything is durable then."""
        for account in self._accounts:
            jetstream, account.jetstream = account.jetstream, None
            if jetstream is None:
                continue
            try:
                jetstream.close()
            except StoreError as error:
                self._log.error(f"Cannot close the store: {error}")
            finally:
                jetstream.store.disk.close()


def make_server_limits(options: ServerOptions) -> JetStreamLimits:
    """Return the server's limits, for an account without limits of its own."""
    return JetStreamLimits(
        server_memory=options.max_memory_store or -1, server_storage=options.max_file_store or -1
    )


def combine_limits(limits: JetStreamLimits, server: JetStreamLimits) -> JetStreamLimits:
    """Return an account's limits together with the server's."""
    return msgspec.structs.replace(
        limits, server_memory=server.server_memory, server_storage=server.server_storage
    )


def _make_fast_ingest_limits(options: ServerOptions) -> FastIngestLimits:
    """Return the limits of fast ingest: those configured for batches apply too; only the defaults differ."""
    limits, defaults = FastIngestLimits(timeout_ns=int(options.batch_timeout_s * 1e9)), DEFAULT_LIMITS
    if options.batch_max_inflight_per_stream != defaults.per_stream:
        limits = replace(limits, per_stream=options.batch_max_inflight_per_stream)
    if options.batch_max_inflight_total != defaults.per_server:
        limits = replace(limits, per_server=options.batch_max_inflight_total)
    return limits


def open_jetstream(
    options: ServerOptions,
    account: Account,
    timers: Timers,
    server_name: str,
    log: Logger,
    watchdog: LoopWatchdog,
    limits: JetStreamLimits,
    shared_limits: SharedLimits,
) -> AccountJetStream:
    """Recover the store and open its streams; messages that expired while the server was down are removed on return."""
    loop = asyncio.get_running_loop()
    path = store_path(options, account.name)
    if options.store_dir and Path(options.store_dir).exists() and not Path(options.store_dir).is_dir():
        raise OptionsError(
            f"Can't start JetStream: storage directory is not a directory: {options.store_dir!r}"
        )
    disk = FileDisk(path, watchdog.watch(loop.call_soon_threadsafe), LoopWakeup(loop, watchdog.run))
    try:
        with name_folder_in_errors(path):
            store = open_store(disk, timers.clock)
            jetstream = _make_jetstream(
                options, account, store, timers, server_name, watchdog, limits, shared_limits
            )
    except BaseException:
        disk.close()  # releases the lock, so that this process can try again
        raise
    jetstream.start()
    report = store.report()
    for damage in report.damage:
        log.error(f"Damage in the store: {damage}; run `headrace fsck` for details")
    for name, reason in report.offline_streams.items():
        log.error(f"Cannot start stream {name}: {reason}")
    log.info(f"  Store Directory: {str(path)!r}")
    log.info(f"  Streams:         {len(jetstream.streams)}")
    return jetstream


def _make_jetstream(
    options: ServerOptions,
    account: Account,
    store: Store,
    timers: Timers,
    server_name: str,
    watchdog: LoopWatchdog,
    limits: JetStreamLimits,
    shared_limits: SharedLimits,
) -> AccountJetStream:
    return AccountJetStream(
        account.router,
        store,
        timers.clock,
        timers,
        watchdog.watch(asyncio.get_running_loop().call_soon),
        JetStreamSettings(
            server_name=server_name,
            account=account.name,
            domain=options.domain,
            reject_unknown_fields=options.strict,
            pending_max=options.max_pending,
            limits=limits,
            run_operation=watchdog.run_operation,
            run_off_loop=OffloopThread(asyncio.get_running_loop()).run,
            batch_budget=shared_limits.batches,
            fast_ingest_budget=shared_limits.fast_ingest,
        ),
        shared_limits.quota,
    )
