"""Stores consumers as metadata: for each a configuration and an ack state, under the ident of the stream."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

import msgspec

from headrace import __version__
from headrace.broker.consumers.ack_state import AckState
from headrace.broker.timers import Timers
from headrace.errors import UnknownFeature
from headrace.jetstream_api.configs import ConsumerConfig
from headrace.storage import MetadataStore
from headrace.storage.metadata_store import PreparedDelete

CONFIG_KEY = b"consumer/"
ACK_STATE_KEY = b"progress/"

#: Fields that are stored only if they are set, so that earlier versions can open a store that does not use them.
_UNSET_FIELDS = ("max_ack_pending_per_subject", "key_tokens", "dead_letter")

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
            f"the configuration of {what} has a setting that this version ({__version__}) does not know: {error}. "
            "A newer version wrote it: upgrade to that version, or use it to remove the setting"
        ) from None


class ConsumerStorage:
    """The stored configuration and ack state of one consumer. Everything joins the open frame."""

    __slots__ = ("_ack_state_key", "_config_key", "_metadata", "_name", "_timers")

    def __init__(self, metadata: MetadataStore, timers: Timers, ident: int, name: str) -> None:
        self._metadata = metadata
        self._timers = timers
        self._name = name
        suffix = b"%d/%s" % (ident, name.encode())
        self._config_key = CONFIG_KEY + suffix
        self._ack_state_key = ACK_STATE_KEY + suffix

    def put_config(self, created_ns: int, config: ConsumerConfig) -> None:
        """Store the configuration."""
        record = msgspec.to_builtins(ConsumerRecord(created_ns, config, self._name))
        for field in _UNSET_FIELDS:
            if not record["config"][field]:
                del record["config"][field]
        self._metadata.put(self._config_key, msgspec.json.encode(record))

    def put_ack_state(self, ack_state: AckState) -> None:
        """Store what changed in the ack state, or all of it if a delta cannot say it."""
        clock_offset_ns = self._timers.clock_offset_ns
        key_order = ack_state.key_order
        if ack_state.needs_snapshot or (key_order is not None and key_order.needs_snapshot):
            self._metadata.put(self._ack_state_key, ack_state.encode_snapshot(clock_offset_ns))
            ack_state.discard_changes()
        else:
            self._metadata.merge(self._ack_state_key, ack_state.encode_delta(clock_offset_ns))

    def prepare_delete(self) -> list[PreparedDelete]:
        """Return what deletes both, together with what is stored of other consumers."""
        return [self._metadata.prepare_delete(key) for key in (self._config_key, self._ack_state_key)]

    def delete(self) -> None:
        """Delete both: the consumer is gone."""
        self._metadata.delete(self._config_key)
        self._metadata.delete(self._ack_state_key)
