"""Creates TLS contexts from options: the certificate that a listener presents and the CAs that it trusts."""

from __future__ import annotations

import ssl

from headrace.config.options import OptionsError, ServerOptions, TlsFiles


def make_server_context(options: ServerOptions) -> ssl.SSLContext | None:
    """Create the context of the client listener; None if TLS is not enabled."""
    return make_tls_context(options.tls_files) if options.tls_enabled else None


def make_tls_context(files: TlsFiles) -> ssl.SSLContext:
    """Create the context of a listener with these certificates."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    _load_certificate(context, files)
    if files.ca:
        _load_authority(context, files)
    if files.verify:
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _load_certificate(context: ssl.SSLContext, files: TlsFiles) -> None:
    try:
        context.load_cert_chain(files.cert, files.key)
    except (OSError, ssl.SSLError) as error:
        raise OptionsError(
            f"cannot load certificate {files.cert!r} with key {files.key!r}: {error}"
        ) from error


def _load_authority(context: ssl.SSLContext, files: TlsFiles) -> None:
    try:
        context.load_verify_locations(files.ca)
    except (OSError, ssl.SSLError) as error:
        raise OptionsError(f"cannot load CA certificate {files.ca!r}: {error}") from error
