"""A broker inside this process: `async with headrace.Server(store_dir=...) as server`.

Owns how the parts of a server are assembled, started and stopped, in any running event loop. `headrace serve` runs it
as a process. It must not know signals, command lines or the protocol.
"""

from __future__ import annotations

import asyncio
import os
import ssl
import time
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

from headrace.auth.authenticator import Authenticator
from headrace.broker import SYSTEM, Accounts, Timers
from headrace.broker.commit.disk_backpressure import combine_backpressure
from headrace.clock import make_system_clock
from headrace.config.options import OptionsError, ServerOptions
from headrace.config.server_keywords import resolve_options
from headrace.deprecation import RenamedAttribute
from headrace.durations import Duration, parse_duration_ns
from headrace.net.account_setup import AccountSetup
from headrace.net.info import make_server_id
from headrace.net.internal_client import make_internal_credentials
from headrace.net.listener import Listener
from headrace.net.listener_profile import format_address
from headrace.net.logs import SILENT_LOGGER, Logger
from headrace.net.loop_watchdog import LoopWatchdog
from headrace.net.pid_files import PidAndPortsFiles
from headrace.net.reload import find_restart_only_changes, merge_options, recheck_connection
from headrace.net.startup_log import log_startup
from headrace.net.timer_driver import TimerDriver
from headrace.net.tls_context import make_server_context, make_tls_context
from headrace.net.virtual_time import VirtualTime

if TYPE_CHECKING:
    from headrace.broker.jetstream import AccountJetStream
    from headrace.claims.collector_service import CollectorService
    from headrace.monitor.http_listeners import MonitorPorts
    from headrace.monitor.server_archive import ServerArchive
    from headrace.monitor.system_account import SystemAccountService
    from headrace.monitor.varz import ServerStats
    from headrace.net.client_backpressure import DiskPressure
    from headrace.net.leafnode.leafnode_listener import LeafnodeListener
    from headrace.sim import SimClock

__all__ = ["Server"]


class Server:
    """A Headrace server in the current event loop; use it with `async with`.

    Keywords are the options of `headrace.config.options.ServerOptions`; the default port is any free one, and
    `store_dir` enables durable streams. `options` sets all of them at once, with the command line's defaults.

    `clock="virtual"` stops the broker's time until `advance` moves it, so that expiry by age or TTL and redeliveries
    happen at once. Connections use real time, so clients do not time out meanwhile. With `time_floor_ns` the system's
    clock shows at least this time: that which the server whose stores these are has shown last.
    """

    hub = RenamedAttribute("router")
    leaf_port = RenamedAttribute("leafnode_port")
    leafs = RenamedAttribute("leafz_entries")
    page_url = RenamedAttribute("monitor_url")
    vitals = RenamedAttribute("stats")

    def __init__(
        self,
        store_dir: str | os.PathLike[str] | None = None,
        *,
        options: ServerOptions | None = None,
        clock: Literal["system", "virtual"] = "system",
        log: Logger = SILENT_LOGGER,
        time_floor_ns: int = 0,
        **settings: Any,
    ) -> None:
        self.options = options = resolve_options(options, store_dir, settings)
        self.server_id = make_server_id()
        self.server_name = options.server_name or self.server_id
        self._log = log
        virtual_clock = _make_virtual_clock() if clock == "virtual" else None
        self.timers = Timers(virtual_clock or make_system_clock(time_floor_ns))
        self._authenticator = Authenticator(options)
        self.accounts = Accounts(self._get_system_account())
        self.router = self.accounts.main.router
        self._virtual_time = (
            VirtualTime(virtual_clock, self.timers, self.accounts) if virtual_clock is not None else None
        )
        self.watchdog = LoopWatchdog(log)
        self.timers.run_call = self.watchdog.run
        self._account_setup = AccountSetup(self.accounts, self.timers, self.server_name, log, self.watchdog)
        self._pid_files = PidAndPortsFiles(options)
        self._monitor_ports: MonitorPorts | None = None
        self._system_service: SystemAccountService | None = None
        self._stopped = asyncio.Event()
        self._start_ns = 0
        self._timer_driver: TimerDriver | None = None
        self._listener: Listener | None = None
        self._leafnodes: LeafnodeListener | None = None
        self._collector_service: CollectorService | None = None
        self._lame_duck_task: asyncio.Task[None] | None = None
        self.archive: ServerArchive | None = None

    async def start(self) -> None:
        """Start accepting clients; raise OptionsError if something prevents it. A server starts only once."""
        if self._listener is not None or self._stopped.is_set():
            raise RuntimeError("a server can be started only once: create a new Server")
        log_startup(self._log, self.options, self.server_name, self.server_id)
        tls = make_server_context(self.options)
        self._start_ns = self.now_ns()
        try:
            self._account_setup.apply(self.options, self._authenticator)
            if self.options.archive is not None:
                from headrace.monitor.server_archive import ServerArchive

                self.archive = await ServerArchive(self, self._log).start()
            await self._start_listener(tls)
            await self._start_websocket()
            self._collector_service = self._make_collector_service()
            await self._start_leafnodes()
            await self._start_monitors(tls)
            websocket_url = self.listener.websocket_url
            self._pid_files.write(
                nats=[self.url],
                monitoring=self._monitor_urls(),
                websocket=[websocket_url] if websocket_url else [],
            )
        except BaseException:
            await self.stop()
            raise
        if self._virtual_time is None:
            self._timer_driver = TimerDriver(self.timers, asyncio.get_running_loop())
        if self._collector_service is not None:
            self._collector_service.start()
        self.watchdog.start()
        self._log.info("Server is ready")

    async def stop(self) -> None:
        """Close everything; pending output is sent first. No effect if it has already stopped."""
        if self._stopped.is_set():
            return
        if self._listener is not None:
            self._log.info("Initiating Shutdown...")
        self.watchdog.stop()
        if self._lame_duck_task is not None and self._lame_duck_task is not asyncio.current_task():
            self._lame_duck_task.cancel()
        if self._collector_service is not None:
            await self._collector_service.stop()
        if self._timer_driver is not None:
            self._timer_driver.close()
        if self._system_service is not None:
            self._system_service.stop()
        self.accounts.end_pulls()
        if self._leafnodes is not None:
            await self._leafnodes.stop()
        if self.archive is not None:
            await self.archive.drain()
        self._account_setup.close()
        if self._listener is not None:
            await self._listener.stop()
        if self.archive is not None:
            await self.archive.stop()  # after the last acknowledgement
        if self._monitor_ports is not None:
            await self._monitor_ports.stop()
        self._pid_files.remove()
        self._stopped.set()

    async def wait_stopped(self) -> None:
        """Wait until the server has stopped."""
        await self._stopped.wait()

    def begin_lame_duck(self) -> None:
        """Stop accepting clients, ask connected ones to move, close them one by one, then stop."""
        if self._lame_duck_task is None and self._listener is not None:
            self._log.info("Entering lame duck mode, stop accepting new clients")
            self._lame_duck_task = asyncio.get_running_loop().create_task(self._run_lame_duck(self._listener))

    async def _run_lame_duck(self, listener: Listener) -> None:
        await listener.run_lame_duck()
        await self.stop()

    def reload(self, options: ServerOptions, authenticator: Authenticator | None = None) -> None:
        """Apply options that can be reloaded, and warn about others that changed; check many clients in slices."""
        options.check()
        merged_options = merge_options(self.options, options)
        listener = self.listener
        tls, authenticator = make_server_context(options), authenticator or Authenticator(options)
        tls_files = options.websocket.tls
        websocket_tls = make_tls_context(tls_files) if tls_files.cert else None
        for name in sorted(find_restart_only_changes(self.options, options)):
            self._log.warn(f"The change of {name} requires a restart")
        self._account_setup.apply(merged_options, authenticator)
        self.options = merged_options
        previous_auth = listener.registry.authenticator
        authenticator.internal_secret = previous_auth.internal_secret
        listener.reconfigure(self.options, authenticator, self._get_disk_backpressure(), tls, websocket_tls)
        self._log.debug_enabled, self._log.trace_enabled = options.debug, options.trace
        for connection in list(listener.connections.values()):
            listener.rechecks.run(partial(recheck_connection, connection, authenticator, previous_auth))
        if self._leafnodes is not None:
            self._leafnodes.recheck(authenticator, previous_auth)
        self._log.info("Reloaded server configuration")

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    @property
    def jetstream(self) -> AccountJetStream | None:
        """The JetStream of the global account."""
        return self.accounts.main.jetstream

    @property
    def listener(self) -> Listener:
        """The listener for clients, with their connections."""
        if self._listener is None:
            raise RuntimeError("the server is not running: call start() first")
        return self._listener

    @property
    def port(self) -> int:
        """The port in use."""
        return self.listener.port

    @property
    def url(self) -> str:
        """The URL that clients connect to."""
        return f"{'tls' if self.options.tls_enabled else 'nats'}://{format_address(self.options.host, self.port)}"

    @property
    def monitor_url(self) -> str:
        """The URL of the monitoring page; empty without a monitoring port."""
        urls = self._monitor_urls()
        return f"{urls[0]}/" if urls else ""

    def _monitor_urls(self) -> list[str]:
        return self._monitor_ports.get_urls() if self._monitor_ports is not None else []

    def now_ns(self) -> int:
        """Return the server's time."""
        return self.timers.clock.now_ns()

    async def advance(self, duration: Duration) -> None:
        """Let time pass on a virtual clock; everything that falls due meanwhile has happened on return."""
        if self._virtual_time is None:
            raise RuntimeError('advance() requires a virtual clock: create the server with clock="virtual"')
        await self._virtual_time.advance(parse_duration_ns(duration))

    def leafz_entries(self) -> list[dict[str, Any]]:
        """Return the leafnode connections, with the fields of the monitoring page."""
        return self._leafnodes.leafz_entries() if self._leafnodes is not None else []

    def claim_metrics(self) -> bytes:
        """Return the metrics of a claims collector in this process, in the text format."""
        return self._collector_service.export_metrics() if self._collector_service is not None else b""

    def stats(self) -> ServerStats:
        """Return the server's current figures."""
        from headrace.monitor.varz import ServerStats

        listener, monitors = self.listener, self._monitor_ports
        registry, backpressure = listener.registry, listener.backpressure
        ports = monitors.get_ports() if monitors is not None else {}
        in_msgs, in_bytes, out_msgs, out_bytes = registry.get_traffic()
        return ServerStats(
            server_id=self.server_id,
            server_name=self.server_name,
            host=listener.host,
            port=listener.port,
            http_port=ports.get("http", 0),
            https_port=ports.get("https", 0),
            start_ns=self._start_ns,
            now_ns=self.now_ns(),
            connections=len(registry.connections),
            total_connections=registry.total_connections,
            subscriptions=self.accounts.subscriptions,
            in_msgs=in_msgs,
            in_bytes=in_bytes,
            out_msgs=out_msgs,
            out_bytes=out_bytes,
            slow_consumers=backpressure.slow_consumers,
            leafnodes=len(self.leafz_entries()),
            leafnode_port=self.leafnode_port,
            stale_connections=registry.stale_connections,
            page_counts=monitors.get_page_counts() if monitors is not None else {},
            loop_stalls=self.watchdog.stalls,
        )

    def count_ended(self) -> int:
        """Return how many leafnodes, consumers and streams have ended since the start."""
        ended = sum(each.totals.ended for each in self.accounts.jetstreams())
        return ended + (self._leafnodes.count_ended() if self._leafnodes is not None else 0)

    async def _start_listener(self, tls: ssl.SSLContext | None) -> None:
        listener = Listener(
            self.accounts,
            self.options,
            authenticator=self._authenticator,
            tls=tls,
            disk=self._get_disk_backpressure(),
            log=self._log,
            server_id=self.server_id,
            server_name=self.server_name,
        )
        if self.archive is not None and self.archive.has_lease:
            listener.context.may_send = self.archive.may_send
        await listener.start()
        self._listener = listener
        self._start_system_service(listener)

    async def _start_websocket(self) -> None:
        settings = self.options.websocket
        if settings.port:
            await self.listener.start_websocket(make_tls_context(settings.tls) if settings.tls.cert else None)

    def _start_system_service(self, listener: Listener) -> None:
        """Start the services of the system account, and publish connects and disconnects there."""
        from headrace.monitor.system_account import SystemAccountService

        system_service = self._system_service = SystemAccountService(self)
        system_service.subscribe()
        self._account_setup.observer = system_service
        listener.registry.observer = system_service

    def _get_system_account(self) -> str:
        trust = self._authenticator.operator_trust
        return (trust.system_account if trust is not None else self.options.system_account) or SYSTEM

    def _get_disk_backpressure(self) -> DiskPressure:
        """Return the backpressure of the disks of all accounts."""
        return combine_backpressure([jetstream.disk_backpressure for jetstream in self.accounts.jetstreams()])

    async def _start_leafnodes(self) -> None:
        """Listen for leafnode connections, and dial the configured remotes."""
        if not self.options.effective_leafnodes.enabled:
            return
        from headrace.net.leafnode.leafnode_listener import LeafnodeListener

        self._leafnodes = LeafnodeListener(
            self.accounts,
            self.options,
            server_id=self.server_id,
            server_name=self.server_name,
            clients=self.listener.context,
            log=self._log,
        )
        await self._leafnodes.start()

    @property
    def leafnode_port(self) -> int:
        """The port for leafnodes, 0 if there is none."""
        return self._leafnodes.port if self._leafnodes is not None else 0

    def _make_collector_service(self) -> CollectorService | None:
        if not self.options.claims:
            return None
        try:
            from headrace.claims import ClaimError, load_all
            from headrace.claims.collector_service import CollectorService
        except ModuleNotFoundError as error:
            raise OptionsError(
                f"claims require the package {error.name}: pip install 'headrace[claims]'"
            ) from error
        try:
            configs = load_all(self.options.claims)
        except ClaimError as error:
            raise OptionsError(f"cannot start the claims collector: {error}") from error
        names = ", ".join(config.namespace for config in configs)
        self._log.info(f"Collecting claims of namespaces: {names}")
        return CollectorService(configs, self._log.warn, **make_internal_credentials(self.listener))

    async def _start_monitors(self, tls: ssl.SSLContext | None) -> None:
        if self.options.http_port or self.options.https_port:
            from headrace.monitor.http_listeners import MonitorPorts

            self._monitor_ports = MonitorPorts(self, self.options, self._log)
            await self._monitor_ports.start(tls)


def _make_virtual_clock() -> SimClock:
    from headrace.sim import SimClock

    return SimClock(time.time_ns())
