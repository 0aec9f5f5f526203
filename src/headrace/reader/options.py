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
from headrace.reader.blocking_connection import ServerAddress, parse_servers

if TYPE_CHECKING:
    from headrace.claims.config import ClaimConfig

NS = 1_000_000_000
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
    stream: str
    servers_given: bool = False
    subject: str = ""
    starting: Bound | None = None
    ending: Bound = LATEST
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
    def is_http_path(self) -> bool:
        """Whether `path` is the address of a broker's HTTP port, not a folder."""
        return self.path.startswith(("http://", "https://"))

    @property
    def api_prefix(self) -> str:
        """The first tokens of API subjects."""
        return f"$JS.{self.domain}.API" if self.domain else "$JS.API"


def _parse_bool(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError(f"{text!r} is neither true nor false")
    return text.lower() == "true"


def _parse_positive_int(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError(f"{text!r} is not a positive number")
    return number


def _parse_claims_mode(text: str) -> str:
    if text not in ("ref", "inline"):
        raise ValueError(
            f"{text!r} is neither ref (the reference in column `claim`) nor inline (the payload in column `data`)"
        )
    return text


def _parse_claim_errors(text: str) -> str:
    if text not in ("fail", "column"):
        raise ValueError(f"{text!r} is neither fail nor column (errors are in column `claim_error`)")
    return text


def _parse_reader_name(text: str) -> str:
    if not re.fullmatch(r"[\w-]+", text):
        raise ValueError(f"{text!r} is not a valid name: use letters, digits, - and _")
    return text


def _parse_seconds(text: str) -> float:
    return parse_duration_ns(text) / NS


def _parse_lease_s(text: str) -> float:
    seconds = _parse_seconds(text)
    if seconds < 1:
        raise ValueError(f"{text!r} is too short: a lease lasts at least one second")
    return seconds


def _parse_limit_bytes(text: str) -> int:
    size = parse_size(text)
    if not size:
        raise ValueError(f"{text!r} is not a valid limit; omit the option for no limit")
    return size


def _parse_text(text: str) -> str:
    return text


def _parse_file(text: str) -> str:
    if not Path(text).exists():
        raise ValueError(f"there is no file {text!r} on this machine")
    return text


_CONNECTION_OPTIONS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "user": ("user", _parse_text),
    "password": ("password", _parse_text),
    "token": ("token", _parse_text),
    "creds": ("creds", _parse_file),
    "tlsca": ("tls_ca", _parse_file),
    "tlscert": ("tls_cert", _parse_file),
    "tlskey": ("tls_key", _parse_file),
    "timeout": ("timeout_s", _parse_seconds),
}
_READ_OPTIONS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "subject": ("subject", _parse_text),
    "starting": ("starting", parse_bound),
    "ending": ("ending", parse_bound),
    "maxmessagespertrigger": ("messages_max", _parse_positive_int),
    "maxbytespertrigger": ("bytes_max", _parse_limit_bytes),
    "minmessagespertrigger": ("rows_min", _parse_positive_int),
    "maxtriggerdelay": ("delay_ns", parse_duration_ns),
    "minpartitions": ("partitions_min", _parse_positive_int),
    "maxmessagesperpartition": ("partition_messages_max", _parse_positive_int),
    "failondataloss": ("fail_on_data_loss", _parse_bool),
    "claims": ("claims", _parse_claims_mode),
    "claimconfig": ("claim_config", _parse_text),
    "claimerrors": ("claim_errors", _parse_claim_errors),
    "claimparallel": ("claim_parallel", _parse_positive_int),
    "maxclaimbytes": ("claim_bytes_max", parse_size),
    "claimreader": ("claim_reader", _parse_reader_name),
    "path": ("path", _parse_text),
    "pushdown": ("pushdown", _parse_bool),
    "consumer": ("consumer", _parse_text),
    "wait": ("wait_ns", parse_duration_ns),
    "reconnect": ("reconnect_s", _parse_seconds),
    "lease": ("lease_s", _parse_lease_s),
    "batchrows": ("batch_rows", _parse_positive_int),
    "domain": ("domain", _parse_text),
}
#: How options are spelled in documentation and messages; Spark itself ignores case.
_DOCUMENTED_NAMES = {
    name.lower(): name
    for name in (
        "tlsCa",
        "tlsCert",
        "tlsKey",
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
    options = normalize_names(raw)
    check_known(options, _READ_OPTIONS, also=("stream",))
    stream = get_required(options, "stream")
    if re.search(r"[\s.*>/\\]", stream):
        raise OptionError(f"option `stream`: {stream!r} is not a valid stream name")
    parsed = ReadOptions(
        parse_address(options),
        stream,
        "servers" in options,
        **parse_options(options, _READ_OPTIONS),
        raw=dict(options),
    )
    _check_combinations(parsed)
    return _load_claim_config(parsed)


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
    if options.ending in (EARLIEST, LAST_PER_SUBJECT):
        raise OptionError(
            f"option `ending`: {options.ending.keyword} is not an end; use latest, a sequence or a time"
        )
    if options.rows_min and options.messages_max and options.rows_min > options.messages_max:
        raise OptionError("option `minMessagesPerTrigger` is larger than `maxMessagesPerTrigger`")
