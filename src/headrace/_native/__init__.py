"""The compiled core: each module has a pure version (`parser`, `parser_pure`) with the same names and behaviour.

The compiled version is used if it was built, unless HEADRACE_PURE is set. Must not know the packages above.
See ADR 4.
"""

import importlib
import importlib.util
import os
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING, Any

__all__ = [
    "COMPILED",
    "KEY_EXACT",
    "KEY_PARENT",
    "KEY_TWO_TOKENS",
    "AccountClock",
    "ByteBudget",
    "ClientState",
    "CommitQueue",
    "DedupWindow",
    "KeyTable",
    "LeafnodeParser",
    "OpenBatch",
    "Parser",
    "PendingReplies",
    "PublishFastPath",
    "Route",
    "RouteTable",
    "Subscription",
    "collect_subjects",
    "crc32",
    "describe_core",
    "encode_deliveries",
    "encode_entry",
    "encode_frame_header",
    "encode_last_by_subject",
    "encode_leafnode_run",
    "encode_replies",
    "encode_reply",
    "encode_sync_slot",
    "find_first_rows",
    "find_missing_core",
    "load_native",
    "parse_nats_headers",
    "split_ack_subject",
]

if TYPE_CHECKING:
    from headrace._native.account_clock import AccountClock
    from headrace._native.commit_queue import CommitQueue
    from headrace._native.crc32 import crc32
    from headrace._native.deliveries import (
        collect_subjects,
        encode_deliveries,
        encode_leafnode_run,
        split_ack_subject,
    )
    from headrace._native.direct_get import encode_last_by_subject, encode_replies, encode_reply
    from headrace._native.frame_encoding import encode_entry, encode_frame_header, encode_sync_slot
    from headrace._native.ingest_state import ByteBudget, DedupWindow, OpenBatch, parse_nats_headers
    from headrace._native.key_table import KeyTable, find_first_rows
    from headrace._native.leafnode_parser import LeafnodeParser
    from headrace._native.parser import ClientState, Parser, Route, RouteTable, Subscription
    from headrace._native.publish_fastpath import PendingReplies, PublishFastPath

_EXPORTS = {
    "account_clock": ("AccountClock",),
    "commit_queue": ("CommitQueue",),
    "direct_get": ("encode_reply", "encode_replies", "encode_last_by_subject"),
    "frame_encoding": ("encode_entry", "encode_frame_header", "encode_sync_slot"),
    "ingest_state": ("ByteBudget", "OpenBatch", "DedupWindow", "parse_nats_headers"),
    "crc32": ("crc32",),
    "deliveries": ("split_ack_subject", "encode_deliveries", "encode_leafnode_run", "collect_subjects"),
    "key_table": ("KeyTable", "find_first_rows"),
    "leafnode_parser": ("LeafnodeParser",),
    "publish_fastpath": ("PublishFastPath", "PendingReplies"),
    "parser": ("Parser", "ClientState", "Route", "RouteTable", "Subscription"),
}

_MODULES = (*_EXPORTS, "column_packing", "records", "reply_scanner", "snappy")
_missing: set[str] = set()  # compiled forms that could not be loaded


def load_native(name: str) -> ModuleType:
    """Load a native module by its plain name: compiled if available and not disabled, otherwise pure."""
    module = _load(name)
    # Set now, not on demand: importing a module has just added it here under its own name, which may also be a
    # function's.
    globals().update((exported, getattr(module, exported)) for exported in _EXPORTS.get(name, ()))
    return module


def _load(name: str) -> ModuleType:
    if not os.environ.get("HEADRACE_PURE"):
        try:
            return importlib.import_module(f"headrace._native.{name}")
        except ImportError:
            _missing.add(name)
    return importlib.import_module(f"headrace._native.{name}_pure")


@cache
def _is_built(name: str) -> bool:
    return importlib.util.find_spec(f"headrace._native.{name}") is not None


def describe_core() -> str:
    """Say which core runs: "compiled", "pure Python", or which modules lack their compiled form."""
    if os.environ.get("HEADRACE_PURE"):
        return "pure Python"
    missing = [name for name in _MODULES if name in _missing or not _is_built(name)]
    if not missing:
        return "compiled"
    return "pure Python" if len(missing) == len(_MODULES) else f"compiled without {', '.join(missing)}"


def find_missing_core() -> str:
    """Return a warning if compiled modules are missing although nothing asked for the pure core; otherwise ""."""
    core = describe_core()
    if core == "compiled" or os.environ.get("HEADRACE_PURE"):
        return ""
    return (
        f"The core is {core}: the server works, but several times slower. Install a wheel with the compiled core, "
        "or install again where a C compiler is available; HEADRACE_PURE=1 hides this warning"
    )


def __getattr__(name: str) -> Any:
    # Loaded on first use: stream modules need numpy, which takes longer to import than all the rest of a broker.
    for home, exported in _EXPORTS.items():
        if name in exported:
            return getattr(load_native(home), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


#: What the key of a Route covers: one subject, all children of a prefix, everything below two tokens.
KEY_EXACT, KEY_PARENT, KEY_TWO_TOKENS = 0, 1, 2
#: Whether the compiled core is in use.
COMPILED = not load_native("parser").__name__.endswith("_pure")
