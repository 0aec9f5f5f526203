"""Server-owned metadata of streams and consumers: the API level they need, and the server that responds.

`_nats.req.level` is stored with the configuration; `_nats.ver` and `_nats.level` appear only in responses. Values that
a client sends under these keys are discarded.
"""

from headrace.jetstream_api.configs import ConsumerConfig, StreamConfig
from headrace.jetstream_api.times import ZERO_TIME

API_LEVEL = 5
REQUIRED_LEVEL_KEY = "_nats.req.level"
VERSION_KEY = "_nats.ver"
LEVEL_KEY = "_nats.level"
BYTES_MAX = 128 * 1024


def required_stream_level(config: StreamConfig) -> int:
    """Return the lowest API level that supports the stream."""
    if config.allow_batched:
        return 4
    if config.allow_msg_counter or config.allow_atomic or config.allow_msg_schedules:
        return 2
    if config.persist_mode == "async":
        return 2
    markers = config.subject_delete_marker_ttl > 0 or bool(config.subject_delete_markers)
    return 1 if config.allow_msg_ttl or markers else 0


def required_consumer_level(config: ConsumerConfig) -> int:
    """Return the lowest API level that supports the consumer."""
    if config.ack_policy == "flow_control":
        return 4
    paused = config.pause_until is not None and config.pause_until != ZERO_TIME
    grouped = config.priority_policy != "none" or config.priority_timeout != 0 or bool(config.priority_groups)
    return 1 if paused or grouped else 0


def to_stored(metadata: dict[str, str], level: int) -> dict[str, str]:
    """Return the metadata to store."""
    return strip_server_keys(metadata) | {REQUIRED_LEVEL_KEY: str(level)}


def strip_server_keys(metadata: dict[str, str]) -> dict[str, str]:
    return {key: value for key, value in metadata.items() if key not in (VERSION_KEY, LEVEL_KEY)}


def to_public(metadata: dict[str, str], version: str) -> dict[str, str]:
    """Return the metadata for responses to create, update, info and reset."""
    return metadata | {VERSION_KEY: version, LEVEL_KEY: str(API_LEVEL)}


def for_comparison(metadata: dict[str, str]) -> dict[str, str]:
    """Return the client's own part, by which two configurations are compared."""
    return {
        key: value
        for key, value in metadata.items()
        if key not in (VERSION_KEY, LEVEL_KEY, REQUIRED_LEVEL_KEY)
    }


def compute_size(metadata: dict[str, str]) -> int:
    return sum(len(key.encode()) + len(value.encode()) for key, value in metadata.items())
