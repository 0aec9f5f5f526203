"""The options of the sink, and what follows from the stream that it writes to.

Owns option names, defaults and the checks on the driver. Invariant: a `WriteOptions` object that was adapted to its
stream works for every task, so that errors appear before anything is written. Must not know Spark's writers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from headrace.durations import parse_duration_ns
from headrace.reader import options as o
from headrace.reader.blocking_connection import ServerAddress
from headrace.reader.stream_admin import StreamError, StreamInfo, fetch_stream_info
from headrace.spark.pyspark_compat import is_commit_process
from headrace.spark.write.sink_streams import ensure_sink_streams
from headrace.spark.write.staging_folder import remove_expired_files
from headrace.spark.write.write_target import WriteTarget

if TYPE_CHECKING:
    from headrace.spark.write.claim_upload import ClaimUploadConfig

_ATOMIC_MODES = ("auto", "true", "false")
STAGED = "staged"
IDS = "ids"
_EXACTLY_ONCE_MODES = (STAGED, IDS)
_BATCH_MAX = 1000
_DAY_S = 86_400.0


@dataclass(frozen=True)
class WriteOptions:
    """All options of the sink; the fields after `claim_upload` follow from the stream."""

    address: ServerAddress
    stream: str
    subject: str = ""
    exactly_once: str = STAGED
    at_least_once: bool = False
    atomic: str = "auto"
    progress: str = ""
    write_id: str = ""
    batch_messages: int = _BATCH_MAX
    domain: str = ""
    reconnect_s: float = 30.0
    staging_path: str = ""
    staging_expiry_s: float = 7 * _DAY_S
    progress_expiry_s: float = 90 * _DAY_S
    dead_letter: str = ""
    claim_config: str = field(default="", repr=False)
    claim_upload: ClaimUploadConfig | None = None
    is_atomic: bool = False
    is_volatile: bool = False
    refuses_full_subjects: bool = False
    duplicate_window_s: float = 120.0
    message_bytes_max: int = 0
    subjects: tuple[str, ...] = ()
    subject_transform: tuple[str, str] | None = None

    @property
    def api_prefix(self) -> str:
        return f"$JS.{self.domain}.API" if self.domain else "$JS.API"

    @property
    def mode(self) -> str:
        """How rows are written: staged, ids, or "" for at least once."""
        return "" if self.at_least_once else self.exactly_once

    def make_target(self, query: str, epoch: int | None, partition: int = 0, owner: str = "") -> WriteTarget:
        """Return the target of a task, or of the driver; a batch write has no epoch."""
        # An unnamed batch write is new, and epoch 0 of a streaming query almost always.
        may_be_old = self.mode == STAGED and (epoch is not None or query == self.write_id)
        return WriteTarget(
            self.address,
            self.stream,
            query,
            epoch or 0,
            partition,
            owner,
            self.domain,
            epoch is not None,
            self.mode == STAGED,
            self.batch_messages,
            self.reconnect_s,
            self.is_atomic,
            self.is_volatile,
            self.refuses_full_subjects,
            self.duplicate_window_s,
            self.message_bytes_max,
            self.staging_path,
            self.dead_letter,
            self.progress if may_be_old else "",
            may_be_old and not self.progress and epoch != 0,
            self.claim_upload,
            self.subjects,
            self.subject_transform,
        )


def _parse_atomic_mode(text: str) -> str:
    if text.lower() not in _ATOMIC_MODES:
        raise ValueError(f"{text!r} is not one of {', '.join(_ATOMIC_MODES)}")
    return text.lower()


def _parse_exactly_once_mode(text: str) -> str:
    if text.lower() not in _EXACTLY_ONCE_MODES:
        raise ValueError(
            f"{text!r} is not one of {', '.join(_EXACTLY_ONCE_MODES)} (without it, set atLeastOnce=true)"
        )
    return text.lower()


def _parse_bool(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError(f"{text!r} is not true or false")
    return text.lower() == "true"


def _parse_name(text: str) -> str:
    if not re.fullmatch(r"[\w-]+", text):
        raise ValueError(f"{text!r} is not a valid name: use letters, digits, - and _")
    return text


def _parse_batch_size(text: str) -> int:
    if not 2 <= int(text) <= _BATCH_MAX:
        raise ValueError(f"{text!r} is not between 2 and {_BATCH_MAX}")
    return int(text)


def _parse_subject(text: str) -> str:
    if not re.fullmatch(r"[^\s.*>]+(\.[^\s.*>]+)*", text):
        raise ValueError(f"{text!r} is not a subject without wildcards")
    return text


def _parse_seconds(text: str) -> float:
    return parse_duration_ns(text) / o.NS


WRITE_OPTIONS: dict[str, tuple[str, Any]] = {
    "subject": ("subject", str),
    "exactlyonce": ("exactly_once", _parse_exactly_once_mode),
    "atleastonce": ("at_least_once", _parse_bool),
    "atomic": ("atomic", _parse_atomic_mode),
    "progress": ("progress", str),
    "writeid": ("write_id", _parse_name),
    "batchsize": ("batch_messages", _parse_batch_size),
    "domain": ("domain", str),
    "claimconfig": ("claim_config", str),
    "reconnect": ("reconnect_s", _parse_seconds),
    "stagingpath": ("staging_path", lambda text: text.removeprefix("file://")),
    "stagingexpiry": ("staging_expiry_s", _parse_seconds),
    "progressexpiry": ("progress_expiry_s", _parse_seconds),
    "deadletter": ("dead_letter", _parse_subject),
}
#: Options of Spark itself, which it passes on to a sink.
SPARK_OPTIONS = ("checkpointlocation", "queryname")


def parse_write_options(raw: Mapping[str, str]) -> WriteOptions:
    """Parse the options of a write."""
    options = o.normalize_names(raw)
    for name in SPARK_OPTIONS:
        options.pop(name, None)
    o.check_known(options, WRITE_OPTIONS, also=("stream",))
    parsed = WriteOptions(
        o.parse_address(options), o.get_required(options, "stream"), **o.parse_options(options, WRITE_OPTIONS)
    )
    if parsed.at_least_once and "exactlyonce" in options:
        raise o.OptionError("options `exactlyOnce` and `atLeastOnce` exclude each other")
    if parsed.domain and parsed.claim_config:
        # Claims are registered on the server we connect to; its collectors would not see the consumers of a stream
        # elsewhere.
        raise o.OptionError(
            "options `domain` and `claimConfig` cannot be combined: claims belong to the domain of the server that the "
            "sink connects to. Set `servers` to a server of that domain instead"
        )
    return parsed


def adapt_to_stream(options: WriteOptions) -> WriteOptions:
    """Adapt the options to the stream, and create the streams that the sink needs beside it."""
    stream_info = fetch_stream_info(options.address, options.api_prefix, options.stream, options.reconnect_s)
    config = stream_info.config
    if options.atomic == "true" and not config.get("allow_atomic"):
        raise StreamError(
            f"stream {stream_info.name!r} does not accept atomic batches: set allow_atomic, or omit `atomic`"
        )
    options = replace(
        _with_claim_upload(options, stream_info),
        is_atomic=bool(config.get("allow_atomic")) and options.atomic != "false",
        is_volatile=_is_volatile(stream_info),
        refuses_full_subjects=bool(config.get("discard_new_per_subject")),
        duplicate_window_s=(config.get("duplicate_window") or 0) / o.NS,
        message_bytes_max=max(config.get("max_msg_size") or 0, 0),
        progress=_find_legacy_prefix(stream_info, options.progress),
        subjects=tuple(config.get("subjects") or ()),
        subject_transform=_get_subject_transform(config),
    )
    if options.mode == STAGED and options.staging_path and not is_commit_process():
        # The files of other queries are there, too, whose rows may be kept longer.
        expiry_s = max(options.staging_expiry_s, WriteOptions.staging_expiry_s)
        remove_expired_files(options.staging_path, options.stream, expiry_s)
    if options.mode:
        ensure_sink_streams(options.make_target("", None), stream_info, _make_expiries(options))
    return options


def _get_subject_transform(config: dict[str, Any]) -> tuple[str, str] | None:
    transform = config.get("subject_transform") or {}
    return (transform.get("src", ""), transform["dest"]) if transform.get("dest") else None


def _make_expiries(options: WriteOptions) -> tuple[float, float]:
    """Return how long progress and staged rows are kept; 0 s if rows are not staged on the server."""
    is_staged = options.mode == STAGED and not options.staging_path
    return options.progress_expiry_s, options.staging_expiry_s if is_staged else 0.0


def _is_volatile(stream_info: StreamInfo) -> bool:
    """Return whether messages may disappear soon after they are stored, so that a repeated commit cannot see them."""
    config = stream_info.config
    return stream_info.retention != "limits" or config.get("max_msgs_per_subject", -1) > 0


def _with_claim_upload(options: WriteOptions, stream_info: StreamInfo) -> WriteOptions:
    """Add and prepare the upload of large payloads; does nothing without a claim configuration."""
    if not options.claim_config:
        return options
    from headrace.claims.errors import ConfigError
    from headrace.reader.claim_fetch import load_claim_configs
    from headrace.spark.write.claim_upload import ClaimUploadConfig

    try:
        configs = load_claim_configs(options.claim_config)
    except ConfigError as error:
        raise o.OptionError(f"option `claimConfig`: {error}") from error
    if len(configs) != 1:
        raise o.OptionError(
            "option `claimConfig`: a sink writes claims of one namespace; give one configuration"
        )
    claim_upload = ClaimUploadConfig(
        options.address, configs[0], options.stream, bool(stream_info.config.get("allow_msg_ttl"))
    )
    claim_upload.prepare()
    return replace(options, claim_upload=claim_upload)


def _find_legacy_prefix(stream_info: StreamInfo, given: str) -> str:
    """Return where an earlier version stored its progress in the target; "" if it stored none there."""
    if not stream_info.config.get("allow_atomic") or stream_info.retention != "limits":
        return ""
    if given:
        return given
    subjects = stream_info.config.get("subjects") or []
    own_prefix = f"_progress.{stream_info.name}"
    if f"{own_prefix}.>" in subjects or "_progress.>" in subjects or ">" in subjects:
        return own_prefix
    for subject in subjects:
        if subject.endswith(".>") and "*" not in subject:
            return f"{subject[:-2]}._progress"
    return ""
