"""Stores consumers as metadata: for each a configuration and an ack state, under the ident of the stream."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

import msgspec

from headrace import __version__
from headrace.errors import UnknownFeature
from headrace.jetstream_api.configs import ConsumerConfig
from headrace.storage import MetadataStore

CONFIG_KEY = b"consumer/"
ACK_STATE_KEY = b"progress/"

Settings = TypeVar("Settings")


class ConsumerRecord(msgspec.Struct):
    """A consumer's configuration as it is stored."""

    created_ns: int
    config: ConsumerConfig
    name: str


def load_consumers(
    metadata: MetadataStore, ident: int
) -> Iterator[tuple[str, int, ConsumerConfig, list[bytes]]]:
    """Yield name, creation time, configuration and stored ack state of every consumer of a stream."""
    prefix = CONFIG_KEY + b"%d/" % ident
    for key, value in metadata.items(prefix):
        record = decode_kept(value, ConsumerRecord, f"consumer {key[len(prefix) :].decode()}")
        ack_state_key = ACK_STATE_KEY + key[len(CONFIG_KEY) :]
        deltas = [metadata.get(ack_state_key) or b"", *metadata.get_operands(ack_state_key)]
        yield record.name, record.created_ns, record.config, [delta for delta in deltas if delta]


def decode_kept(value: bytes, kind: type[Settings], what: str) -> Settings:
    """Decode a stored configuration; raise UnknownFeature if it has a field that this version lacks.

    Ignoring such a field would change the behavior of the stream or consumer.
    """
    try:
        return msgspec.json.decode(value, type=kind)
    except msgspec.ValidationError as error:
        raise UnknownFeature(
            f"the configuration of {what} has something that this version ({__version__}) does not know: {error}. "
            "A newer version wrote it: upgrade to that one, or remove the setting there"
        ) from None


def make_keys(ident: int, name: str) -> tuple[bytes, bytes]:
    """Return the metadata keys of a consumer's configuration and ack state."""
    suffix = b"%d/%s" % (ident, name.encode())
    return CONFIG_KEY + suffix, ACK_STATE_KEY + suffix


def encode_record(created_ns: int, config: ConsumerConfig, name: str) -> bytes:
    return msgspec.json.encode(ConsumerRecord(created_ns, config, name))
