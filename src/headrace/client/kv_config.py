"""Configuration and status of a bucket, and its conversion to a stream configuration.

Owns the convention (stream `KV_<bucket>`, subjects `$KV.<bucket>.>`, fixed flags); sends nothing itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from nats.js import api
from nats.js.kv import KeyValue as NatsKeyValue

from headrace.client.durations import SECOND_NS, Duration, parse_optional_ns, parse_ttl_ns
from headrace.client.errors import LimitMarkersPermanent
from headrace.client.kv_entry import check_bucket
from headrace.deprecation import RenamedAttribute

MAX_HISTORY = 64
#: The API level of servers that support limit markers (nats-server 2.11).
LIMIT_MARKERS_API_LEVEL = 1
_STREAM_PREFIX = "KV_"
_DUPLICATE_WINDOW_NS = 120 * SECOND_NS


def stream_name_for(bucket: str) -> str:
    return _STREAM_PREFIX + bucket


def parse_bucket_name(stream: str) -> str | None:
    """Return the bucket of a stream, by its name."""
    return stream.removeprefix(_STREAM_PREFIX) if stream.startswith(_STREAM_PREFIX) else None


def subject_prefix_for(bucket: str) -> str:
    return f"$KV.{bucket}."


@dataclass(frozen=True, kw_only=True)
class BucketConfig:
    """Configuration of a bucket.

    `limit_markers` is how long the server keeps a marker in place of an expired key, so that watchers are notified; it
    also enables a TTL for single keys. `allow_atomic` allows several keys to change together. `mirror` and `sources`
    are names of buckets, or `StreamSource`s.
    """

    bucket: str
    description: str | None = None
    history: int = 1
    ttl: Duration | None = None
    limit_markers: Duration | None = None
    allow_atomic: bool = False
    max_bytes: int | None = None
    max_value_size: int | None = None
    storage: api.StorageType | str | None = None
    compression: api.StoreCompression | str | bool | None = None
    replicas: int = 1
    direct: bool = True
    metadata: Mapping[str, str] | None = None
    placement: api.Placement | None = None
    republish: api.RePublish | None = None
    mirror: api.StreamSource | str | None = None
    sources: Sequence[api.StreamSource | str] = ()

    stream = RenamedAttribute("to_stream_config")

    def to_stream_config(self) -> dict[str, Any]:
        """Return the configuration of its stream, as it is sent."""
        config: dict[str, Any] = {
            "name": stream_name_for(check_bucket(self.bucket)),
            "retention": "limits",
            "discard": "new",
            "max_msgs": -1,
            "max_consumers": -1,
            "allow_rollup_hdrs": True,
            "deny_delete": True,
            "deny_purge": False,
        }
        if self.mirror is None:
            config["subjects"] = [f"{subject_prefix_for(self.bucket)}>"]
        else:
            config |= {"mirror": encode_mirror(self.mirror), "mirror_direct": True}
        if self.sources:
            config["sources"] = [encode_source(source, self.bucket) for source in self.sources]
        given = {name: getattr(self, name) for name in _OPTION_ENCODERS}
        return apply_changes(config, {name: value for name, value in given.items() if value is not None})


def make_config(config: BucketConfig | api.KeyValueConfig | None, params: Mapping[str, Any]) -> BucketConfig:
    """Make a configuration from an object, from keywords, or from nats-py's object and names."""
    values: dict[str, Any] = {}
    if config is not None:
        values = {field.name: getattr(config, field.name) for field in fields(config)}
    values |= params
    marker_ttl = values.pop("limit_marker_ttl", None)
    if values.get("limit_markers") is None:
        values["limit_markers"] = marker_ttl
    if values.get("direct") is None:
        values["direct"] = True
    return BucketConfig(**values)


def apply_changes(config: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return a stream's configuration with bucket options changed."""
    unknown = changes.keys() - _OPTION_ENCODERS.keys()
    if unknown:
        raise TypeError(
            f"{', '.join(sorted(unknown))} cannot be set; available options are {', '.join(_OPTION_ENCODERS)}"
        )
    result = dict(config)
    for name, value in changes.items():
        result |= _OPTION_ENCODERS[name](value)
    if config.get("subject_delete_marker_ttl") and not result["subject_delete_marker_ttl"]:
        bucket = parse_bucket_name(config["name"])
        raise LimitMarkersPermanent.refuse(f"limit markers of bucket {bucket!r} cannot be disabled")
    if age := result.get("max_age"):
        # The server rejects a window longer than the age, and chooses one itself if none is given.
        result["duplicate_window"] = min(_DUPLICATE_WINDOW_NS, age)
    return result


def _encode_history(value: int) -> dict[str, Any]:
    if not 1 <= value <= MAX_HISTORY:
        raise ValueError(f"history={value!r}: a bucket keeps 1 to {MAX_HISTORY} revisions of a key")
    return {"max_msgs_per_subject": value}


def _encode_limit_markers(value: Duration | None) -> dict[str, Any]:
    if not value:
        return {"subject_delete_marker_ttl": 0}
    marker_ttl = parse_ttl_ns(value, "limit_markers")
    return {"allow_msg_ttl": True, "subject_delete_marker_ttl": marker_ttl}


def _encode_compression(value: str | bool | None) -> dict[str, Any]:
    return {"compression": ("s2" if value else "none") if isinstance(value, bool) else _enum_value(value)}


def _enum_value(value: Any) -> Any:
    return getattr(value, "value", value)


def _make_encoder(
    name: str, convert: Callable[[Any], Any] = lambda value: value
) -> Callable[[Any], dict[str, Any]]:
    return lambda value: {name: convert(value)}


#: Bucket options, and the stream fields that they set.
_OPTION_ENCODERS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "description": _make_encoder("description"),
    "history": _encode_history,
    "ttl": _make_encoder("max_age", lambda value: parse_optional_ns(value, "ttl")),
    "limit_markers": _encode_limit_markers,
    "allow_atomic": _make_encoder("allow_atomic"),
    "max_bytes": _make_encoder("max_bytes"),
    "max_value_size": _make_encoder("max_msg_size"),
    "storage": _make_encoder("storage", _enum_value),
    "compression": _encode_compression,
    "replicas": _make_encoder("num_replicas"),
    "direct": _make_encoder("allow_direct"),
    "metadata": _make_encoder("metadata", dict),
    "placement": _make_encoder("placement", lambda value: value and value.as_dict()),
    "republish": _make_encoder("republish", lambda value: value and value.as_dict()),
}


def encode_mirror(mirror: api.StreamSource | str) -> dict[str, Any]:
    source = api.StreamSource(name=mirror) if isinstance(mirror, str) else mirror
    return {**source.as_dict(), "name": stream_name_for(parse_bucket_name(source.name) or source.name)}


def encode_source(source: api.StreamSource | str, bucket: str) -> dict[str, Any]:
    """Encode a source whose keys become keys of this bucket, unless it is configured otherwise."""
    result = encode_mirror(source)
    if not result.get("subject_transforms"):
        source_prefix = subject_prefix_for(parse_bucket_name(result["name"]) or result["name"])
        filter_subject = result.pop("filter_subject", f"{source_prefix}>")
        target = subject_prefix_for(bucket) + filter_subject.removeprefix(source_prefix)
        result["subject_transforms"] = [{"src": filter_subject, "dest": target}]
    return result


@dataclass(frozen=True)
class BucketStatus(NatsKeyValue.BucketStatus):
    """A bucket's state and configuration; `values` counts revisions and markers."""

    @property
    def limit_marker_ttl(self) -> float:
        """How long markers are kept, in seconds; 0 if the bucket has none."""
        return self.stream_info.config.subject_delete_marker_ttl or 0

    @property
    def marker_ttl(self) -> float:
        """nats-py's name of `limit_marker_ttl`."""
        return self.limit_marker_ttl

    @property
    def allows_ttl(self) -> bool:
        """Whether create() and purge() accept a TTL."""
        return bool(self.stream_info.config.allow_msg_ttl)

    @property
    def allows_atomic(self) -> bool:
        """Whether several keys can change together."""
        return bool(self.stream_info.config.allow_atomic)

    @property
    def bytes(self) -> int:
        return self.stream_info.state.bytes

    @property
    def is_compressed(self) -> bool:
        return self.stream_info.config.compression not in (None, api.StoreCompression.NONE)

    @property
    def metadata(self) -> dict[str, str]:
        return dict(self.stream_info.config.metadata or {})

    @property
    def backing_store(self) -> str:
        return "JetStream"
