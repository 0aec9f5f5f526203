"""How consumers are kept in the store: a configuration and a progress each, as facts under the stream's ident."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

import msgspec

from headrace import __version__
from headrace.api.configs import ConsumerConfig
from headrace.errors import UnknownFeature
from headrace.store import Facts

CONFIG_KEY = b"consumer/"
PROGRESS_KEY = b"progress/"

Settings = TypeVar("Settings")


class Kept(msgspec.Struct):
    """A consumer's configuration as the store keeps it."""

    created_ns: int
    config: ConsumerConfig
    name: str


def recovered(facts: Facts, ident: int) -> Iterator[tuple[str, int, ConsumerConfig, list[bytes]]]:
    """Name, time of creation, configuration and written progress of every consumer kept for a stream."""
    prefix = CONFIG_KEY + b"%d/" % ident
    for key, value in facts.items(prefix):
        kept = decode_kept(value, Kept, f"consumer {key[len(prefix) :].decode()}")
        progress_key = PROGRESS_KEY + key[len(CONFIG_KEY) :]
        written = [facts.get(progress_key) or b"", *facts.notes(progress_key)]
        yield kept.name, kept.created_ns, kept.config, [delta for delta in written if delta]


def decode_kept(value: bytes, kind: type[Settings], what: str) -> Settings:
    """Read a configuration that a version of Headrace stored; UnknownFeature if it has a field that this one lacks.

    Passing over such a field would change what the stream or consumer does.
    """
    try:
        return msgspec.json.decode(value, type=kind)
    except msgspec.ValidationError as error:
        raise UnknownFeature(
            f"the configuration of {what} has something that this version ({__version__}) does not know: {error}. "
            "A newer version wrote it: upgrade to that one, or remove the setting there"
        ) from None


def keys(ident: int, name: str) -> tuple[bytes, bytes]:
    """Where configuration and progress of a consumer are kept."""
    place = b"%d/%s" % (ident, name.encode())
    return CONFIG_KEY + place, PROGRESS_KEY + place


def encode(created_ns: int, config: ConsumerConfig, name: str) -> bytes:
    return msgspec.json.encode(Kept(created_ns, config, name))
