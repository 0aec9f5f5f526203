"""The compiled part: each module has a pure twin (`wire`, `wire_pure`) with the same names and behaviour.

Compiled is taken where it was built, unless HEADRACE_PURE is set. Knows nothing of the packages above.
"""

import importlib
import os
from types import ModuleType
from typing import TYPE_CHECKING, Any

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

if TYPE_CHECKING:
    from headrace.kernel.answers import answer, answers, newest
    from headrace.kernel.arrivals import Pool, Staged, Window, nats_headers
    from headrace.kernel.checksum import crc32
    from headrace.kernel.delivery import ack_parts, encode, subjects_of
    from headrace.kernel.lanes import Lane, Outbox
    from headrace.kernel.wire import Parser, Peer, Route, RouteTable, Subscription

_EXPORTS = {
    "answers": ("answer", "answers", "newest"),
    "arrivals": ("Pool", "Staged", "Window", "nats_headers"),
    "checksum": ("crc32",),
    "delivery": ("ack_parts", "encode", "subjects_of"),
    "lanes": ("Lane", "Outbox"),
    "wire": ("Parser", "Peer", "Route", "RouteTable", "Subscription"),
}


def twin(name: str) -> ModuleType:
    """A kernel module by its plain name: compiled if possible and not declined, else pure."""
    module = _load(name)
    # Now, not on demand: importing a module has just put it here under its own name, which may be a function's too.
    globals().update((exported, getattr(module, exported)) for exported in _EXPORTS.get(name, ()))
    return module


def _load(name: str) -> ModuleType:
    if not os.environ.get("HEADRACE_PURE"):
        try:
            return importlib.import_module(f"headrace.kernel.{name}")
        except ImportError:
            pass
    return importlib.import_module(f"headrace.kernel.{name}_pure")


def __getattr__(name: str) -> Any:
    # On first use: what belongs to streams needs numpy, which takes longer to load than all the rest of a broker.
    for home, exported in _EXPORTS.items():
        if name in exported:
            return getattr(twin(home), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


#: What the key of a Route stands for: one subject, all children of a prefix, everything below two tokens.
EXACT, PARENT, HEAD = 0, 1, 2
#: Whether the hot path is the compiled one.
COMPILED = not twin("wire").__name__.endswith("_pure")
