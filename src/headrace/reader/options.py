"""Parses and checks the options that a user passes to `.option(...)`.

Owns option names, defaults and error messages. Invariant: a `ReadOptions` object is consistent in itself; whether
servers and streams exist is checked later, also on the driver. Must not know Spark's readers.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.durations import parse_duration_ns, parse_size
from headrace.errors import HeadraceError
from headrace.reader import option_values as v
from headrace.reader.blocking_connection import ServerAddress, parse_servers
from headrace.reader.option_aliases import is_per_stream, parse_per_stream, replace_aliases

if TYPE_CHECKING:
    from headrace.claims.config import ClaimConfig

NS = v.NS
DEFAULT_SERVER = "nats://127.0.0.1:4222"


class OptionError(HeadraceError, ValueError):
    """An option is missing, unknown or invalid."""


@dataclass(frozen=True)
class Bound:
    """A position in a stream: a keyword (`earliest`, `latest`), a sequence, or a time."""

    keyword: str = ""
    seq: int = 0
    time_ns: int = 0


EARLIEST, LATEST, LAST_PER_SUBJECT = Bound("earliest"), Bound("latest"), Bound("last-per-subject")
_KEYWORDS = {bound.keyword: bound for bound in (EARLIEST, LATEST, LAST_PER_SUBJECT)}
_TIME_AGO = re.compile(r"-\s*(.+)")


def parse_bound(text: str) -> Bound:
    """Parse `earliest`, `latest`, `last-per-subject`, a sequence, a time with its zone, or `-10m` (before now)."""
    text = text.strip()
    if text.lower() in _KEYWORDS:
        return _KEYWORDS[text.lower()]
    if text.isdigit():
        return Bound(seq=int(text))
    if found := _TIME_AGO.fullmatch(text):
        return Bound(time_ns=time.time_ns() - parse_duration_ns(found[1]))
    parsed_time = datetime.fromisoformat(text)
    if parsed_time.tzinfo is None:
        raise ValueError(f"{text!r} has no time zone; write for example {text}Z")
    return Bound(time_ns=round(parsed_time.timestamp() * 1_000_000) * 1000)


@dataclass(frozen=True)
class ReadOptions:
    """All options of the source `headrace`."""

    address: ServerAddress
    #: The stream; "" if several are read (`streams`, or those that match `stream_pattern`).
    stream: str
    servers_given: bool = False
    streams: tuple[str, ...] = ()
    stream_pattern: str = ""
    columns: str = "headrace"
    value_format: str = ""
    parse_mode: str = "PERMISSIVE"
    subject: str = ""
    starting: Bound | None = None
    ending: Bound = LATEST
    starting_by_stream: tuple[tuple[str, Bound], ...] = ()
    ending_by_stream: tuple[tuple[str, Bound], ...] = ()
    messages_max: int = 0
    bytes_max: int = 0
    rows_min: int = 0
    delay_ns: int = 0
    partitions_min: int = 0
    partition_messages_max: int = 0
    fail_on_data_loss: bool = True
    claims: str = "ref"
    claim_config: str = field(default="", repr=False)
    claim_configs: tuple[ClaimConfig, ...] = field(default=(), compare=False)
    claim_errors: str = "fail"
    claim_parallel: int = 8
    claim_bytes_max: int = 256 << 20
    claim_reader: str = ""
    path: str = ""
    pushdown: bool = False
    consumer: str = ""
    wait_ns: int = 200_000_000
    reconnect_s: float = 30.0
    lease_s: float = 3600.0
    batch_rows: int = 10_000
    domain: str = ""
    raw: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)

    @property
    def reads_several(self) -> bool:
        """Whether the query reads several streams, or may do so later."""
        return not self.stream

    def for_stream(self, stream: str) -> ReadOptions:
        """Return the options to read one of the streams."""
        starting = dict(self.starting_by_stream).get(stream, self.starting)
        ending = dict(self.ending_by_stream).get(stream, self.ending)
        return replace(self, stream=stream, starting=starting, ending=ending)

    @property
    def is_http_path(self) -> bool:
        """Whether `path` is the address of a broker's HTTP port, not a folder."""
        return self.path.startswith(("http://", "https://"))

    @property
    def api_prefix(self) -> str:
        """The first tokens of API subjects."""
        return f"$JS.{self.domain}.API" if self.domain else "$JS.API"


_CONNECTION_OPTIONS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "user": ("user", v.parse_text),
    "password": ("password", v.parse_text),
    "token": ("token", v.parse_text),
    "creds": ("creds", v.parse_credentials),
    "tlsca": ("tls_ca", v.parse_file),
    "tlscert": ("tls_cert", v.parse_file),
    "tlskey": ("tls_key", v.parse_file),
    "timeout": ("timeout_s", v.parse_seconds),
}
_READ_OPTIONS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "subject": ("subject", v.parse_text),
    "streampattern": ("stream_pattern", v.parse_pattern),
    "columns": ("columns", v.parse_word("headrace", "kafka")),
    "valueformat": ("value_format", v.parse_word("json")),
    "mode": ("parse_mode", v.parse_word("PERMISSIVE", "FAILFAST")),
    "starting": ("starting", parse_bound),
    "ending": ("ending", parse_bound),
    "maxmessagespertrigger": ("messages_max", v.parse_positive_int),
    "maxbytespertrigger": ("bytes_max", v.parse_limit_bytes),
    "minmessagespertrigger": ("rows_min", v.parse_positive_int),
    "maxtriggerdelay": ("delay_ns", parse_duration_ns),
    "minpartitions": ("partitions_min", v.parse_positive_int),
    "maxmessagesperpartition": ("partition_messages_max", v.parse_positive_int),
    "failondataloss": ("fail_on_data_loss", v.parse_bool),
    "claims": ("claims", v.parse_claims_mode),
    "claimconfig": ("claim_config", v.parse_text),
    "claimerrors": ("claim_errors", v.parse_claim_errors),
    "claimparallel": ("claim_parallel", v.parse_positive_int),
    "maxclaimbytes": ("claim_bytes_max", parse_size),
    "claimreader": ("claim_reader", v.parse_reader_name),
    "path": ("path", v.parse_text),
    "pushdown": ("pushdown", v.parse_bool),
    "consumer": ("consumer", v.parse_text),
    "wait": ("wait_ns", parse_duration_ns),
    "reconnect": ("reconnect_s", v.parse_seconds),
    "lease": ("lease_s", v.parse_lease_s),
    "batchrows": ("batch_rows", v.parse_positive_int),
    "domain": ("domain", v.parse_text),
}
#: How options are spelled in documentation and messages; Spark itself ignores case.
_DOCUMENTED_NAMES = {
    name.lower(): name
    for name in (
        "tlsCa",
        "tlsCert",
        "tlsKey",
        "streamPattern",
        "valueFormat",
        "maxMessagesPerTrigger",
        "maxBytesPerTrigger",
        "minMessagesPerTrigger",
        "maxTriggerDelay",
        "minPartitions",
        "maxMessagesPerPartition",
        "failOnDataLoss",
        "claimConfig",
        "claimErrors",
        "claimParallel",
        "maxClaimBytes",
        "claimReader",
        "batchRows",
        "writeId",
        "batchSize",
        "exactlyOnce",
        "atLeastOnce",
        "stagingPath",
        "stagingExpiry",
        "progressExpiry",
        "deadLetter",
    )
}


def normalize_names(options: Mapping[str, str]) -> dict[str, str]:
    """Return options by lower-case name; Spark's dictionary is case-insensitive already, a plain one may not be."""
    return {str(name).lower(): str(value) for name, value in options.items()}


def parse_address(options: Mapping[str, str]) -> ServerAddress:
    """Parse servers and credentials."""
    servers = tuple(parse_servers(options.get("servers", DEFAULT_SERVER)))
    if not servers:
        raise OptionError("option `servers` is empty: set it, for example to nats://127.0.0.1:4222")
    return ServerAddress(servers=servers, **parse_options(options, _CONNECTION_OPTIONS))


def parse_options(
    options: Mapping[str, str], table: Mapping[str, tuple[str, Callable[[str], Any]]]
) -> dict[str, Any]:
    """Return the values of the options in a table that are given."""
    values = {}
    for name, (attribute, convert) in table.items():
        if name in options:
            try:
                values[attribute] = convert(options[name])
            except ValueError as error:
                raise OptionError(f"option `{_DOCUMENTED_NAMES.get(name, name)}`: {error}") from error
    return values


def check_known(options: Mapping[str, str], *tables: Mapping[str, Any], also: tuple[str, ...] = ()) -> None:
    """Reject unknown options: a mistyped one would otherwise silently keep its default."""
    known = {"servers", *also}.union(_CONNECTION_OPTIONS, *tables)
    unknown = sorted(set(options) - known)
    if unknown:
        names = ", ".join(sorted(_DOCUMENTED_NAMES.get(name, name) for name in known))
        raise OptionError(f"unknown option `{unknown[0]}`; available options: {names}")


def get_required(options: Mapping[str, str], name: str) -> str:
    """Return an option that must be present."""
    value = options.get(name, "").strip()
    if not value:
        raise OptionError(
            f"option `{name}` is missing: set it with .option({name!r}, ...). "
            "In SQL use CREATE TEMPORARY VIEW; CREATE TABLE loses the options"
        )
    return value


def parse_read_options(raw: Mapping[str, str]) -> ReadOptions:
    """Parse the options of a batch or streaming read."""
    try:
        options = replace_aliases(normalize_names(raw))
    except ValueError as error:
        raise OptionError(str(error)) from error
    check_known(options, _READ_OPTIONS, also=("stream",))
    streams = _parse_streams(options)
    per_stream = _take_bounds_per_stream(options)
    parsed = ReadOptions(
        parse_address(options),
        streams[0] if len(streams) == 1 else "",
        "servers" in options,
        streams,
        **parse_options(options, _READ_OPTIONS),
        **per_stream,
        raw=dict(options),
    )
    if len(streams) == 1:
        parsed = parsed.for_stream(streams[0])
    _check_combinations(parsed)
    return _load_claim_config(parsed)


def _parse_streams(options: Mapping[str, str]) -> tuple[str, ...]:
    """Return the streams, which are separated by commas; none if a pattern selects them."""
    if "streampattern" in options:
        if "stream" in options:
            raise OptionError("options `stream` and `streamPattern` cannot be combined: set only one of them")
        return ()
    names = dict.fromkeys(name.strip() for name in get_required(options, "stream").split(","))
    for name in names:
        if not name or re.search(r"[\s.*>/\\]", name):
            raise OptionError(f"option `stream`: {name!r} is not a valid stream name")
    return tuple(names)


def _take_bounds_per_stream(options: dict[str, str]) -> dict[str, Any]:
    """Remove `starting` and `ending` from the options if they are given per stream, and return them."""
    found: dict[str, Any] = {}
    for name in ("starting", "ending"):
        if is_per_stream(options.get(name, "")):
            try:
                positions = parse_per_stream(options.pop(name))
                found[f"{name}_by_stream"] = tuple(
                    (stream, parse_bound(text)) for stream, text in positions.items()
                )
            except ValueError as error:
                raise OptionError(f"option `{name}`: {error}") from error
    return found


def require_one_stream(options: ReadOptions, user: str) -> ReadOptions:
    """Return the options; raise OptionError if they select several streams."""
    if options.reads_several:
        raise OptionError(f"{user} reads one stream: set option `stream` to its name")
    return options


def _load_claim_config(options: ReadOptions) -> ReadOptions:
    """Load the claim configuration into the options, which go to the tasks: the file may be on the driver only."""
    if options.claims != "inline":
        return options
    if not options.claim_config:
        raise OptionError(
            "option `claimConfig` is missing: claims=inline needs the YAML file with the claim configuration"
        )
    try:
        from headrace.claims.errors import ConfigError
        from headrace.reader.claim_fetch import load_claim_configs
    except ModuleNotFoundError as error:
        raise OptionError(
            f"claims=inline needs additional packages: pip install 'headrace[claims]' ({error})"
        ) from error
    try:
        return replace(options, claim_configs=load_claim_configs(options.claim_config))
    except ConfigError as error:
        raise OptionError(f"option `claimConfig`: {error}") from error


def _check_combinations(options: ReadOptions) -> None:
    if options.is_http_path and not options.servers_given:
        raise OptionError(
            "option `path` is a URL: set option `servers` too, because the broker has to create a snapshot"
        )
    if options.path and not options.is_http_path and not Path(options.path).is_dir():
        raise OptionError(f"option `path`: {options.path!r} is not a folder on this machine")
    if bool(options.rows_min) != bool(options.delay_ns):
        raise OptionError("options `minMessagesPerTrigger` and `maxTriggerDelay` must be set together")
    for ending in (options.ending, *dict(options.ending_by_stream).values()):
        if ending in (EARLIEST, LAST_PER_SUBJECT):
            raise OptionError(
                f"option `ending`: {ending.keyword} is not an end; use latest, a sequence or a time"
            )
    for name, _ in (*options.starting_by_stream, *options.ending_by_stream):
        if options.streams and name not in options.streams:
            raise OptionError(f"a position is given for stream {name!r}, which the query does not read")
    if options.rows_min and options.messages_max and options.rows_min > options.messages_max:
        raise OptionError("option `minMessagesPerTrigger` is larger than `maxMessagesPerTrigger`")
