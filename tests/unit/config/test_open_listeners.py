"""No listener is open to other machines without authentication, unless the options say so."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.config.leafnode_options import LeafnodeOptions, LeafnodeTlsOptions
from headrace.config.open_listeners import is_loopback
from headrace.config.options import OptionsError, TlsFiles, WebSocketOptions, from_keywords

VERIFIED: dict[str, Any] = {"tls_cert": "c", "tls_key": "k", "tls_ca": "a", "tls_verify": True}
PLAIN_WEBSOCKET = WebSocketOptions(port=1, no_tls=True)
OPEN_WEBSOCKET = WebSocketOptions(host="0.0.0.0", port=1, no_tls=True)
VERIFIED_WEBSOCKET = WebSocketOptions(
    host="0.0.0.0", port=1, tls=TlsFiles(cert="c", key="k", ca="a", verify=True)
)
OPEN_LEAFNODES = LeafnodeOptions(host="0.0.0.0", port=1)
VERIFIED_LEAFNODES = LeafnodeOptions(
    host="0.0.0.0", port=1, tls=LeafnodeTlsOptions(cert="c", key="k", ca="a", verify=True)
)


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"host": "0.0.0.0"}, "refusing to listen"),
        ({"host": "127.example.com"}, "refusing to listen"),
        ({"host": "0.0.0.0", **VERIFIED, "allow_non_tls": True}, "allow_non_tls"),
        ({"websocket": OPEN_WEBSOCKET}, "WebSocket"),
        ({"host": "0.0.0.0", **VERIFIED, "websocket": PLAIN_WEBSOCKET}, "WebSocket"),
        ({"host": "0.0.0.0", **VERIFIED, "websocket": OPEN_WEBSOCKET}, "WebSocket"),
        ({"leafnodes": OPEN_LEAFNODES}, "leafnode"),
        ({"host": "0.0.0.0", **VERIFIED, "leafnodes": LeafnodeOptions(port=1)}, "leafnode"),
    ],
)
def test_an_open_listener_is_refused(settings: dict[str, Any], word: str) -> None:
    with pytest.raises(OptionsError, match=word):
        from_keywords(**settings).check()
    from_keywords(**settings, allow_remote_without_auth=True).check()


@pytest.mark.parametrize(
    "settings",
    [
        {"websocket": PLAIN_WEBSOCKET},
        {"websocket": VERIFIED_WEBSOCKET},
        {"websocket": OPEN_WEBSOCKET, "token": "t"},
        {"host": "0.0.0.0", **VERIFIED, "websocket": VERIFIED_WEBSOCKET},
        {"host": "0.0.0.0", **VERIFIED, "allow_non_tls": True, "token": "t"},
        {"host": "0.0.0.0", **VERIFIED, "websocket": WebSocketOptions(host="::1", port=1, no_tls=True)},
        {"leafnodes": VERIFIED_LEAFNODES},
        {"leafnodes": OPEN_LEAFNODES, "user": "u", "password": "p"},
    ],
)
def test_a_listener_with_authentication_is_accepted(settings: dict[str, Any]) -> None:
    from_keywords(**settings).check()


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("127.1.2.3", True),
        ("::1", True),
        ("[::1]", True),
        ("::ffff:127.0.0.1", True),
        ("localhost", True),
        ("Localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("", False),
        ("10.0.0.1", False),
        ("127.example.com", False),
        ("127.0.0.1.example.com", False),
    ],
)
def test_loopback_addresses_are_recognised(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected
