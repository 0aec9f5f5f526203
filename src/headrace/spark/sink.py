"""The sink: a DataFrame written to a stream, by batch and streaming queries.

Owns the writers and their options. Invariant: whatever Spark repeats - a task, an epoch, a whole query from its
checkpoint - adds nothing twice; see `publishing`. Server, stream and columns are checked on the driver.
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

from headrace.durations import duration_ns
from headrace.spark import options as o
from headrace.spark.link import Address
from headrace.spark.publishing import AtomicPublisher, IdPublisher
from headrace.spark.records import Target, check_division, commit
from headrace.spark.rows import Shape, lot, shape_of
from headrace.spark.streams import Facts, StreamError, call, expect, facts_of, persistently

if TYPE_CHECKING:
    from headrace.spark.depositing import Desk

_MODES = ("auto", "true", "false")
_BATCH_MAX = 1000


@dataclass(frozen=True)
class SinkOptions:
    """All options of the sink; `progress` is "" where messages carry ids instead."""

    address: Address
    stream: str
    subject: str = ""
    atomic: str = "auto"
    progress: str = ""
    write_id: str = ""
    batch_messages: int = _BATCH_MAX
    domain: str = ""
    reconnect_s: float = 30.0
    claim_config: str = field(default="", repr=False)
    desk: Desk | None = None

    @property
    def api(self) -> str:
        return f"$JS.{self.domain}.API" if self.domain else "$JS.API"


@dataclass
class Written(WriterCommitMessage):
    """What a task did, and as whom."""

    messages: int
    query: str
    owner: str


def _mode(text: str) -> str:
    if text.lower() not in _MODES:
        raise ValueError(f"{text!r} is none of {', '.join(_MODES)}")
    return text.lower()


def _name(text: str) -> str:
    if not re.fullmatch(r"[\w-]+", text):
        raise ValueError(f"{text!r} may have letters, digits, - and _ only")
    return text


def _size(text: str) -> int:
    if not 2 <= int(text) <= _BATCH_MAX:
        raise ValueError(f"{text!r} is not between 2 and {_BATCH_MAX}")
    return int(text)


_SINK: dict[str, tuple[str, Any]] = {
    "subject": ("subject", str),
    "atomic": ("atomic", _mode),
    "progress": ("progress", str),
    "writeid": ("write_id", _name),
    "batchsize": ("batch_messages", _size),
    "domain": ("domain", str),
    "claimconfig": ("claim_config", str),
    "reconnect": ("reconnect_s", lambda text: duration_ns(text) / o.NS),
}


def sink_options(raw: Mapping[str, str]) -> SinkOptions:
    """The options of a write."""
    options = o.lowered(raw)
    options.pop("checkpointlocation", None)
    o.check_known(options, _SINK, also=("stream",))
    made = SinkOptions(o.address_of(options), o.required(options, "stream"), **o.read(options, _SINK))
    if made.domain and made.claim_config:
        # Claims are registered where the connection leads, and who collects them would not see the stream's consumers.
        raise o.OptionError(
            "options `domain` and `claimConfig` do not go together: claims belong to the domain of the server that is "
            "written to. Give `servers` of that domain instead of `domain`"
        )
    return made


def checked(options: SinkOptions) -> SinkOptions:
    """Options that suit the stream as it is: whether batches are atomic, and where progress is recorded."""
    facts = facts_of(options.address, options.api, options.stream, options.reconnect_s)
    options = _with_desk(options, facts)
    obstacle = _obstacle(facts)
    if options.atomic == "true" and obstacle:
        raise StreamError(f"stream {facts.name!r} {obstacle}, or leave out `atomic`")
    if options.atomic == "false" or obstacle:
        return replace(options, progress="")
    progress = options.progress or _progress_subject(facts)
    wanted = {"subject": f"{progress}.q.0"}
    found = persistently(
        options.address, options.reconnect_s, lambda link: call(link, f"{options.api}.STREAM.NAMES", wanted)
    )
    if facts.name not in (found.get("streams") or []):
        raise StreamError(_no_progress(facts, f"{progress}.> is not among them"))
    return replace(options, progress=progress)


def _obstacle(facts: Facts) -> str:
    """Why batches with records cannot be written to a stream, and what to do; "" if they can."""
    if not facts.config.get("allow_atomic"):
        return "takes no atomic batches: set allow_atomic"
    if facts.retention != "limits":
        # Where interest decides what is kept, a record goes as soon as nobody waits for it.
        return f"has retention {facts.retention}, so it does not keep a record of what was written: use one with limits"
    return ""


def _with_desk(options: SinkOptions, facts: Facts) -> SinkOptions:
    """Where large payloads are put away, made ready; nothing without a configuration of claims."""
    if not options.claim_config:
        return options
    from headrace.claims.errors import ConfigError
    from headrace.spark.depositing import Desk
    from headrace.spark.payloads import configs_of

    try:
        configs = configs_of(options.claim_config)
    except ConfigError as error:
        raise o.OptionError(f"option `claimConfig`: {error}") from error
    if len(configs) != 1:
        raise o.OptionError(
            "option `claimConfig`: a sink writes claims of one namespace; give one configuration"
        )
    desk = Desk(options.address, configs[0], options.stream, bool(facts.config.get("allow_msg_ttl")))
    desk.prepare()
    return replace(options, desk=desk)


def _progress_subject(facts: Facts) -> str:
    """Where progress goes by default: to a subject of the stream that is there for it, else beside its messages."""
    subjects = facts.config.get("subjects") or []
    own = f"_progress.{facts.name}"
    if f"{own}.>" in subjects or "_progress.>" in subjects or ">" in subjects:
        return own
    for subject in subjects:
        if subject.endswith(".>") and "*" not in subject:
            return f"{subject[:-2]}._progress"
    raise StreamError(_no_progress(facts, "none of them takes progress messages"))


def _no_progress(facts: Facts, why: str) -> str:
    return (
        f"stream {facts.name!r} has subjects {', '.join(facts.config.get('subjects') or ['none'])}; {why}. "
        f"Add _progress.{facts.name}.> to them, or set atomic=false to rely on message ids"
    )


class StreamWriter(DataSourceArrowWriter):
    """A batch write."""

    def __init__(self, options: SinkOptions, schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise o.OptionError('a stream is only appended to: use .mode("append")')
        self.options = checked(options)
        self.shape = shape_of(schema, options.subject)
        self.name = options.write_id or uuid.uuid4().hex

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        return _write(self.options, self.shape, iterator, self.name, 0)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """What is repeated under a name must have been divided alike; who has no name is not repeated."""
        if self.options.progress and self.options.write_id:
            expect(self.options.address)
            target, partitions = _target(self.options, self.name, 0), len(messages)
            persistently(
                target.address, target.reconnect_s, lambda link: check_division(link, target, partitions)
            )


class StreamStreamWriter(DataSourceStreamArrowWriter):
    """A streaming write."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        self.options = checked(options)
        self.shape = shape_of(schema, options.subject)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        context = TaskContext.get()
        assert context is not None, "tasks have a context"
        query = context.getLocalProperty("sql.streaming.queryId") or ""
        epoch = int(context.getLocalProperty("streaming.sql.batchId") or 0)
        name, owner = (self.options.write_id, query) if self.options.write_id else (query, "")
        return _write(self.options, self.shape, iterator, name, epoch, owner)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """All rows are there: say so, for Spark may crash before it knows, and repeat the epoch divided otherwise."""
        done = next((each for each in messages if isinstance(each, Written)), None)
        if self.options.progress and done is not None:
            commit(_target(self.options, done.query, batchId, owner=done.owner), len(messages))

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Nothing is undone: the epoch is repeated, and goes on where its records end."""


def _write(
    options: SinkOptions,
    shape: Shape,
    batches: Iterator[pa.RecordBatch],
    query: str,
    epoch: int,
    owner: str = "",
) -> Written:
    context = TaskContext.get()
    assert context is not None, "tasks have a context"
    target = _target(options, query, epoch, context.partitionId(), owner)
    expect(options.address)
    publisher = AtomicPublisher(target) if options.progress else IdPublisher(target)
    published = publisher.publish_lots(lot(batch, shape) for batch in batches if batch.num_rows)
    return Written(published, query, owner)


def _target(options: SinkOptions, query: str, epoch: int, partition: int = 0, owner: str = "") -> Target:
    return Target(
        options.address,
        options.api,
        options.stream,
        options.progress,
        query,
        epoch,
        partition,
        options.batch_messages,
        options.reconnect_s,
        options.desk,
        owner,
    )
