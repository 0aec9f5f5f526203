"""The sink: writes a DataFrame to a stream, in batch and streaming queries.

Owns the writers and their options. Invariant: whatever Spark repeats - a task, an epoch, a whole query from its
checkpoint - adds nothing twice; see `publisher`. Server, stream and columns are checked on the driver.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from headrace.durations import parse_duration_ns
from headrace.reader import options as o
from headrace.reader.blocking_connection import ServerAddress
from headrace.reader.stream_admin import (
    StreamError,
    StreamInfo,
    call_api,
    fetch_stream_info,
    mark_reachable,
    with_retry,
)
from headrace.spark.write.commit_log import WriteTarget, check_partitions, commit_epoch
from headrace.spark.write.encode_rows import RowLayout, encode_batch, make_row_layout
from headrace.spark.write.publisher import AtomicWriter, IdempotentWriter

if TYPE_CHECKING:
    from headrace.spark.write.claim_upload import ClaimUploadConfig

_ATOMIC_MODES = ("auto", "true", "false")
_BATCH_MAX = 1000


@dataclass(frozen=True)
class WriteOptions:
    """All options of the sink; `progress` is "" if messages carry ids instead."""

    address: ServerAddress
    stream: str
    subject: str = ""
    atomic: str = "auto"
    progress: str = ""
    write_id: str = ""
    batch_messages: int = _BATCH_MAX
    domain: str = ""
    reconnect_s: float = 30.0
    claim_config: str = field(default="", repr=False)
    claim_upload: ClaimUploadConfig | None = None

    @property
    def api_prefix(self) -> str:
        return f"$JS.{self.domain}.API" if self.domain else "$JS.API"


@dataclass
class TaskCommitMessage(WriterCommitMessage):
    """What a task did, and its identity."""

    messages: int
    query: str
    owner: str


def _parse_atomic_mode(text: str) -> str:
    if text.lower() not in _ATOMIC_MODES:
        raise ValueError(f"{text!r} is not one of {', '.join(_ATOMIC_MODES)}")
    return text.lower()


def _parse_name(text: str) -> str:
    if not re.fullmatch(r"[\w-]+", text):
        raise ValueError(f"{text!r} is not a valid name: use letters, digits, - and _")
    return text


def _parse_batch_size(text: str) -> int:
    if not 2 <= int(text) <= _BATCH_MAX:
        raise ValueError(f"{text!r} is not between 2 and {_BATCH_MAX}")
    return int(text)


_WRITE_OPTIONS: dict[str, tuple[str, Any]] = {
    "subject": ("subject", str),
    "atomic": ("atomic", _parse_atomic_mode),
    "progress": ("progress", str),
    "writeid": ("write_id", _parse_name),
    "batchsize": ("batch_messages", _parse_batch_size),
    "domain": ("domain", str),
    "claimconfig": ("claim_config", str),
    "reconnect": ("reconnect_s", lambda text: parse_duration_ns(text) / o.NS),
}


def parse_write_options(raw: Mapping[str, str]) -> WriteOptions:
    """Parse the options of a write."""
    options = o.normalize_names(raw)
    options.pop("checkpointlocation", None)
    o.check_known(options, _WRITE_OPTIONS, also=("stream",))
    parsed = WriteOptions(
        o.parse_address(options),
        o.get_required(options, "stream"),
        **o.parse_options(options, _WRITE_OPTIONS),
    )
    if parsed.domain and parsed.claim_config:
        # Claims are registered on the server we connect to; its collectors would not see the consumers of a stream
        # elsewhere.
        raise o.OptionError(
            "options `domain` and `claimConfig` cannot be combined: claims belong to the domain of the server that the "
            "sink connects to. Set `servers` to a server of that domain instead"
        )
    return parsed


def adapt_to_stream(options: WriteOptions) -> WriteOptions:
    """Adapt the options to the stream: whether batches are atomic, and where progress is recorded."""
    stream_info = fetch_stream_info(options.address, options.api_prefix, options.stream, options.reconnect_s)
    options = _with_claim_upload(options, stream_info)
    blocker = _find_atomic_blocker(stream_info)
    if options.atomic == "true" and blocker:
        raise StreamError(f"stream {stream_info.name!r} {blocker}, or omit `atomic`")
    if options.atomic == "false" or blocker:
        return replace(options, progress="")
    progress = options.progress or _find_progress_prefix(stream_info)
    request = {"subject": f"{progress}.q.0"}
    found = with_retry(
        options.address,
        options.reconnect_s,
        lambda connection: call_api(connection, f"{options.api_prefix}.STREAM.NAMES", request),
    )
    if stream_info.name not in (found.get("streams") or []):
        raise StreamError(_make_no_progress_text(stream_info, f"{progress}.> is not among them"))
    return replace(options, progress=progress)


def _find_atomic_blocker(stream_info: StreamInfo) -> str:
    """Return why batches with records cannot be written to a stream, and what to do; "" if they can."""
    if not stream_info.config.get("allow_atomic"):
        return "does not accept atomic batches: set allow_atomic"
    if stream_info.retention != "limits":
        # With interest retention a record is removed as soon as no consumer needs it.
        return (
            f"has retention {stream_info.retention}, so it does not keep records of what was written: use limits "
            "retention"
        )
    return ""


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


def _find_progress_prefix(stream_info: StreamInfo) -> str:
    """Return the default subject prefix for progress: a subject of the stream meant for it, otherwise beside its
    messages.
    """
    subjects = stream_info.config.get("subjects") or []
    own_prefix = f"_progress.{stream_info.name}"
    if f"{own_prefix}.>" in subjects or "_progress.>" in subjects or ">" in subjects:
        return own_prefix
    for subject in subjects:
        if subject.endswith(".>") and "*" not in subject:
            return f"{subject[:-2]}._progress"
    raise StreamError(_make_no_progress_text(stream_info, "none of them is for progress messages"))


def _make_no_progress_text(stream_info: StreamInfo, reason: str) -> str:
    return (
        f"stream {stream_info.name!r} has subjects {', '.join(stream_info.config.get('subjects') or ['none'])}; {reason}. "
        f"Add _progress.{stream_info.name}.> to them, or set atomic=false to rely on message ids"
    )


class JetStreamBatchWriter(DataSourceArrowWriter):
    """A batch write."""

    def __init__(self, options: WriteOptions, schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise o.OptionError('a stream cannot be overwritten: use .mode("append")')
        self.options = adapt_to_stream(options)
        self.layout = make_row_layout(schema, options.subject)
        self.name = options.write_id or uuid.uuid4().hex

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskCommitMessage:
        return _write_partition(self.options, self.layout, iterator, self.name, 0)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Check that a named write, if repeated, had the same partitions; a write without a name is not repeated."""
        if self.options.progress and self.options.write_id:
            mark_reachable(self.options.address)
            target, partitions = _make_target(self.options, self.name, 0), len(messages)
            with_retry(
                target.address,
                target.reconnect_s,
                lambda connection: check_partitions(connection, target, partitions),
            )


class JetStreamMicroBatchWriter(DataSourceStreamArrowWriter):
    """A streaming write."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        self.options = adapt_to_stream(options)
        self.layout = make_row_layout(schema, options.subject)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskCommitMessage:
        context = TaskContext.get()
        assert context is not None, "tasks have a context"
        query = context.getLocalProperty("sql.streaming.queryId") or ""
        epoch = int(context.getLocalProperty("streaming.sql.batchId") or 0)
        name, owner = (self.options.write_id, query) if self.options.write_id else (query, "")
        return _write_partition(self.options, self.layout, iterator, name, epoch, owner)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Record that all rows are stored: Spark may crash before it knows, and repeat the epoch with other partitions."""
        done = next((each for each in messages if isinstance(each, TaskCommitMessage)), None)
        if self.options.progress and done is not None:
            commit_epoch(_make_target(self.options, done.query, batchId, owner=done.owner), len(messages))

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Undo nothing: the epoch is repeated, and continues after its records."""


def _write_partition(
    options: WriteOptions,
    layout: RowLayout,
    batches: Iterator[pa.RecordBatch],
    query: str,
    epoch: int,
    owner: str = "",
) -> TaskCommitMessage:
    context = TaskContext.get()
    assert context is not None, "tasks have a context"
    target = _make_target(options, query, epoch, context.partitionId(), owner)
    mark_reachable(options.address)
    publisher = AtomicWriter(target) if options.progress else IdempotentWriter(target)
    published = publisher.publish_columns(encode_batch(batch, layout) for batch in batches if batch.num_rows)
    return TaskCommitMessage(published, query, owner)


def _make_target(
    options: WriteOptions, query: str, epoch: int, partition: int = 0, owner: str = ""
) -> WriteTarget:
    return WriteTarget(
        options.address,
        options.api_prefix,
        options.stream,
        options.progress,
        query,
        epoch,
        partition,
        options.batch_messages,
        options.reconnect_s,
        options.claim_upload,
        owner,
    )
