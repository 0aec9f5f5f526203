"""The compiled part: each module has a pure twin (`wire`, `wire_pure`) with the same names and behaviour.

Compiled is taken where it was built, unless HEADRACE_PURE is set. Knows nothing of the packages above.
"""

import importlib
import os
from types import ModuleType
from typing import TYPE_CHECKING

__all__ = [
    "COMPILED",
    "EXACT",
    "HEAD",
    "PARENT",
    "Lane",
    "Outbox",
    "Parser",
    "Peer",
    "Pool",
    "Route",
    "RouteTable",
    "Staged",
    "Subscription",
    "Window",
    "ack_parts",
    "answer",
    "answers",
    "crc32",
    "encode",
    "nats_headers",
    "newest",
    "subjects_of",
    "twin",
]


def twin(name: str) -> ModuleType:
    """A kernel module by its plain name: compiled if possible and not declined, else pure."""
    if not os.environ.get("HEADRACE_PURE"):
        try:
            return importlib.import_module(f"headrace.kernel.{name}")
        except ImportError:
            pass
    return importlib.import_module(f"headrace.kernel.{name}_pure")


if TYPE_CHECKING:
    from headrace.kernel.answers import answer, answers, newest
    from headrace.kernel.arrivals import Pool, Staged, Window, nats_headers
    from headrace.kernel.checksum import crc32
    from headrace.kernel.delivery import ack_parts, encode, subjects_of
    from headrace.kernel.lanes import Lane, Outbox
    from headrace.kernel.wire import Parser, Peer, Route, RouteTable, Subscription
else:
    _wire = twin("wire")
    Parser, Peer = _wire.Parser, _wire.Peer
    Route, RouteTable, Subscription = _wire.Route, _wire.RouteTable, _wire.Subscription
    _answers = twin("answers")
    answer, answers, newest = _answers.answer, _answers.answers, _answers.newest
    _arrivals = twin("arrivals")
    Pool, Staged, Window = _arrivals.Pool, _arrivals.Staged, _arrivals.Window
    nats_headers = _arrivals.nats_headers
    crc32 = twin("checksum").crc32
    _lanes = twin("lanes")
    Lane, Outbox = _lanes.Lane, _lanes.Outbox
    _delivery = twin("delivery")
    ack_parts, encode, subjects_of = _delivery.ack_parts, _delivery.encode, _delivery.subjects_of

#: What the key of a Route stands for: one subject, all children of a prefix, everything below two tokens.
EXACT, PARENT, HEAD = 0, 1, 2
#: Whether the hot path is the compiled one.
COMPILED = not Parser.__module__.endswith("_pure")
