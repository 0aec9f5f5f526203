"""Pins all stores of the server at one moment, for a backup: requests on `$SYS.REQ.SERVER.PIN` and `UNPIN`.

Owns these pins, their leases and their tokens. Users of the system account may send the requests; on a server without
accounts, all users may, as far as their permissions allow the subjects. Invariant: all stores of a pin show the same
moment, because one turn of the event loop takes them all, and only what is durable is in it. The stores do the rest:
see `headrace.storage.snapshot.store_pin`.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from headrace.errors import StoreError
from headrace.protocol.json_exceptions import JSON_ERRORS

if TYPE_CHECKING:
    from headrace.broker import Account
    from headrace.broker.jetstream import AccountJetStream
    from headrace.broker.routing.router import SubjectRouter
    from headrace.monitor.monitored_server import MonitoredServer
    from headrace.storage.snapshot.store_pin import StorePin, StorePinPlan

PIN_SUBJECT, UNPIN_SUBJECT = b"$SYS.REQ.SERVER.PIN", b"$SYS.REQ.SERVER.UNPIN"
LEASE_S_DEFAULT = 300.0
LEASE_S_MAX = 3600.0
#: Pins at a time: each keeps files that the store would otherwise remove.
PINS_MAX = 8
ATTEMPTS = 100
#: More than this in the journal since the last checkpoint, and a pin waits for a new one.
JOURNALED_MAX = 4 << 20
CHECKPOINT_TIMEOUT_S = 60.0
_PAUSE_S = 0.02


class PinRefused(StoreError):
    """The server cannot make this pin."""


@dataclass(slots=True)
class ServerPin:
    """The pins of all stores, with one token, until the lease ends."""

    name: str
    token: str
    stores: list[tuple[AccountJetStream, StorePin]]
    expires_ns: int
    timer: asyncio.TimerHandle


class ServerPins:
    """Handles the requests of backups."""

    def __init__(
        self, server: MonitoredServer, make_server_info: Callable[[], dict[str, Any]] = dict
    ) -> None:
        self._server = server
        self.make_server_info = make_server_info
        self._pins: dict[str, ServerPin] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._lock = (
            asyncio.Lock()
        )  # one pin is made at a time: each one adds a token to the lineage of a store

    def subscribe(self) -> None:
        """Subscribe to the requests, in the system account and in the account of a server without accounts."""
        accounts = self._server.accounts
        for account in (accounts.system, accounts.main):
            for subject in (PIN_SUBJECT, UNPIN_SUBJECT):
                account.router.subscribe_internal(subject, _PinRequests(self, account))

    def stop(self) -> None:
        """End all work: the server stops. The next start removes the files of pins."""
        for task in self._tasks:
            task.cancel()
        for pin in self._pins.values():
            pin.timer.cancel()

    def handle(self, account: Account, subject: bytes, reply: bytes, payload: bytes) -> None:
        """Start to handle a request; the response follows."""
        accounts = self._server.accounts
        has_others = any(each not in (accounts.main, accounts.system) for each in accounts)
        if account is not accounts.system and has_others:
            error = "this server has accounts: connect as a user of the system account"
            self._respond(account.router, reply, {"error": {"code": 403, "description": error}})
            return
        task = asyncio.get_running_loop().create_task(self._run(account.router, subject, reply, payload))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, router: SubjectRouter, subject: bytes, reply: bytes, payload: bytes) -> None:
        try:
            body = msgspec.json.decode(payload or b"{}", type=dict[str, Any])
            data = await self._handle_pin(body) if subject == PIN_SUBJECT else self._handle_unpin(body)
            self._respond(router, reply, {"data": data})
        except JSON_ERRORS as error:
            self._respond(router, reply, {"error": {"code": 400, "description": str(error)}})
        except StoreError as error:
            self._respond(router, reply, {"error": {"code": 503, "description": str(error)}})

    def _respond(self, router: SubjectRouter, reply: bytes, response: dict[str, Any]) -> None:
        router.publish(reply, b"", b"", msgspec.json.encode({"server": self.make_server_info()} | response))

    async def _handle_pin(self, body: dict[str, Any]) -> dict[str, Any]:
        """Make a pin, or extend the lease of one that exists."""
        lease_s = body.get("lease", LEASE_S_DEFAULT)
        if not isinstance(lease_s, int | float) or not 0 < lease_s <= LEASE_S_MAX:
            raise ValueError(f"lease must be a number of seconds, at most {LEASE_S_MAX:.0f}")
        name = body.get("pin")
        if name is None:
            stats = self._server.stats()
            ports = {"http_port": stats.http_port, "https_port": stats.https_port}
            return await self.create(lease_s) | ports
        pin = self._pins.get(name) if isinstance(name, str) else None
        if pin is None:
            raise PinRefused("there is no such pin: its lease has ended, or the server was restarted")
        pin.timer.cancel()
        pin.timer, pin.expires_ns = self._start_lease(pin.name, lease_s)
        return {"pin": pin.name, "expires_ns": pin.expires_ns}

    async def create(self, lease_s: float) -> dict[str, Any]:
        """Pin all stores, and describe the pin; also before the server accepts clients."""
        async with self._lock:
            return self._describe(await self._create(lease_s))

    def _handle_unpin(self, body: dict[str, Any]) -> dict[str, Any]:
        name = body.get("pin")
        if isinstance(name, str):
            self.release(name)
        return {"success": True}

    def release(self, name: str) -> None:
        """Release a pin; its files are removed in the background."""
        pin = self._pins.pop(name, None)
        if pin is None:
            return
        pin.timer.cancel()
        for jetstream, store_pin in pin.stores:
            jetstream.pin_leases.store_tokens.pop(store_pin.name, None)
            _submit_release(jetstream, store_pin)

    async def _create(self, lease_s: float) -> ServerPin:
        if len(self._pins) >= PINS_MAX:
            raise PinRefused(f"there are {PINS_MAX} pins for backups: wait until one is released")
        jetstreams = list(self._server.accounts.jetstreams())
        if not jetstreams:
            raise PinRefused("JetStream is not enabled: there is nothing to back up")
        await asyncio.gather(*(_make_checkpoint(each) for each in jetstreams))
        name = secrets.token_hex(8)
        for _ in range(ATTEMPTS):
            plans = [await _collect(each, f"{name}-{number}") for number, each in enumerate(jetstreams)]
            if all(plan.is_current for plan in plans):
                # From here to the last submission nothing else runs: all stores show the same moment.
                return await self._submit(name, jetstreams, plans, lease_s)
            await asyncio.sleep(_PAUSE_S)
        raise PinRefused("the stores were never quiet enough for a pin: try again")

    async def _submit(
        self, name: str, jetstreams: list[AccountJetStream], plans: list[StorePinPlan], lease_s: float
    ) -> ServerPin:
        loop = asyncio.get_running_loop()
        done: list[asyncio.Future[None]] = [loop.create_future() for _ in plans]
        stores = [
            (jetstream, plan.submit(secrets.token_hex(8), _make_callback(future)))
            for jetstream, plan, future in zip(jetstreams, plans, done, strict=True)
        ]
        results = await asyncio.gather(*done, return_exceptions=True)
        failed = next((each for each in results if isinstance(each, BaseException)), None)
        if failed is not None:
            for jetstream, store_pin in stores:
                _submit_release(jetstream, store_pin, is_partial=True)
            raise PinRefused(f"a store cannot be pinned: {failed}")
        timer, expires_ns = self._start_lease(name, lease_s)
        token = secrets.token_hex(32)
        pin = self._pins[name] = ServerPin(name, token, stores, expires_ns, timer)
        for jetstream, store_pin in stores:
            jetstream.pin_leases.store_tokens[store_pin.name] = token
        return pin

    def _start_lease(self, name: str, lease_s: float) -> tuple[asyncio.TimerHandle, int]:
        timer = asyncio.get_running_loop().call_later(lease_s, self.release, name)
        return timer, self._server.now_ns() + int(lease_s * 1e9)

    def _describe(self, pin: ServerPin) -> dict[str, Any]:
        return {
            "pin": pin.name,
            "token": pin.token,
            "expires_ns": pin.expires_ns,
            "stores": [_describe_store(jetstream, each) for jetstream, each in pin.stores],
        }


class _PinRequests:
    """The requests of one account."""

    __slots__ = ("_account", "_pins")

    def __init__(self, pins: ServerPins, account: Account) -> None:
        self._pins, self._account = pins, account

    def on_message(self, session: Any, subject: bytes, reply: bytes, header: bytes, payload: bytes) -> None:
        if reply:
            self._pins.handle(self._account, subject, reply, payload)


async def _make_checkpoint(jetstream: AccountJetStream) -> None:
    """Wait for a checkpoint if a pin needs one; without space for it, the pin uses the one that exists."""
    store = jetstream.store
    # A server without streams does not load the storage.
    from headrace.storage.snapshot.store_pin import needs_checkpoint

    if needs_checkpoint(store, JOURNALED_MAX):
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        store.checkpoint(lambda error: None if done.done() else done.set_result(None))
        try:
            await asyncio.wait_for(done, CHECKPOINT_TIMEOUT_S)
        except TimeoutError:
            raise PinRefused(
                f"no checkpoint within {CHECKPOINT_TIMEOUT_S:.0f} s: is the disk slow?"
            ) from None


async def _collect(jetstream: AccountJetStream, name: str) -> StorePinPlan:
    from headrace.storage.snapshot.store_pin import StorePinPlan

    plan = StorePinPlan(jetstream.store, name)
    for _ in plan.iter_collect():
        await asyncio.sleep(0)
    return plan


def _make_callback(future: asyncio.Future[None]) -> Callable[[OSError | None], None]:
    def on_done(error: OSError | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(None)

    return on_done


def _submit_release(jetstream: AccountJetStream, pin: StorePin, *, is_partial: bool = False) -> None:
    from headrace.storage.snapshot.store_pin import submit_release

    submit_release(jetstream.store, pin, is_partial=is_partial)


def _describe_store(jetstream: AccountJetStream, pin: StorePin) -> dict[str, Any]:
    from headrace.storage import FileDisk

    disk = jetstream.store.disk
    folder = str(disk.root.absolute()) if isinstance(disk, FileDisk) else ""
    return {
        "account": jetstream.account,
        "pin": pin.name,
        "folder": folder,
        "store_id": pin.store_id,
        "lineage": pin.lineage,
        "ancestors": pin.ancestors,
        "checkpoint": pin.checkpoint,
        "frame": pin.frame,
        "journal": pin.journal,
        "streams": len(jetstream.streams),
        "messages": sum(stream.log.messages for stream in jetstream.streams.values()),
    }
