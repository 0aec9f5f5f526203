"""TLS contexts for both ends of a leafnode connection."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable

from headrace.config.leafnode_options import LeafnodeTlsOptions
from headrace.config.options import OptionsError


def make_leafnode_server_context(tls: LeafnodeTlsOptions) -> ssl.SSLContext:
    """Create the context for servers that dial in."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    _load(context, tls)
    if tls.verify:
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def make_leafnode_client_context(tls: LeafnodeTlsOptions | None) -> ssl.SSLContext:
    """Create the context for dialing; the system's CAs are trusted unless the settings name others."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if tls is None or not tls.ca:
        context.load_default_certs()
    if tls is not None:
        _load(context, tls)
        if tls.insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
    return context


def load_leafnode_client_context(
    tls: LeafnodeTlsOptions | None,
    on_loaded: Callable[[ssl.SSLContext], None],
    on_failed: Callable[[ssl.SSLError], None],
) -> None:
    """Create the context for dialing in a thread: the system's CAs take up to 50 ms."""

    def finish(loading: asyncio.Future[ssl.SSLContext]) -> None:
        error = loading.exception()
        if error is None:
            on_loaded(loading.result())
        else:
            on_failed(ssl.SSLError(str(error)))

    loop = asyncio.get_running_loop()
    loop.run_in_executor(None, make_leafnode_client_context, tls).add_done_callback(finish)


def _load(context: ssl.SSLContext, tls: LeafnodeTlsOptions) -> None:
    try:
        if tls.cert:
            context.load_cert_chain(tls.cert, tls.key or None)
        if tls.ca:
            context.load_verify_locations(tls.ca)
    except (OSError, ssl.SSLError) as error:
        raise OptionsError(f"cannot load the leafnode certificates: {error}") from error
