"""How streams are stored as metadata: the record of a configuration, and the keys of everything kept about a stream."""

from __future__ import annotations

import msgspec

from headrace.broker.streams.schedules import KEY as SCHEDULES_KEY
from headrace.jetstream_api.configs import StreamConfig

CONFIG_KEY = b"stream/"
SWEEP_KEY = b"interest/"


class StreamRecord(msgspec.Struct):
    """A stream's configuration as it is stored."""

    created_ns: int
    config: StreamConfig


def config_key(ident: int) -> bytes:
    """Return the key of a stream's configuration; `ident` is that of its log."""
    return CONFIG_KEY + b"%d" % ident


def sweep_key(ident: int) -> bytes:
    """Return the key that says that messages of an interest stream are checked for consumers that need them."""
    return SWEEP_KEY + b"%d" % ident


def schedules_key(ident: int) -> bytes:
    """Return the prefix of the keys of a stream's schedules."""
    return SCHEDULES_KEY + b"%d/" % ident
