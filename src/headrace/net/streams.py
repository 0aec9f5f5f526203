"""JetStream on a real disk, in a real event loop.

Owns which accounts have streams, and how these are joined to their folder and to the loop that runs them; nothing of
what they do.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

import msgspec

from headrace.api.limits import NO_LIMITS, Limits
from headrace.broker import GLOBAL, Account, Accounts, Timers
from headrace.broker.batches import DEFAULT_LIMITS, BatchLimits
from headrace.broker.door import ClosedDoor
from headrace.broker.fast_batches import FastLimits
from headrace.broker.jetstream import ENDPOINTS, JetStream
from headrace.broker.room import Room
from headrace.errors import StoreError
from headrace.net.logs import Log
from headrace.net.options import AccountOptions, Options
from headrace.store import FileDisk, Store
from headrace.store.features import named

#: The folder inside `store_dir` that belongs to Headrace alone.
FOLDER = "headrace"

#: The folder beside it with one store for each other account.
ACCOUNTS_FOLDER = "headrace-accounts"


def store_path(options: Options, account: str = GLOBAL) -> Path:
    """Where the data of an account is kept."""
    root = Path(options.store_dir or Path(tempfile.gettempdir()) / "headrace")
    if account == GLOBAL:
        return root / FOLDER
    # Names are free text in the configuration: no separator and no dot may lead elsewhere.
    return root / ACCOUNTS_FOLDER / quote(account, safe="$").replace(".", "%2E")


def stores_in(folder: Path) -> list[Path]:
    """The stores of all accounts below a `store_dir`; the folder itself where it is a store, or nothing we know."""
    if (folder / "journal").is_dir():
        return [folder]
    found = [folder / FOLDER, *sorted((folder / ACCOUNTS_FOLDER).glob("*"))]
    return [path for path in found if path.is_dir()] or [folder]


class Streams:
    """The streams of those accounts that may have some; the others are told that they have none."""

    def __init__(
        self, options: Options, accounts: Accounts, timers: Timers, server_name: str, log: Log
    ) -> None:
        self._accounts = accounts
        self._timers = timers
        self._server_name = server_name
        self._log = log
        self._room = Room(options.max_memory_store or -1, options.max_file_store or -1)
        self._refusing: dict[str, ClosedDoor] = {}

    def settle(self, options: Options, plans: Mapping[str, AccountOptions]) -> None:
        """Open and refuse streams as the plans of the accounts want it now."""
        server = server_limits(options)
        own = [name for name in plans if name != self._accounts.system.name]
        for account in self._accounts:
            plan = plans.get(account.name)
            if account is self._accounts.system:
                continue
            # Without accounts of anybody's own everybody is in the global one.
            limits = plan.streams if plan is not None else None
            if not own and account.name == GLOBAL:
                self._enable(options, account, server)
            elif limits is not None:
                self._enable(options, account, within(limits, server))
            else:
                self._disable(account)

    def _enable(self, options: Options, account: Account, limits: Limits) -> None:
        refusing = self._refusing.pop(account.name, None)
        if refusing is not None:
            refusing.close()
        if account.jetstream is None:
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

    def close(self) -> None:
        """Take nothing more; all of it is durable then."""
        for account in self._accounts:
            jetstream, account.jetstream = account.jetstream, None
            if jetstream is None:
                continue
            try:
                jetstream.close()
            except StoreError as error:
                self._log.error(f"The store could not be closed: {error}")
            finally:
                jetstream.store.disk.close()


def server_limits(options: Options) -> Limits:
    """What the server as a whole allows, for an account that has no limits of its own."""
    return Limits(server_memory=options.max_memory_store or -1, server_storage=options.max_file_store or -1)


def within(limits: Limits, server: Limits) -> Limits:
    """An account's limits, and the server's beside them."""
    return msgspec.structs.replace(
        limits, server_memory=server.server_memory, server_storage=server.server_storage
    )


def _fast_limits(options: Options) -> FastLimits:
    """What is configured for batches holds for fast ones too; only the defaults are their own."""
    limits, plain = FastLimits(timeout_ns=int(options.batch_timeout_s * 1e9)), DEFAULT_LIMITS
    if options.batch_max_inflight_per_stream != plain.per_stream:
        limits = replace(limits, per_stream=options.batch_max_inflight_per_stream)
    if options.batch_max_inflight_total != plain.per_server:
        limits = replace(limits, per_server=options.batch_max_inflight_total)
    return limits


def open_streams(
    options: Options,
    account: Account,
    timers: Timers,
    server_name: str,
    log: Log,
    limits: Limits = NO_LIMITS,
    room: Room | None = None,
) -> JetStream:
    """Recover the store and open its streams; what was overdue while the server was down is gone on return."""
    loop = asyncio.get_running_loop()
    path = store_path(options, account.name)
    disk = FileDisk(path, loop.call_soon_threadsafe)
    try:
        with named(path):
            store = Store.open(disk, timers.clock)
            jetstream = _make_jetstream(options, account, store, timers, server_name, limits, room)
    except BaseException:
        disk.close()  # so that a second attempt in this process finds it unlocked
        raise
    jetstream.start()
    report = store.report()
    for damage in report.damage:
        log.error(f"Damage in the store: {damage}; `headrace fsck` tells more")
    for name, reason in report.offline.items():
        log.error(f"Stream {name} did not start: {reason}")
    log.info(f"  Store Directory: {str(path)!r}")
    log.info(f"  Streams:         {len(jetstream.streams)}")
    return jetstream


def _make_jetstream(
    options: Options,
    account: Account,
    store: Store,
    timers: Timers,
    server_name: str,
    limits: Limits,
    room: Room | None,
) -> JetStream:
    return JetStream(
        account.hub,
        store,
        timers.clock,
        timers,
        asyncio.get_running_loop().call_soon,
        server_name=server_name,
        account=account.name,
        domain=options.domain,
        strict=options.strict,
        pending_max=options.max_pending,
        limits=limits,
        batch_limits=BatchLimits(
            per_stream=options.batch_max_inflight_per_stream,
            per_server=options.batch_max_inflight_total,
            messages=options.batch_max_msgs,
            timeout_ns=int(options.batch_timeout_s * 1e9),
        ),
        fast_limits=_fast_limits(options),
        room=room,
    )
