"""The first lines of a server's log: its version, its core, its name, and warnings about both core and listener."""

from __future__ import annotations

from headrace import COMPATIBLE_VERSION, __version__
from headrace._native import describe_core, find_missing_core
from headrace.config.open_listeners import is_client_listener_open
from headrace.config.options import ServerOptions
from headrace.net.logs import Logger


def log_startup(log: Logger, options: ServerOptions, server_name: str, server_id: str) -> None:
    """Write the lines."""
    log.info("Starting headrace")
    log.info(f"  Version:  {__version__} (compatible with nats-server {COMPATIBLE_VERSION})")
    log.info(f"  Core:     {describe_core()}")
    log.info(f"  Name:     {server_name}")
    log.info(f"  ID:       {server_id}")
    if warning := find_missing_core():
        log.warn(warning)
    if is_client_listener_open(options):
        log.warn(f"Listening on {options.host or 'all addresses'!r} without authentication")
