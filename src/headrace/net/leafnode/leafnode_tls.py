"""TLS contexts for both ends of a leafnode connection."""

from __future__ import annotations

import ssl

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
    """Create the context for dialing; without settings the system's CAs are trusted."""
    context = ssl.create_default_context()
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if tls is not None:
        _load(context, tls)
        if tls.insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
    return context


def _load(context: ssl.SSLContext, tls: LeafnodeTlsOptions) -> None:
    try:
        if tls.cert:
            context.load_cert_chain(tls.cert, tls.key or None)
        if tls.ca:
            context.load_verify_locations(tls.ca)
    except (OSError, ssl.SSLError) as error:
        raise OptionsError(f"cannot load the leafnode certificates: {error}") from error
