"""The broker on the compiled and on the pure core, in one process.

`load("pure")` returns the classes as they are if HEADRACE_PURE is set; modules that are already imported do not change.
`Desk` is a hub with clients that send and receive bytes.
"""

from __future__ import annotations

import functools
import importlib
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from headrace.errors import ProtocolError

TWINS = ("compiled", "pure")
CONNECT = b'CONNECT {"verbose":false,"pedantic":false,"protocol":0,"headers":true,"no_responders":true}\r\n'
_CHOSEN_AT_IMPORT = ("headrace._native", "headrace.broker")


@contextmanager
def _fresh_modules() -> Iterator[None]:
    def chosen() -> dict[str, Any]:
        return {name: module for name, module in sys.modules.items() if name.startswith(_CHOSEN_AT_IMPORT)}

    package = importlib.import_module("headrace")
    kept, attributes = chosen(), dict(vars(package))
    for name in kept:
        del sys.modules[name]
    try:
        yield
    finally:
        for name in chosen():
            del sys.modules[name]
        sys.modules.update(kept)
        for name in ("_native", "broker"):
            if name in attributes:
                setattr(package, name, attributes[name])


@functools.cache
def load(twin: str) -> SimpleNamespace:
    """The classes of one version, compiled or pure."""
    before = os.environ.pop("HEADRACE_PURE", None)
    if twin == "pure":
        os.environ["HEADRACE_PURE"] = "1"
    try:
        with _fresh_modules():
            kernel = importlib.import_module("headrace._native")
            broker = importlib.import_module("headrace.broker")
            assert kernel.COMPILED is (twin == "compiled"), "the compiled core is not built: run make setup"
            names = {name: getattr(kernel, name) for name in kernel.__all__}
            return SimpleNamespace(**names, **{name: getattr(broker, name) for name in broker.__all__})
    finally:
        os.environ.pop("HEADRACE_PURE", None)
        if before is not None:
            os.environ["HEADRACE_PURE"] = before


class Anybody:
    """An identity without rules."""

    user = ""
    account = "$G"

    def __init__(self, permissions: Any = None) -> None:
        self.permissions = permissions


class Owner:
    """The owner of a session in these tests: accepts the given identity."""

    def __init__(self, identity: Anybody | None) -> None:
        self.identity = identity
        self.connects: list[Mapping[str, Any]] = []

    def authenticate(self, fields: Mapping[str, Any]) -> Anybody | None:
        self.connects.append(fields)
        return self.identity

    def now_ns(self) -> int:
        return 0

    def on_connected(self) -> None:
        pass

    def info(self) -> bytes:
        return b'INFO {"connect_info":true} \r\n'


class Client:
    """One session with its parser."""

    def __init__(self, session: Any, parser: Any, owner: Owner) -> None:
        self.session = session
        self.parser = parser
        self.owner = owner
        self.ended = False

    def say(self, data: bytes, step: int = 0) -> bytes:
        """Feed bytes in pieces of `step` and return the output; a disconnect is shown as in the protocol transcripts."""
        try:
            for at in range(0, len(data), step or len(data) or 1):
                self.parser.feed(data[at : at + step] if step else data)
        except ProtocolError as error:
            self.ended = True
            if error.text is not None:
                self.session.send_error(error.text)
            return self.heard() + b"<EOF>"
        return self.heard()

    def heard(self) -> bytes:
        return bytes(self.session.drain())


class Desk:
    """A hub and its clients."""

    def __init__(self, twin: str, **hub: Any) -> None:
        self.classes = load(twin)
        self.hub = self.classes.SubjectRouter(**hub)

    def client(
        self,
        greeting: bytes = CONNECT,
        *,
        limits: Any = None,
        identity: Anybody | None = None,
        ready: bool = True,
        **parser: int,
    ) -> Client:
        owner = Owner(identity or Anybody())
        session = self.classes.Session(self.hub, owner, 1, limits or self.classes.SessionLimits(), ready)
        client = Client(session, self.classes.Parser(session, **parser), owner)
        assert client.say(greeting) == b""
        return client
