"""A broker inside this process: `async with headrace.Server(store_dir=...) as server`.

Owns how the parts of a server are put together, started and stopped, in whatever event loop runs.
`headrace serve` is this with a process around it. It must not know signals, command lines or the wire.
"""

from __future__ import annotations

import asyncio
import os
import ssl
import time
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

from headrace import COMPATIBLE_VERSION, __version__
from headrace.broker import SYSTEM, Accounts, Timers
from headrace.durations import Duration, duration_ns
from headrace.net.auth import Authenticator
from headrace.net.clocks import Alarm, SystemClock
from headrace.net.doors import address, not_to_be_had
from headrace.net.info import make_server_id
from headrace.net.inside import way_in
from headrace.net.listener import Listener
from headrace.net.logs import SILENT, Log
from headrace.net.options import ANY_PORT, Options, OptionsError, from_keywords, is_loopback
from headrace.net.presence import Presence
from headrace.net.reload import fixed_changes, merged, review
from headrace.net.tenants import Tenants
from headrace.net.tls import context_of, server_context

if TYPE_CHECKING:
    from headrace.broker.jetstream import JetStream
    from headrace.claims.service import Collectors
    from headrace.monitor.monitors import Monitors
    from headrace.monitor.varz import Vitals
    from headrace.net.leaf import LeafDoor
    from headrace.sim import SimClock

__all__ = ["Server"]


class Server:
    """One broker. Keywords are the options of `headrace.net.options.Options`; the port is any free one, and a
    `store_dir` asks for durable streams. `options` gives all at once, with the command line's defaults.

    `clock="virtual"` makes the broker's time stand still until `advance` moves it, so that what waits for an
    age, a TTL or a redelivery happens at once. Connections keep real time: nobody times out meanwhile.
    """

    def __init__(
        self,
        store_dir: str | os.PathLike[str] | None = None,
        *,
        options: Options | None = None,
        clock: Literal["system", "virtual"] = "system",
        log: Log = SILENT,
        **settings: Any,
    ) -> None:
        if options is None:
            settings.setdefault("port", ANY_PORT)
            if store_dir is not None:
                settings.setdefault("jetstream", True)
                settings["store_dir"] = str(Path(store_dir))
            options = from_keywords(**settings)
        elif settings or store_dir is not None:
            raise OptionsError("give either options=... or single settings, not both")
        options.check()
        self.options = options
        self.server_id = make_server_id()
        self.server_name = options.server_name or self.server_id
        self._log = log
        self._virtual = _virtual_clock() if clock == "virtual" else None
        self.timers = Timers(self._virtual or SystemClock())
        self._judge = Authenticator(options)
        self.accounts = Accounts(self._system_account())
        self.hub = self.accounts.main.hub
        self._tenants = Tenants(self.accounts, self.timers, self.server_name, log)
        self._presence = Presence(options)
        self._monitors: Monitors | None = None
        self._stopped = asyncio.Event()
        self._start_ns = 0
        self._alarm: Alarm | None = None
        self._listener: Listener | None = None
        self._leafs: LeafDoor | None = None
        self._collectors: Collectors | None = None
        self._lame_duck: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Accept clients; OptionsError says what stands in the way. A server starts once."""
        if self._listener is not None or self._stopped.is_set():
            raise RuntimeError("a server starts only once: make another one")
        self._greet()
        tls = server_context(self.options)
        self._start_ns = self.now_ns()
        try:
            self._tenants.settle(self.options, self._judge)
            await self._open_door(tls)
            await self._open_web()
            self._collectors = self._make_collectors()
            await self._open_leafs()
            await self._open_monitors(tls)
            self._presence.show(nats=[self.url], monitoring=self._page_urls(), websocket=self._web_urls())
        except BaseException:
            await self.stop()
            raise
        if self._virtual is None:
            self._alarm = Alarm(self.timers, asyncio.get_running_loop())
        if self._collectors is not None:
            self._collectors.start()
        self._log.info("Server is ready")

    async def stop(self) -> None:
        """Close everything; what was said to clients is sent first. No harm when it has stopped already."""
        if self._stopped.is_set():
            return
        if self._listener is not None:
            self._log.info("Initiating Shutdown...")
        if self._lame_duck is not None and self._lame_duck is not asyncio.current_task():
            self._lame_duck.cancel()
        if self._collectors is not None:
            await self._collectors.stop()
        if self._alarm is not None:
            self._alarm.close()
        if self._leafs is not None:
            await self._leafs.stop()
        self._tenants.close()
        if self._listener is not None:
            await self._listener.stop()
        if self._monitors is not None:
            await self._monitors.stop()
        self._presence.hide()
        self._stopped.set()

    async def wait_stopped(self) -> None:
        """Return when the server has stopped, whoever asked for it."""
        await self._stopped.wait()

    def begin_lame_duck(self) -> None:
        """Take no new clients, ask those there to move, let them go one by one, then stop."""
        if self._lame_duck is None and self._listener is not None:
            self._log.info("Entering lame duck mode, stop accepting new clients")
            self._lame_duck = asyncio.get_running_loop().create_task(self._walk_lame(self._listener))

    async def _walk_lame(self, listener: Listener) -> None:
        await listener.lame_duck()
        await self.stop()

    def reload(self, options: Options) -> None:
        """Take up changed users, permissions, certificates and log levels; the rest needs a new server."""
        options.check()
        listener = self.listener
        tls, judge = server_context(options), Authenticator(options)
        files = options.websocket.tls
        web_tls = context_of(files) if files.cert else None
        for name in sorted(fixed_changes(self.options, options)):
            self._log.warn(f"A changed {name} takes effect after a restart")
        options_now = merged(self.options, options)
        self._tenants.settle(options_now, judge)
        self.options = options_now
        before, listener.authenticator = listener.authenticator, judge
        judge.inside_secret = before.inside_secret
        listener.adopt(self.options, tls, web_tls)
        self._watch_pressure(listener)
        self._log.debugging, self._log.tracing = options.debug, options.trace
        for connection in list(listener.connections.values()):
            review(connection, judge, before)
        self._log.info("Reloaded server configuration")

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    @property
    def jetstream(self) -> JetStream | None:
        """The streams of the global account."""
        return self.accounts.main.jetstream

    @property
    def listener(self) -> Listener:
        """The door for clients, with the connections."""
        if self._listener is None:
            raise RuntimeError("the server does not run: start() it first")
        return self._listener

    @property
    def port(self) -> int:
        """The port in use."""
        return self.listener.port

    @property
    def url(self) -> str:
        """What a client connects to."""
        return f"{'tls' if self.options.tls_enabled else 'nats'}://{address(self.options.host, self.port)}"

    @property
    def page_url(self) -> str:
        """Where people look: the monitoring page; empty without a monitoring port."""
        urls = self._page_urls()
        return f"{urls[0]}/" if urls else ""

    def _page_urls(self) -> list[str]:
        return self._monitors.urls() if self._monitors is not None else []

    def now_ns(self) -> int:
        """The server's time."""
        return self.timers.clock.now_ns()

    async def advance(self, duration: Duration) -> None:
        """Let time pass on a virtual clock; everything that falls due meanwhile has happened on return."""
        clock = self._virtual
        if clock is None:
            raise RuntimeError('real time cannot be advanced: make the server with clock="virtual"')
        end_ns = clock.now_ns() + duration_ns(duration)
        while (deadline_ns := self.timers.next_deadline()) is not None and deadline_ns <= end_ns:
            clock.advance(max(deadline_ns - clock.now_ns(), 0))
            self.timers.run_due()
            await self._settle()
        clock.advance(end_ns - clock.now_ns())
        await self._settle()

    async def _settle(self) -> None:
        """Let what was just decided become durable, and what speaks of it leave."""
        await asyncio.sleep(0)
        # The store tells one listener of a commit, and that is the broker.
        while any(not jetstream.at_rest for jetstream in self.accounts.streams()):  # noqa: ASYNC110
            await asyncio.sleep(0)
        await asyncio.sleep(0)

    def leafs(self) -> list[dict[str, Any]]:
        """The leafnode connections, in the fields of the monitoring page."""
        return self._leafs.pages() if self._leafs is not None else []

    def claim_metrics(self) -> bytes:
        """The metrics of a collector of claims in this process, in the text format."""
        return self._collectors.exported() if self._collectors is not None else b""

    def vitals(self) -> Vitals:
        """The server's figures at this moment."""
        from headrace.monitor.varz import Vitals

        listener, monitors = self.listener, self._monitors
        ports = monitors.ports() if monitors is not None else {}
        in_msgs, in_bytes, out_msgs, out_bytes = listener.traffic()
        return Vitals(
            server_id=self.server_id,
            server_name=self.server_name,
            host=listener.host,
            port=listener.port,
            http_port=ports.get("http", 0),
            https_port=ports.get("https", 0),
            start_ns=self._start_ns,
            now_ns=self.now_ns(),
            connections=len(listener.connections),
            total_connections=listener.total_connections,
            subscriptions=self.accounts.subscriptions,
            in_msgs=in_msgs,
            in_bytes=in_bytes,
            out_msgs=out_msgs,
            out_bytes=out_bytes,
            slow_consumers=listener.slow_consumers,
            leafnodes=len(self.leafs()),
            stale_connections=listener.stale_connections,
            page_counts=monitors.counts() if monitors is not None else {},
        )

    def _greet(self) -> None:
        log, options = self._log, self.options
        log.info("Starting headrace")
        log.info(f"  Version:  {__version__} (compatible with nats-server {COMPATIBLE_VERSION})")
        log.info(f"  Name:     {self.server_name}")
        log.info(f"  ID:       {self.server_id}")
        if not is_loopback(options.host) and not options.has_credentials and not options.tls_verify:
            log.warn(f"Listening on {options.host or 'all addresses'!r} without authentication")

    async def _open_door(self, tls: ssl.SSLContext | None) -> None:
        options = self.options
        listener = Listener(
            self.accounts,
            options,
            authenticator=self._judge,
            tls=tls,
            log=self._log,
            server_id=self.server_id,
            server_name=self.server_name,
        )
        try:
            await listener.start()
        except OSError as error:
            raise not_to_be_had(options.host, options.port, "-p", error) from error
        self._listener = listener
        self._watch_pressure(listener)
        self._open_system(listener)
        self._log.info(f"Listening for client connections on {address(options.host, listener.port)}")
        if tls is not None:
            self._log.info("TLS required for client connections")

    async def _open_web(self) -> None:
        settings = self.options.websocket
        if not settings.port:
            return
        tls = context_of(settings.tls) if settings.tls.cert else None
        try:
            await self.listener.start_web(tls)
        except OSError as error:
            host = settings.host or self.options.host
            raise not_to_be_had(host, settings.port, "websocket { port }", error) from error
        for url in self._web_urls():
            self._log.info(f"Listening for websocket clients on {url}")

    def _web_urls(self) -> list[str]:
        settings = self.options.websocket
        if not settings.port:
            return []
        scheme = "wss" if settings.tls.cert else "ws"
        return [f"{scheme}://{address(settings.host or self.options.host, self.listener.web_port)}"]

    def _open_system(self, listener: Listener) -> None:
        """Answer in the system account, and tell who comes and goes."""
        from headrace.monitor.system import SystemDesk

        desk = SystemDesk(self)
        desk.open()
        self._tenants.on_new = desk.welcome
        listener.on_come, listener.on_go = desk.came, desk.went

    def _system_account(self) -> str:
        trust = self._judge.trust
        return (trust.system_account if trust is not None else self.options.system_account) or SYSTEM

    def _watch_pressure(self, listener: Listener) -> None:
        """Publishers wait when any account's disk cannot keep up; asked after each chunk, so one is asked directly."""
        streams = list(self.accounts.streams())
        for jetstream in streams:
            jetstream.pressure.on_relief(listener.relieve)
        if len(streams) == 1:
            listener.pressed = streams[0].pressure.high
        else:
            listener.pressed = lambda: any(jetstream.pressure.high() for jetstream in streams)

    async def _open_leafs(self) -> None:
        """Let other servers dial in, and dial those that this one is to join."""
        leaf = self.options.leaf
        if not leaf.wanted:
            return
        from headrace.net.leaf import LeafDoor

        self._leafs = LeafDoor(
            self.accounts,
            self.options,
            server_id=self.server_id,
            server_name=self.server_name,
            clients=self.listener,
            log=self._log,
        )
        try:
            await self._leafs.start()
        except OSError as error:
            raise not_to_be_had(self._leafs.host, leaf.port, "leafnodes { port }", error) from error

    @property
    def leaf_port(self) -> int:
        """The port for other servers, 0 when there is none."""
        return self._leafs.port if self._leafs is not None else 0

    def _make_collectors(self) -> Collectors | None:
        if not self.options.claims:
            return None
        try:
            from headrace.claims import ClaimError, load_all
            from headrace.claims.service import Collectors
        except ModuleNotFoundError as error:
            raise OptionsError(f"claims need {error.name}: pip install 'headrace[claims]'") from error
        try:
            configs = load_all(self.options.claims)
        except ClaimError as error:
            raise OptionsError(f"claims cannot be collected: {error}") from error
        names = ", ".join(config.namespace for config in configs)
        self._log.info(f"Collecting the claims of {names}")
        return Collectors(configs, self._log.warn, **way_in(self.listener))

    async def _open_monitors(self, tls: ssl.SSLContext | None) -> None:
        if self.options.http_port or self.options.https_port:
            from headrace.monitor.monitors import Monitors

            self._monitors = Monitors(self, self.options, self._log)
            await self._monitors.start(tls)


def _virtual_clock() -> SimClock:
    from headrace.sim import SimClock

    return SimClock(time.time_ns())
