"""TLS contexts from options."""

import ssl
from pathlib import Path

import pytest

from headrace.config.options import OptionsError, ServerOptions
from headrace.net.tls_context import make_server_context
from support import certificates


def test_none_unless_asked_for() -> None:
    assert make_server_context(ServerOptions()) is None


def test_a_certificate_with_its_key(tmp_path: Path) -> None:
    made = certificates.make(tmp_path)
    context = make_server_context(ServerOptions(tls_cert=made.cert, tls_key=made.key))
    assert context is not None
    assert context.minimum_version == ssl.TLSVersion.TLSv1_2
    assert context.verify_mode == ssl.CERT_NONE


def test_client_certificates_are_required_on_request(tmp_path: Path) -> None:
    made = certificates.make(tmp_path)
    options = ServerOptions(tls_cert=made.cert, tls_key=made.key, tls_ca=made.ca, tls_verify=True)
    context = make_server_context(options)
    assert context is not None
    assert context.verify_mode == ssl.CERT_REQUIRED


def test_files_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    made = certificates.make(tmp_path)
    with pytest.raises(OptionsError, match=r"missing\.pem"):
        make_server_context(ServerOptions(tls_cert=str(tmp_path / "missing.pem"), tls_key=made.key))
    with pytest.raises(OptionsError, match=r"client-key\.pem"):
        make_server_context(ServerOptions(tls_cert=made.cert, tls_key=made.client_key))
    with pytest.raises(OptionsError, match=r"no-ca\.pem"):
        make_server_context(
            ServerOptions(tls_cert=made.cert, tls_key=made.key, tls_ca=str(tmp_path / "no-ca.pem"))
        )
