"""The section `leafnodes` and its flags: their options, and what is rejected."""

from __future__ import annotations

import pytest

from headrace.cli.serve_flags import parse
from headrace.config.config_parser import ConfigFileError
from headrace.config.config_parser import parse_config as parse_file
from headrace.config.leafnode_options import LeafnodeRemote, LeafnodeTlsOptions, parse_leafnode_url
from headrace.config.options import OptionsError, ServerOptions
from headrace.config.schema import interpret


def read(text: str) -> tuple[ServerOptions, list[str]]:
    draft = interpret(parse_file(text, "test.conf", lambda path: "", {}))
    return ServerOptions(**draft.settings), draft.warnings


def test_every_leafnode_key_is_read() -> None:
    options, warnings = read(
        """
        leafnodes {
            listen: "127.0.0.1:7422"
            reconnect: "5s"
            no_advertise: true
            authorization { user: edge, password: pw, account: A, timeout: 3 }
            tls { cert_file: c.pem, key_file: k.pem, ca_file: ca.pem, verify: true }
            remotes: [
                { urls: ["nats-leaf://a:b@one:7000", "tls://two"], account: A, creds: user.creds, hub: true
                  deny_imports: "in.>", deny_exports: ["out.>", "x"], tls { ca_file: ca.pem, first: true } }
                { url: "three", disabled: true, dial_timeout: "2s" }
            ]
        }
        """
    )
    leaf = options.effective_leafnodes
    assert warnings == []
    assert (leaf.host, leaf.port, leaf.reconnect_s, leaf.no_advertise) == ("127.0.0.1", 7422, 5.0, True)
    assert (leaf.user, leaf.password, leaf.account, leaf.auth_timeout_s) == ("edge", "pw", "A", 3.0)
    assert leaf.tls == LeafnodeTlsOptions(cert="c.pem", key="k.pem", ca="ca.pem", verify=True)
    first, second = leaf.remotes
    assert first.urls == ("nats-leaf://a:b@one:7000", "tls://two")
    assert (first.account, first.credentials, first.hub) == ("A", "user.creds", True)
    assert (first.deny_imports, first.deny_exports) == (("in.>",), ("out.>", "x"))
    assert first.tls == LeafnodeTlsOptions(ca="ca.pem", handshake_first=True)
    assert second == LeafnodeRemote(urls=("three",), disabled=True, dial_timeout_s=2.0)
    assert "pw" not in repr(leaf)
    assert "a:b" not in repr(leaf)


def test_leafnode_urls_are_parsed() -> None:
    assert parse_leafnode_url("one") == ("one", 7422, False, "", None)
    assert parse_leafnode_url("nats-leaf://u:p%40@one:1") == ("one", 1, False, "u", "p@")
    assert parse_leafnode_url("tls://[::1]:1")[:3] == ("::1", 1, True)
    assert parse_leafnode_url("nats://token@one").user == "token"


@pytest.mark.parametrize(
    ("text", "mode"),
    [
        ("off", "off"),
        ("disabled", "off"),
        ("false", "off"),
        ("accept", "accept"),
        ("on", "s2_auto"),
        ("true", "s2_auto"),
        ("auto", "s2_auto"),
        ("fast", "s2_fast"),
        ("S2_Better", "s2_better"),
        ("{ mode: s2_best }", "s2_best"),
        ("'not supported'", "not supported"),
    ],
)
def test_modes_of_compression(text: str, mode: str) -> None:
    options, warnings = read(f"leafnodes {{ port: 1, compression: {text} }}")
    assert options.leafnodes.compression.mode == mode
    assert warnings == []


def test_round_trip_times_of_compression() -> None:
    text = "leafnodes { remotes: [{ url: a, compression: { mode: auto, rtt_thresholds: [5ms, 20ms, 1s] } }] }"
    options, _ = read(text)
    assert options.leafnodes.remotes[0].compression.rtt_thresholds_s == (0.005, 0.02, 1.0)
    assert options.leafnodes.compression.mode == "s2_auto"


@pytest.mark.parametrize(
    "text",
    [
        "leafnodes: 1",
        "leafnodes { unknown: 1 }",
        "leafnodes { remotes: 1 }",
        "leafnodes { remotes: [ {account: A} ] }",
        "leafnodes { remotes: [ {url: x, unknown: 1} ] }",
        "leafnodes { listen: 'a:b' }",
        "leafnodes { authorization { users: 1 } }",
        "leafnodes { tls { unknown: 1 } }",
    ],
)
def test_mistakes_are_reported(text: str) -> None:
    with pytest.raises(ConfigFileError):
        read(text)


@pytest.mark.parametrize(
    "text",
    [
        "leafnodes { port: 70000 }",
        "leafnodes { listen: '0.0.0.0:1' }",
        "leafnodes { remotes: [ {url: 'ws://one'} ] }",
        "leafnodes { remotes: [ {url: x, creds: a, nkey: b} ] }",
        "leafnodes { port: 1, tls { ca_file: x } }",
        "leafnodes { port: 1, authorization { user: a, password: b, users: [ {user: c, password: d} ] } }",
    ],
)
def test_contradictions_are_refused(text: str) -> None:
    with pytest.raises(OptionsError):
        read(text)[0].check()


def test_leafnodes_without_credentials_need_allow_insecure() -> None:
    for more in ("allow_insecure: true", "authorization { user: a, password: b }"):
        read(f"leafnodes {{ listen: '0.0.0.0:1' }}\n{more}")[0].check()
    read("leafnodes { listen: '0.0.0.0:1', authorization { user: a, password: b } }")[0].check()


def test_leafnode_flags_are_read() -> None:
    options, _ = parse(["--leaf_listen", "127.0.0.1:-1", "--leaf_remotes", "one, tls://two"]).resolve()
    assert (options.effective_leafnodes.host, options.effective_leafnodes.port) == ("127.0.0.1", -1)
    assert [remote.urls for remote in options.effective_leafnodes.remotes] == [("one",), ("tls://two",)]
