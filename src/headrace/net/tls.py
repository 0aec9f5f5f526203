"""TLS contexts from options: which certificate a listener shows and whom it trusts."""

from __future__ import annotations

import ssl

from headrace.net.options import Options, OptionsError


def server_context(options: Options) -> ssl.SSLContext | None:
    """The context of a listener; None when the options ask for no TLS."""
    if not options.tls_enabled:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    _load_certificate(context, options)
    if options.tls_ca:
        _load_authority(context, options)
    if options.tls_verify:
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _load_certificate(context: ssl.SSLContext, options: Options) -> None:
    try:
        context.load_cert_chain(options.tls_cert, options.tls_key)
    except (OSError, ssl.SSLError) as error:
        raise OptionsError(
            f"cannot use certificate {options.tls_cert!r} with key {options.tls_key!r}: {error}"
        ) from error


def _load_authority(context: ssl.SSLContext, options: Options) -> None:
    try:
        context.load_verify_locations(options.tls_ca)
    except (OSError, ssl.SSLError) as error:
        raise OptionsError(f"cannot use certificate authority {options.tls_ca!r}: {error}") from error
