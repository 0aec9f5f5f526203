"""The metadata that the server keeps about an asset: the API level it needs, the server that answers.

`_nats.req.level` is stored with the configuration; `_nats.ver` and `_nats.level` are only shown in answers.
What a client sends under these keys is discarded.
"""

from headrace.api.configs import ConsumerConfig, StreamConfig
from headrace.api.times import ZERO

API_LEVEL = 5
REQUIRED_LEVEL = "_nats.req.level"
VERSION = "_nats.ver"
LEVEL = "_nats.level"
BYTES_MAX = 128 * 1024


def stream_level(config: StreamConfig) -> int:
    """The lowest API level that understands the stream."""
    if config.allow_batched:
        return 4
    if config.allow_msg_counter or config.allow_atomic or config.allow_msg_schedules:
        return 2
    if config.persist_mode == "async":
        return 2
    markers = config.subject_delete_marker_ttl > 0 or bool(config.subject_delete_markers)
    return 1 if config.allow_msg_ttl or markers else 0


def consumer_level(config: ConsumerConfig) -> int:
    """The lowest API level that understands the consumer."""
    if config.ack_policy == "flow_control":
        return 4
    paused = config.pause_until is not None and config.pause_until != ZERO
    grouped = config.priority_policy != "none" or config.priority_timeout != 0 or bool(config.priority_groups)
    return 1 if paused or grouped else 0


def stored(metadata: dict[str, str], level: int) -> dict[str, str]:
    """The metadata that is kept."""
    return without_shown(metadata) | {REQUIRED_LEVEL: str(level)}


def without_shown(metadata: dict[str, str]) -> dict[str, str]:
    return {key: value for key, value in metadata.items() if key not in (VERSION, LEVEL)}


def shown(metadata: dict[str, str], version: str) -> dict[str, str]:
    """The metadata of an answer to create, update, info and reset."""
    return metadata | {VERSION: version, LEVEL: str(API_LEVEL)}


def comparable(metadata: dict[str, str]) -> dict[str, str]:
    """The client's own part, by which two configurations are compared."""
    return {key: value for key, value in metadata.items() if key not in (VERSION, LEVEL, REQUIRED_LEVEL)}


def size(metadata: dict[str, str]) -> int:
    return sum(len(key.encode()) + len(value.encode()) for key, value in metadata.items())
