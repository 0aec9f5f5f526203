"""A broker inside this process: `async with headrace.Server(store_dir=...) as server`.

Owns how the parts of a server are assembled, started and stopped, in any running event loop. `headrace serve` is this
with a process around it. It must not know signals, command lines or the protocol.
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
from headrace._native import describe_core
from headrace.auth.authenticator import Authenticator
from headrace.broker import SYSTEM, Accounts, Timers
from headrace.clock import SystemClock
from headrace.config.options import ANY_PORT, OptionsError, ServerOptions, from_keywords, is_loopback
from headrace.deprecation import RenamedAttribute
from headrace.durations import Duration, parse_duration_ns
from headrace.net.account_setup import AccountSetup
from headrace.net.info import make_server_id
from headrace.net.internal_client import make_internal_credentials
from headrace.net.listener import Listener
from headrace.net.listener_profile import format_address, make_bind_error
from headrace.net.logs import SILENT_LOGGER, Logger
from headrace.net.pid_files import PidAndPortsFiles
from headrace.net.reload import find_restart_only_changes, merge_options, recheck_connection
from headrace.net.timer_driver import TimerDriver
from headrace.net.tls_context import make_server_context, make_tls_context

if TYPE_CHECKING:
    from headrace.broker.jetstream import AccountJetStream
    from headrace.claims.collector_service import CollectorService
    from headrace.monitor.http_listeners import MonitorPorts
    from headrace.monitor.varz import ServerStats
    from headrace.net.leafnode.leafnode_listener import LeafnodeListener
    from headrace.sim import SimClock

__all__ = ["Server"]


class Server:
    """One broker.

    Keywords are the options of `headrace.config.options.ServerOptions`; the default port is any free one, and
    `store_dir` enables durable streams. `options` sets all of them at once, with the command line's defaults.

    `clock="virtual"` stops the broker's time until `advance` moves it, so that expiry by age or TTL and redeliveries
    happen at once. Connections use real time: nobody times out meanwhile.
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
        self._virtual_clock = _make_virtual_clock() if clock == "virtual" else None
        self.timers = Timers(self._virtual_clock or SystemClock())
        self._authenticator = Authenticator(options)
        self.accounts = Accounts(self._get_system_account())
        self.router = self.accounts.main.router
        self._account_setup = AccountSetup(self.accounts, self.timers, self.server_name, log)
        self._pid_files = PidAndPortsFiles(options)
        self._monitor_ports: MonitorPorts | None = None
        self._stopped = asyncio.Event()
        self._start_ns = 0
        self._timer_driver: TimerDriver | None = None
        self._listener: Listener | None = None
        self._leafnodes: LeafnodeListener | None = None
        self._collector_service: CollectorService | None = None
        self._lame_duck_task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start accepting clients; raise OptionsError if something prevents it. A server starts only once."""
        if self._listener is not None or self._stopped.is_set():
            raise RuntimeError("a server starts only once: make another one")
        self._log_startup()
        tls = make_server_context(self.options)
        self._start_ns = self.now_ns()
        try:
            self._account_setup.apply(self.options, self._authenticator)
            await self._start_listener(tls)
            await self._start_websocket()
            self._collector_service = self._make_collector_service()
            await self._start_leafnodes()
            await self._start_monitors(tls)
            self._pid_files.write(
                nats=[self.url], monitoring=self._monitor_urls(), websocket=self._websocket_urls()
            )
        except BaseException:
            await self.stop()
            raise
        if self._virtual_clock is None:
            self._timer_driver = TimerDriver(self.timers, asyncio.get_running_loop())
        if self._collector_service is not None:
            self._collector_service.start()
        self._log.info("Server is ready")

    async def stop(self) -> None:
        """Close everything; pending output is sent first. No effect if it has already stopped."""
        if self._stopped.is_set():
            return
        if self._listener is not None:
            self._log.info("Initiating Shutdown...")
        if self._lame_duck_task is not None and self._lame_duck_task is not asyncio.current_task():
            self._lame_duck_task.cancel()
        if self._collector_service is not None:
            await self._collector_service.stop()
        if self._timer_driver is not None:
            self._timer_driver.close()
        if self._leafnodes is not None:
            await self._leafnodes.stop()
        self._account_setup.close()
        if self._listener is not None:
            await self._listener.stop()
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

    def reload(self, options: ServerOptions) -> None:
        """Apply changed options that can be reloaded, such as users, permissions and certificates; warn about the rest."""
        options.check()
        listener = self.listener
        tls, authenticator = make_server_context(options), Authenticator(options)
        tls_files = options.websocket.tls
        websocket_tls = make_tls_context(tls_files) if tls_files.cert else None
        for name in sorted(find_restart_only_changes(self.options, options)):
            self._log.warn(f"A changed {name} takes effect after a restart")
        merged_options = merge_options(self.options, options)
        self._account_setup.apply(merged_options, authenticator)
        self.options = merged_options
        previous_auth, listener.authenticator = listener.authenticator, authenticator
        authenticator.internal_secret = previous_auth.internal_secret
        listener.reconfigure(self.options, tls, websocket_tls)
        self._watch_backpressure(listener)
        self._log.debug_enabled, self._log.trace_enabled = options.debug, options.trace
        for connection in list(listener.connections.values()):
            recheck_connection(connection, authenticator, previous_auth)
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
            raise RuntimeError("the server does not run: start() it first")
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
        clock = self._virtual_clock
        if clock is None:
            raise RuntimeError('real time cannot be advanced: make the server with clock="virtual"')
        end_ns = clock.now_ns() + parse_duration_ns(duration)
        while (deadline_ns := self.timers.next_deadline()) is not None and deadline_ns <= end_ns:
            clock.advance(max(deadline_ns - clock.now_ns(), 0))
            self.timers.run_due()
            await self._wait_until_quiescent()
        clock.advance(end_ns - clock.now_ns())
        await self._wait_until_quiescent()

    async def _wait_until_quiescent(self) -> None:
        """Wait until recent changes are durable and their replies are sent."""
        await asyncio.sleep(0)
        # Poll: the store has a single commit callback, and the broker uses it.
        while any(not jetstream.is_quiescent for jetstream in self.accounts.jetstreams()):  # noqa: ASYNC110
            await asyncio.sleep(0)
        await asyncio.sleep(0)

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
        ports = monitors.get_ports() if monitors is not None else {}
        in_msgs, in_bytes, out_msgs, out_bytes = listener.get_traffic()
        return ServerStats(
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
            leafnodes=len(self.leafz_entries()),
            stale_connections=listener.stale_connections,
            page_counts=monitors.get_page_counts() if monitors is not None else {},
        )

    def _log_startup(self) -> None:
        log, options = self._log, self.options
        log.info("Starting headrace")
        log.info(f"  Version:  {__version__} (compatible with nats-server {COMPATIBLE_VERSION})")
        log.info(f"  Core:     {describe_core()}")
        log.info(f"  Name:     {self.server_name}")
        log.info(f"  ID:       {self.server_id}")
        if not is_loopback(options.host) and not options.has_credentials and not options.tls_verify:
            log.warn(f"Listening on {options.host or 'all addresses'!r} without authentication")

    async def _start_listener(self, tls: ssl.SSLContext | None) -> None:
        options = self.options
        listener = Listener(
            self.accounts,
            options,
            authenticator=self._authenticator,
            tls=tls,
            log=self._log,
            server_id=self.server_id,
            server_name=self.server_name,
        )
        try:
            await listener.start()
        except OSError as error:
            raise make_bind_error(options.host, options.port, "-p", error) from error
        self._listener = listener
        self._watch_backpressure(listener)
        self._start_system_service(listener)
        self._log.info(f"Listening for client connections on {format_address(options.host, listener.port)}")
        if tls is not None:
            self._log.info("TLS required for client connections")

    async def _start_websocket(self) -> None:
        settings = self.options.websocket
        if not settings.port:
            return
        tls = make_tls_context(settings.tls) if settings.tls.cert else None
        try:
            await self.listener.start_websocket(tls)
        except OSError as error:
            host = settings.host or self.options.host
            raise make_bind_error(host, settings.port, "websocket { port }", error) from error
        for url in self._websocket_urls():
            self._log.info(f"Listening for websocket clients on {url}")

    def _websocket_urls(self) -> list[str]:
        settings = self.options.websocket
        if not settings.port:
            return []
        scheme = "wss" if settings.tls.cert else "ws"
        return [
            f"{scheme}://{format_address(settings.host or self.options.host, self.listener.websocket_port)}"
        ]

    def _start_system_service(self, listener: Listener) -> None:
        """Start the services of the system account, and publish connects and disconnects there."""
        from headrace.monitor.system_account import SystemAccountService

        system_service = SystemAccountService(self)
        system_service.subscribe()
        self._account_setup.on_new_account = system_service.add_account
        listener.observer = system_service

    def _get_system_account(self) -> str:
        trust = self._authenticator.operator_trust
        return (trust.system_account if trust is not None else self.options.system_account) or SYSTEM

    def _watch_backpressure(self, listener: Listener) -> None:
        """Pause publishers while the disk of any account cannot keep up.

        The check runs after each chunk, so a single account is asked directly.
        """
        jetstreams = list(self.accounts.jetstreams())
        for jetstream in jetstreams:
            jetstream.disk_backpressure.on_low(listener.resume_if_paused)
        if len(jetstreams) == 1:
            listener.is_disk_backlogged = jetstreams[0].disk_backpressure.is_high
        else:
            listener.is_disk_backlogged = lambda: any(
                jetstream.disk_backpressure.is_high() for jetstream in jetstreams
            )

    async def _start_leafnodes(self) -> None:
        """Listen for leafnode connections, and dial the configured remotes."""
        leafnode_options = self.options.effective_leafnodes
        if not leafnode_options.enabled:
            return
        from headrace.net.leafnode.leafnode_listener import LeafnodeListener

        self._leafnodes = LeafnodeListener(
            self.accounts,
            self.options,
            server_id=self.server_id,
            server_name=self.server_name,
            client_listener=self.listener,
            log=self._log,
        )
        try:
            await self._leafnodes.start()
        except OSError as error:
            raise make_bind_error(
                self._leafnodes.host, leafnode_options.port, "leafnodes { port }", error
            ) from error

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
            raise OptionsError(f"claims need {error.name}: pip install 'headrace[claims]'") from error
        try:
            configs = load_all(self.options.claims)
        except ClaimError as error:
            raise OptionsError(f"claims cannot be collected: {error}") from error
        names = ", ".join(config.namespace for config in configs)
        self._log.info(f"Collecting the claims of {names}")
        return CollectorService(configs, self._log.warn, **make_internal_credentials(self.listener))

    async def _start_monitors(self, tls: ssl.SSLContext | None) -> None:
        if self.options.http_port or self.options.https_port:
            from headrace.monitor.http_listeners import MonitorPorts

            self._monitor_ports = MonitorPorts(self, self.options, self._log)
            await self._monitor_ports.start(tls)


def _make_virtual_clock() -> SimClock:
    from headrace.sim import SimClock

    return SimClock(time.time_ns())
