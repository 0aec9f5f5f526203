"""The keys of a configuration file and the options they set."""

import os
from pathlib import Path
from typing import Any

import pytest

from headrace.config.config_parser import ConfigFileError, parse_config
from headrace.config.options import LogFormat, from_keywords
from headrace.config.schema import interpret, load_config


def settings(text: str) -> dict[str, Any]:
    return interpret(parse_config(text, "server.conf", lambda path: "", {})).settings


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("port: 4333\nhost: ::1", {"port": 4333, "host": "::1"}),
        ("PORT: 4333", {"port": 4333}),
        ("net: 127.0.0.1", {"host": "127.0.0.1"}),
        ("listen: 4333", {"port": 4333}),
        ("listen: 127.0.0.1:-1", {"host": "127.0.0.1", "port": -1}),
        ('listen: "[::1]:5"', {"host": "::1", "port": 5}),
        ("http: 8222", {"http_port": 8222}),
        ("http: 127.0.0.1:8222", {"http_port": 8222, "http_host": "127.0.0.1"}),
        ("https_port: -1", {"https_port": -1}),
        ("max_payload: 8MB", {"max_payload": 8 << 20}),
        ('ping_interval: "300ms"\nping_max: 3', {"ping_interval_s": 0.3, "ping_max": 3}),
        ("ping_interval: 5", {"ping_interval_s": 5.0}),
        ("server_name: a\nserver_tags: [x, y]", {"server_name": "a", "server_tags": ("x", "y")}),
        ("server_tags: x", {"server_tags": ("x",)}),
        ("debug: true, trace: false", {"debug": True, "trace": False}),
        ("log_format: json", {"log_format": LogFormat.JSON}),
        ("jetstream: true", {"jetstream": True}),
        ("jetstream: enabled", {"jetstream": True}),
        ("jetstream: disabled", {"jetstream": False}),
        ("jetstream {}", {"jetstream": True}),
        (
            "jetstream { store_dir: /x, domain: hub, max_file: 1GB, max_mem: 1MB }",
            {
                "jetstream": True,
                "store_dir": "/x",
                "domain": "hub",
                "max_file_store": 1 << 30,
                "max_memory_store": 1 << 20,
            },
        ),
        ("jetstream { enabled: false }", {"jetstream": False}),
        (
            "tls { cert_file: c, key_file: k, ca_file: a, verify: true, timeout: 3, handshake_first: true }",
            {
                "tls": True,
                "tls_cert": "c",
                "tls_key": "k",
                "tls_ca": "a",
                "tls_verify": True,
                "tls_timeout_s": 3.0,
                "tls_handshake_first": True,
            },
        ),
        ("authorization { token: t, timeout: 1 }", {"token": "t", "auth_timeout_s": 1.0, "users": ()}),
        ("authorization { user: a, password: b }", {"user": "a", "password": "b", "users": ()}),
        ("UNUSED: 1\nport: $UNUSED", {"port": 1}),
    ],
)
def test_each_key_sets_its_option(text: str, expected: dict[str, Any]) -> None:
    found = settings(text)
    assert found == expected
    from_keywords(**found)


def test_users_with_permissions() -> None:
    found = settings("""
        authorization {
          default_permissions { publish: "free.>" }
          users = [
            {user: a, password: 1
             permissions: {publish: {allow: "a.>", deny: [a.no]}, subscribe: [b, "q v1"]}}
            {username: b, pass: "2"}
          ]
        }
    """)
    first, second = found["users"]
    assert (first.name, first.password, second.name, second.password) == ("a", "1", "b", "2")
    assert first.permissions.may_publish(b"a.x")
    assert not first.permissions.may_publish(b"a.no")
    assert not first.permissions.may_publish(b"b")
    assert first.permissions.may_subscribe(b"b", None)
    assert not first.permissions.may_subscribe(b"c", None)
    assert second.permissions.may_publish(b"free.x")
    assert not second.permissions.may_publish(b"a.x")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("\n foo: 1", "server.conf:2:2: unknown field 'foo'"),
        ("port: many", "server.conf:1:1: invalid value 'many' for 'port': expected an integer"),
        ("port: true", "expected an integer"),
        ("debug: 1", "true or false"),
        ("ping_interval: soon", "is not a duration"),
        ("listen: nowhere", "'listen'"),
        ("mappings { 'a.*': 'b.$2' }", "server.conf:1:12: cannot map 'a.*' to 'b.$2'"),
        ("accounts { A { user: x } }", "server.conf:1:16: unknown field 'user' in 'accounts.A'"),
        ("accounts { $G { } }", "'$G' is the global account"),
        ("accounts { A { exports: [{stream: a, service: b}] } }", "either a stream or a service"),
        ("accounts { A { exports: [{stream: a..b}] } }", "invalid subject 'a..b'"),
        ("accounts { A { exports: [{stream: a, accounts: [B]}] } }", "account 'B' is not configured"),
        ("accounts { A { imports: [{stream: {account: B, subject: x}}] } }", "account 'B' is not configured"),
        (
            "accounts { B { exports: [{stream: y}] }, A { imports: [{stream: {account: B, subject: x}}] } }",
            "account 'A' may not import 'x' from account 'B'",
        ),
        ("websocket { port: 1, odd: 2 }", "server.conf:1:22: unknown field 'odd' in 'websocket'"),
        ("tls { verify_or_not: true }", "server.conf:1:7: unknown field 'verify_or_not' in 'tls'"),
        ("tls: true", "'tls' must be a section"),
        ("authorization { users: [{password: a}] }", "a user needs a name and a password"),
        ("authorization { users: [{nkey: UABC}] }", "invalid nkey 'UABC'"),
        (
            "authorization { users: [{user: a, connection_types: [CARRIER_PIGEON]}] }",
            "unknown connection type",
        ),
        ("authorization { users: [{user: a, permissions: {publish: 'a b'}}] }", "invalid subject 'a b'"),
        ("resolver: URL(http://x)", "only 'resolver: MEMORY'"),
        ("operator: eyJx", "invalid operator JWT"),
        (
            "authorization { user: a, password: b, users: [{user: c, password: d}] }",
            "cannot be used together",
        ),
        ("authorization { users: 1 }", "'users' must be a list"),
        ("jetstream: maybe", "'jetstream' must be a section"),
        (
            "authorization { users: [{user: a, password: b, permissions: {write: x}}] }",
            "unknown field 'write'",
        ),
    ],
)
def test_what_cannot_be_used_says_why_and_where(text: str, message: str) -> None:
    with pytest.raises(ConfigFileError) as caught:
        settings(text)
    assert message in str(caught.value)


def test_keys_without_effect_are_reported() -> None:
    draft = interpret(
        parse_config("max_closed_clients: 1\njetstream { sync_interval: 1s }", "x", lambda path: "", {})
    )
    assert draft.settings == {"jetstream": True}
    assert draft.warnings == [
        "x:1:1: 'max_closed_clients' has no effect in Headrace",
        "x:2:13: 'sync_interval' has no effect in Headrace",
    ]


def test_a_file_is_read_with_its_includes(tmp_path: Path) -> None:
    (tmp_path / "server.conf").write_text("port: $HEADRACE_TEST_PORT\ninclude more.conf\n")
    (tmp_path / "more.conf").write_text("server_name: mill\n")
    draft = load_config(str(tmp_path / "server.conf"), {**os.environ, "HEADRACE_TEST_PORT": "5"})
    assert draft.settings == {"port": 5, "server_name": "mill"}


def test_a_missing_file_is_named() -> None:
    with pytest.raises(ConfigFileError, match=r"/no/such\.conf"):
        load_config("/no/such.conf", {})


@pytest.mark.parametrize("key", ["write_deadline", "lame_duck_duration"])
def test_a_duration_beyond_all_numbers_is_refused(key: str) -> None:
    with pytest.raises(ConfigFileError, match=key):
        settings(f"{key}: {'9' * 400}")


@pytest.mark.parametrize(
    "text",
    [
        "a: " + "[" * 5000,
        "a: " + "9" * 5000,
        "port: -" + "9" * 5000,
        "a: " + "9" * 5000 + "KB",
        "accounts: [[a]]",
        "operator: \\0",
        "include 'a\\0b'",
    ],
)
def test_configuration_that_cannot_be_read_is_refused_with_its_place(text: str) -> None:
    with pytest.raises(ConfigFileError, match=r"^x\.conf:1:\d+: "):
        interpret(parse_config(text.replace("\\0", "\0"), "x.conf", lambda path: Path(path).read_text(), {}))


def test_a_configuration_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.conf").write_bytes(b"port: \xff\xfe")
    with pytest.raises(ConfigFileError, match="cannot read the configuration file"):
        load_config(str(tmp_path / "x.conf"), {})
