"""JetStream on a real disk, in a real event loop.

Owns how the broker's streams are joined to their folder and to the loop that runs them; nothing of what they do.
"""

from __future__ import annotations

import asyncio
import tempfile
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

from headrace.api.limits import NO_LIMITS, Limits
from headrace.broker import GLOBAL, Account, Timers
from headrace.broker.batches import DEFAULT_LIMITS, BatchLimits
from headrace.broker.fast_batches import FastLimits
from headrace.broker.jetstream import JetStream
from headrace.broker.room import Room
from headrace.net.logs import Log
from headrace.net.options import Options
from headrace.store import FileDisk, Store

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
    store = Store.open(FileDisk(path, loop.call_soon_threadsafe), timers.clock)
    jetstream = JetStream(
        account.hub,
        store,
        timers.clock,
        timers,
        loop.call_soon,
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
    jetstream.start()
    report = store.report()
    for damage in report.damage:
        log.error(f"Damage in the store: {damage}; `headrace fsck` tells more")
    for name, reason in report.offline.items():
        log.error(f"Stream {name} did not start: {reason}")
    log.info(f"  Store Directory: {str(path)!r}")
    log.info(f"  Streams:         {len(jetstream.streams)}")
    return jetstream
