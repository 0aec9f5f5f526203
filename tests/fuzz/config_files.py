"""Fuzz target: configuration files give options, or a ConfigError with the position, and nothing else.

The options are then validated as a server does, which may raise OptionsError.
"""

from __future__ import annotations

import contextlib
import re
from typing import NamedTuple

from headrace.config.config_parser import ConfigFileError, parse_config
from headrace.config.options import OptionsError, from_keywords
from headrace.config.schema import _TOP, interpret

from .input_generator import NUMBERS, TRAPS, Maker
from .target import Pair

_KEYS = sorted(_TOP.names)
_KEYS += [
    "x",
    "include",
    '"quoted key"',
    "'k'",
    "users",
    "user",
    "permissions",
]
_INNER = [
    "user",
    "password",
    "token",
    "users",
    "timeout",
    "default_permissions",
    "publish",
    "subscribe",
    "allow",
    "deny",
    "cert_file",
    "key_file",
    "ca_file",
    "verify",
    "store_dir",
    "domain",
    "max_file",
    "enabled",
    "port",
    "listen",
    "remotes",
    "url",
    "account",
    "exports",
    "imports",
    "stream",
    "service",
    "jetstream",
    "limits",
    "batch",
    "max_msgs",
    "no_tls",
    "compression",
    "same_origin",
    "allowed_origins",
    "nkey",
    "mappings",
    "permissions",
    "allow_responses",
    "max",
    "expires",
    "credentials",
    "max_mem",
    "handshake_first",
    "authorization",
    "deny_imports",
    "deny_exports",
    "isolate_leafnode_interest",
    "advertise",
    "reconnect",
    "tls",
    "urls",
]
_WORDS = [
    "true",
    "false",
    "yes",
    "off",
    "4222",
    "-1",
    "8MB",
    "1k",
    "30s",
    "5m",
    '"text"',
    "'text'",
    "$VARIABLE",
    "$MISSING",
    "$port",
    '["a","b"]',
    "[]",
    "{}",
    "127.0.0.1:4222",
    '"[::1]:5"',
    "$2a$11$abc",
    "a.>",
    '"\\x41"',
    '"\\q"',
    "(a\n)",
    "1.5",
    "1e9",
    "host:port",
    ":0",
    "99999999",
    "nats://a:b@c:1",
    '"nats://["',
    "http://x",
    "a:b:c",
    "9223372036854775808",
    "0x10",
    "SUABC",
    "UABC",
]
_SAMPLES = (
    'port: 4333\njetstream { store_dir: "/x", max_file: 1GB }\n',
    'authorization { users = [ {user: a, password: b, permissions: {publish: ["a.>"], subscribe: {allow: ">"}}} ] }\n',
    "accounts { A: { users: [{user: a}], exports: [{stream: a.>}], jetstream: true }, "
    "B: { imports: [{stream: {account: A, subject: a.>}, prefix: p}] } }\n",
    "leafnodes { port: 7422, remotes: [ { url: nats://a:1, account: A } ] }\n",
    "websocket { port: 8080, no_tls: true, same_origin: true, allowed_origins: [http://a] }\n",
    "tls { cert_file: c, key_file: k, verify: true, timeout: 3 }\nlisten: 0.0.0.0:4222\n",
    "include part.conf\n# comment\ndebug: true; trace: off // end\n",
    "resolver: MEMORY\nresolver_preload { A: x }\noperator: [a, b]\n",
    "include 'self.conf'\n",
)
_BYTES = [word.encode() for word in (*_WORDS, *_INNER, *_SAMPLES)]
_FILES = {
    "part.conf": "a: 1\n",
    "self.conf": "include 'self.conf'\n",
    "bad.conf": "{",
    "deep.conf": "a " + "[" * 300,
}
_PLACE = re.compile(r"(?:fuzz|part|self|bad|deep)\.conf:\d+:\d+: ")


class Case(NamedTuple):
    text: str


def start(maker: Maker) -> Pair:
    return make, check


def make(maker: Maker) -> Case:
    dice = maker.below(10)
    if dice < 5:
        text = "".join([_entry(maker, 0) for _ in range(1 + maker.below(3))])
    else:
        text = maker.pick(_SAMPLES) + (maker.pick(_SAMPLES) if dice == 9 else "")
    if maker.chance(0.6):
        text = maker.damaged(text.encode(), _BYTES).decode("utf-8", "replace")
    if maker.chance(0.02):
        text += maker.pick(("a: [", "a {", '"', "(", "$", "{")) * (1 + maker.below(400))
    return Case(text)


def _entry(maker: Maker, depth: int) -> str:
    key = maker.pick(_KEYS if depth == 0 else _INNER)
    return (
        key
        + maker.pick((": ", " = ", " ", ":", "=", " {"))
        + _value(maker, depth)
        + maker.pick(("\n", ",", "; ", "\n#x\n"))
    )


def _value(maker: Maker, depth: int) -> str:
    dice = maker.below(10)
    if dice < 3 and depth < 3:
        return "{ " + "".join([_entry(maker, depth + 1) for _ in range(maker.below(4))]) + "}"
    if dice < 5 and depth < 3:
        return "[" + ", ".join([_value(maker, depth + 1) for _ in range(maker.below(4))]) + "]"
    if dice < 6:
        return maker.pick(NUMBERS + TRAPS).decode("utf-8", "replace")
    return maker.pick(_WORDS)


def _read(path: str) -> str:
    if path not in _FILES:
        raise FileNotFoundError(2, "No such file or directory", path)
    return _FILES[path]


def check(case: Case) -> None:
    try:
        draft = interpret(parse_config(case.text, "fuzz.conf", _read, {"VARIABLE": "4", "HOME": "/"}))
    except ConfigFileError as error:
        if not _PLACE.match(str(error)):
            raise AssertionError("an error without its place") from error
        return
    with contextlib.suppress(OptionsError):
        from_keywords(**draft.settings).check()
