"""A serving process: a broker on its disk, and the archiver that confirms its frames.

Owns the order of a start: recover, take the archive over, make a base, serve. With `ack: remote` the end of a frame's
sync is passed on to the store only when the archive has confirmed its group (`FrameGate`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.archive.commit_gate import StoreGate, get_durable_frame
from headrace.archive.group_writer import NO_EARLIER_RUNS, EarlierRuns, GroupWriter, WriterSettings
from headrace.archive.journal_tail import StorePosition
from headrace.backup.pinned_stores import SourceStore
from headrace.backup.target import BackupTarget
from headrace.errors import ArchiveError, ArchiveFenced, StoreError, StorePoisoned
from headrace.sim.disk.sim_disk import SimDisk
from headrace.sim.sim_broker import SimBroker
from headrace.storage import Store
from headrace.storage.checkpoint.checkpoint_context import DoneCallback
from headrace.storage.io.latency import LatencyHistogram
from headrace.storage.snapshot.store_pin import StorePin, StorePinPlan, submit_release

from ..backup_simulation import SimPinFiles
from .bucket import BucketClient
from .process import MachineClock, SimProcess

if TYPE_CHECKING:
    from .simulation import TwoBrokerSimulation

SERVER = 7
RENEW_S = 1.0
LEADER_KEY = "leader"


class PinFailed(StoreError):
    """The store was not quiet, or has ended."""


class Request(NamedTuple):
    """A message from a client on its way to the broker."""

    reply: asyncio.Future[Any]
    subject: str
    payload: bytes
    fields: dict[str, str]


class Inbox:
    """What a client receives outside of requests: deliveries to a consumer's pull requests."""

    def __init__(self, server: LeaderServer, on_delivery: Callable[..., None]) -> None:
        self._server = server
        self._on_delivery = on_delivery

    def on_message(
        self, session: object, subject: bytes, reply: bytes, header: bytes, payload: bytes
    ) -> None:
        self._server.check_output("a delivery")
        self._on_delivery(self._server, subject, reply, header, payload)


class ServingBroker(SimBroker):
    """Passes replies on as soon as they are sent."""

    on_reply: Callable[[int, bytes, bytes], None]

    def on_message(
        self, session: object, subject: bytes, reply: bytes, header: bytes, payload: bytes
    ) -> None:
        self.on_reply(int(subject[len(b"_SIM.") :]), header, payload)


class LeaderServer:
    """One serving process, from its start to its end."""

    disk: SimDisk
    broker: ServingBroker
    store: Store
    gate: StoreGate | None = None
    start_frame = recovered_frame = 0

    def __init__(self, simulation: TwoBrokerSimulation, process: SimProcess, clock: MachineClock) -> None:
        self.simulation = simulation
        self.process = process
        self.name = process.name
        self.clock = clock
        self.rng: Random = simulation.make_rng(f"server {process.name}")
        self.is_remote = simulation.options.is_remote
        self.is_serving = self.is_fenced = False
        self.epoch = 0
        self.fence_reason = ""
        self._inbound: deque[Request] = deque()
        self._requests: dict[int, Request] = {}
        self._inboxes: dict[str, Inbox] = {}
        self._wake: asyncio.Future[None] | None = None
        self._archiver_wake = asyncio.Event()
        self._pin: StorePin | None = None
        self._is_attached = False
        self._archiving: list[asyncio.Task[None]] = []
        options = simulation.options
        settings = WriterSettings(
            SERVER,
            self.name,
            group_bytes=options.group_bytes,
            base_bytes=options.base_bytes,
            keep_ns=options.keep_ns,
        )
        self.target = BackupTarget(BucketClient(simulation.bucket, process), f"{SERVER:016x}", "archive")
        self.writer = GroupWriter(
            self.target, self, settings, clock.now_ns, lambda error: None, process.sleep
        )

    def __repr__(self) -> str:
        return f"{self.name} of epoch {self.epoch}"

    # Its start and end

    def open(self, disk: SimDisk) -> None:
        """Recover the store."""
        self.disk = disk
        clock: Any = self.clock
        self.broker = ServingBroker(disk, self.simulation.options.store, clock, name=self.name)
        self.broker.on_reply = self._on_reply
        self.store = self.broker.store
        self.recovered_frame = self.store.report().frame_before_open

    async def take_over(
        self, known_writers: set[str], frames: dict[int, int], earlier: EarlierRuns = NO_EARLIER_RUNS
    ) -> None:
        """Create the opening group; raise ArchiveFenced if another server writes the archive."""
        await self.writer.take_over(known_writers, frames, earlier)
        self.epoch = self.writer.progress.epoch

    async def serve(self) -> None:
        """Serve until the end; raise ArchiveFenced when another server has taken over."""
        await self.writer.send_group()  # nothing yet: from here on, each frame is for a group
        self.broker.start()
        self.simulation.on_recovered(self)
        work = (self._run_broker(), self._renew(), self._archive())
        tasks = [self.process.spawn(each) for each in work]
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        await self.process.run_gate()
        for task in (*tasks, *self._archiving):
            task.cancel()
        for task in done:
            task.result()

    async def _archive(self) -> None:
        await self._wait_for(self.store.checkpointer.confirm_open)
        if self.is_remote:
            await self._start_remote()
        self.is_serving = True
        self._archiving = [self.process.spawn(each) for each in (self._send_groups(), self._make_bases())]
        done, _ = await asyncio.wait(self._archiving, return_when=asyncio.FIRST_EXCEPTION)
        for task in done:
            task.result()

    async def _start_remote(self) -> None:
        """Make the opening base, then let frames wait for the archive."""
        while True:
            try:
                await self.writer.make_base()
                break
            except ArchiveError:
                raise
            except Exception as error:
                self.simulation.note_error(error)
                await self.process.sleep(0.3)
        self.gate = StoreGate(self.store, self._archiver_wake.set, LatencyHistogram(), self.clock.now_ns)
        self.gate.close()
        while await self.writer.send_group():
            pass
        self.start_frame = self.gate.synced_frame

    def _fence(self, error: ArchiveFenced) -> None:
        """Another server writes the archive: acknowledge and deliver nothing more."""
        if not self.is_fenced:
            self.is_fenced = True
            self.is_serving = False
            self.fence_reason = str(error)
            self.store.fail(StorePoisoned(f"fenced: {error}"))
            self.simulation.fenced += 1
            self.simulation.trace("fenced", self.name)

    async def _send_groups(self) -> None:
        delay_s = 0.0 if self.is_remote else self.simulation.options.group_delay_s
        while True:
            self._archiver_wake.clear()
            try:
                has_more = await self.writer.send_group()
            except ArchiveFenced as error:
                self._fence(error)
                raise
            except ArchiveError:
                raise
            except Exception:
                has_more = False
                await self.process.sleep(0.2)
            if not has_more and not self.writer._announces_base:
                await self._archiver_wake.wait()
                await self.process.run_gate()
            if delay_s:
                await self.process.sleep(delay_s)

    async def _make_bases(self) -> None:
        while True:
            try:
                if self.writer.needs_base:
                    await self.writer.make_base()
                    self._archiver_wake.set()
                    await self.writer.trim()
            except ArchiveFenced as error:
                self._fence(error)
                raise
            except ArchiveError:
                raise
            except Exception as error:
                self.simulation.note_error(error)
            await self.process.sleep(self.rng.uniform(0.05, 0.5))

    async def _renew(self) -> None:
        counter = 0
        while True:
            counter += 1
            try:
                await self.target.replace(LEADER_KEY, f"{self.process.name} {counter}".encode())
            except Exception as error:
                self.simulation.note_error(error)
            await self.process.sleep(RENEW_S)

    # The broker's turns

    async def _run_broker(self) -> None:
        while True:
            await self.process.run_gate()
            if self.is_fenced:
                return
            self.broker.timers.run_due()
            if self._inbound and self.rng.random() < 0.7:
                self._receive(self._inbound.popleft())
            elif not self.broker.step() and not self._inbound:
                await self._wait_for_work()
            elif self.rng.random() < 0.15:
                await self.process.sleep(self.rng.uniform(0, 0.003))

    async def _wait_for_work(self) -> None:
        loop = asyncio.get_running_loop()
        self._wake = loop.create_future()
        deadline_ns = self.broker.timers.next_deadline()
        handle = None
        if deadline_ns is not None:
            delay_s = max(deadline_ns - self.clock.now_ns(), 1000) / 1e9
            handle = loop.call_later(delay_s, self._wake_up)
        await self._wake
        self._wake = None
        if handle is not None:
            handle.cancel()

    def _wake_up(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    def send(self, subject: str, payload: bytes = b"", **fields: str) -> asyncio.Future[Any]:
        """Send a message to the server; return a future of the reply, which may never come."""
        reply: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._inbound.append(Request(reply, subject, payload, fields))
        self._wake_up()
        return reply

    def open_inbox(self, name: str, on_delivery: Callable[..., None]) -> str:
        """Return the subject of a client's inbox."""
        if name not in self._inboxes:
            self._inboxes[name] = Inbox(self, on_delivery)
            self.broker.router.subscribe_internal(f"_C.{name}".encode(), self._inboxes[name])
        return f"_C.{name}"

    def _receive(self, request: Request) -> None:
        if request.subject.startswith("$JS.API.CONSUMER.MSG.NEXT"):
            inbox = request.fields["inbox"].encode()
            self.broker.router.publish(request.subject.encode(), inbox, b"", request.payload)
            return
        number = self.broker.publish(request.subject, request.payload, **request.fields)
        self._requests[number] = request

    def _on_reply(self, number: int, header: bytes, payload: bytes) -> None:
        request = self._requests.get(number)
        # A reply can come before `publish` returns.
        if request is None:
            asyncio.get_running_loop().call_soon(self._on_late_reply, number, header, payload)
        else:
            self._answer(request, header, payload)
        self.check_output("a reply")

    def _on_late_reply(self, number: int, header: bytes, payload: bytes) -> None:
        self._answer(self._requests[number], header, payload)

    def _answer(self, request: Request, header: bytes, payload: bytes) -> None:
        if not request.reply.done():
            self.simulation.checker.on_reply(self, request.subject, request.payload, header, payload)
            request.reply.set_result((header, payload))

    def check_output(self, what: str) -> None:
        """Check that this server may send anything now."""
        self.simulation.checker.on_output(self, what)

    # The store, as the archiver sees it

    async def read_positions(self) -> list[StorePosition]:
        gate = self.gate
        frame = gate.synced_frame if gate is not None else get_durable_frame(self.store)
        if not self._is_attached:
            self._is_attached = True
            self.store.journal.set_archived(frame)
        return [StorePosition(self.store.store_id, "$G", frame, self.store.journal.list_unarchived())]

    def read(self, store_id: int, path: str, offset: int, length: int) -> bytes:
        return self.disk.read(path, offset, length) if self.disk.exists(path) else b""

    async def set_archived(self, frames: dict[int, int]) -> None:
        await self.process.sleep(0)  # the archiver has a thread of its own
        if self.store.poisoned is None:
            frame = frames[self.store.store_id]
            self.store.journal.set_archived(frame)
            if self.gate is not None:
                self.gate.confirm(frame)
            self._wake_up()

    async def set_reserved(self, sequences: dict[int, int]) -> None:
        raise AssertionError("with ack: remote nothing is reserved")

    async def pin(self) -> list[SourceStore]:
        store = self.store
        if not store.checkpointer.durable_number:
            await self._wait_for(self.store.checkpoint)
        for _ in range(50):
            plan = StorePinPlan(store, f"{self.rng.randrange(1 << 60):016x}-0")
            for _ in plan.iter_collect():
                await self.process.sleep(0)
            if plan.is_current and store.poisoned is None:
                break
            await self.process.sleep(0.02)
        else:
            raise PinFailed("the store was never quiet")
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._pin = pin = plan.submit(f"{self.rng.randrange(1 << 60):016x}", partial(_finish, done))
        self._wake_up()
        await done
        await self.process.run_gate()
        files = SimPinFiles(self.disk, pin)
        return [SourceStore("$G", "headrace", files, pin.lineage, pin.checkpoint, pin.frame, pin.ancestors)]

    async def _wait_for(self, start: Callable[[DoneCallback], None]) -> None:
        """Wait for a checkpoint."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        start(partial(_finish, done))
        self._wake_up()
        await done
        await self.process.run_gate()

    async def unpin(self) -> None:
        if self.process.is_killed:
            return
        await self.process.run_gate()
        pin, self._pin = self._pin, None
        if pin is not None and self.store.poisoned is None:
            submit_release(self.store, pin)
            self._wake_up()


def _finish(done: asyncio.Future[None], error: OSError | None) -> None:
    if not done.done():
        done.set_exception(PinFailed(str(error))) if error is not None else done.set_result(None)
