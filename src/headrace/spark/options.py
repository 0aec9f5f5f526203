"""What a user says in `.option(...)`, checked once and turned into values.

Owns names, defaults and the words of the refusals. Invariant: an `Options` that exists is consistent in itself; whether
servers and streams exist is found out later, on the driver too. Must not know Spark's readers.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.durations import duration_ns, size_bytes
from headrace.errors import HeadraceError
from headrace.spark.link import Address, servers_of

if TYPE_CHECKING:
    from headrace.claims.config import ClaimConfig

NS = 1_000_000_000
LOCAL = "nats://127.0.0.1:4222"


class OptionError(HeadraceError, ValueError):
    """An option that is missing, unknown or makes no sense."""


@dataclass(frozen=True)
class Bound:
    """A place in a stream: a word (`earliest`, `latest`), a sequence, or a time."""

    word: str = ""
    seq: int = 0
    time_ns: int = 0


EARLIEST, LATEST, NEWEST = Bound("earliest"), Bound("latest"), Bound("last-per-subject")
_WORDS = {bound.word: bound for bound in (EARLIEST, LATEST, NEWEST)}
_DURATION = re.compile(r"-\s*(.+)")


def bound_of(text: str) -> Bound:
    """`earliest`, `latest`, `last-per-subject`, a sequence, a time with its zone, or `-10m` (before now)."""
    text = text.strip()
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    if text.isdigit():
        return Bound(seq=int(text))
    if found := _DURATION.fullmatch(text):
        return Bound(time_ns=time.time_ns() - duration_ns(found[1]))
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError(f"{text!r} has no time zone; write for example {text}Z")
    return Bound(time_ns=round(moment.timestamp() * 1_000_000) * 1000)


@dataclass(frozen=True)
class Options:
    """All options of the source `headrace`."""

    address: Address
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
    given: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)

    @property
    def served(self) -> bool:
        """Whether `path` is the address of a broker's HTTP port and no folder."""
        return self.path.startswith(("http://", "https://"))

    @property
    def api(self) -> str:
        """The first tokens of API subjects."""
        return f"$JS.{self.domain}.API" if self.domain else "$JS.API"


def _flag(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError(f"{text!r} is neither true nor false")
    return text.lower() == "true"


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError(f"{text!r} is not a positive number")
    return number


def _claims(text: str) -> str:
    if text not in ("ref", "inline"):
        raise ValueError(
            f"{text!r} is neither ref (the reference comes in column `claim`) nor inline (the payload in `data`)"
        )
    return text


def _claim_errors(text: str) -> str:
    if text not in ("fail", "column"):
        raise ValueError(
            f"{text!r} is neither fail nor column (bad claims are told of in column `claim_error`)"
        )
    return text


def _reader_name(text: str) -> str:
    if not re.fullmatch(r"[\w-]+", text):
        raise ValueError(f"{text!r} may have letters, digits, - and _ only")
    return text


def _seconds(text: str) -> float:
    return duration_ns(text) / NS


def _lease_s(text: str) -> float:
    seconds = _seconds(text)
    if seconds < 1:
        raise ValueError(f"{text!r} is too short: a lease lasts a second at least")
    return seconds


def _limit_bytes(text: str) -> int:
    size = size_bytes(text)
    if not size:
        raise ValueError(f"{text!r} would let nothing pass; leave the option out for no limit")
    return size


def _text(text: str) -> str:
    return text


def _file(text: str) -> str:
    if not Path(text).exists():
        raise ValueError(f"there is no file {text!r} on this machine")
    return text


_CONNECTION: dict[str, tuple[str, Callable[[str], Any]]] = {
    "user": ("user", _text),
    "password": ("password", _text),
    "token": ("token", _text),
    "creds": ("creds", _file),
    "tlsca": ("tls_ca", _file),
    "tlscert": ("tls_cert", _file),
    "tlskey": ("tls_key", _file),
    "timeout": ("timeout_s", _seconds),
}
_SOURCE: dict[str, tuple[str, Callable[[str], Any]]] = {
    "subject": ("subject", _text),
    "starting": ("starting", bound_of),
    "ending": ("ending", bound_of),
    "maxmessagespertrigger": ("messages_max", _count),
    "maxbytespertrigger": ("bytes_max", _limit_bytes),
    "minmessagespertrigger": ("rows_min", _count),
    "maxtriggerdelay": ("delay_ns", duration_ns),
    "minpartitions": ("partitions_min", _count),
    "maxmessagesperpartition": ("partition_messages_max", _count),
    "failondataloss": ("fail_on_data_loss", _flag),
    "claims": ("claims", _claims),
    "claimconfig": ("claim_config", _text),
    "claimerrors": ("claim_errors", _claim_errors),
    "claimparallel": ("claim_parallel", _count),
    "maxclaimbytes": ("claim_bytes_max", size_bytes),
    "claimreader": ("claim_reader", _reader_name),
    "path": ("path", _text),
    "pushdown": ("pushdown", _flag),
    "consumer": ("consumer", _text),
    "wait": ("wait_ns", duration_ns),
    "reconnect": ("reconnect_s", _seconds),
    "lease": ("lease_s", _lease_s),
    "batchrows": ("batch_rows", _count),
    "domain": ("domain", _text),
}
#: How the options are written in documents and messages; Spark itself does not mind the case.
_SPELLING = {
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
    )
}


def lowered(options: Mapping[str, str]) -> dict[str, str]:
    """Options by lower-case name; Spark's dictionary is case-insensitive already, a plain one may not be."""
    return {str(name).lower(): str(value) for name, value in options.items()}


def address_of(options: Mapping[str, str]) -> Address:
    """Who connects, and where to."""
    servers = tuple(servers_of(options.get("servers", LOCAL)))
    if not servers:
        raise OptionError("option `servers` is empty: write for example nats://127.0.0.1:4222")
    return Address(servers=servers, **read(options, _CONNECTION))


def read(options: Mapping[str, str], table: Mapping[str, tuple[str, Callable[[str], Any]]]) -> dict[str, Any]:
    """The values of those options of a table that are given."""
    values = {}
    for name, (attribute, convert) in table.items():
        if name in options:
            try:
                values[attribute] = convert(options[name])
            except ValueError as error:
                raise OptionError(f"option `{_SPELLING.get(name, name)}`: {error}") from error
    return values


def check_known(options: Mapping[str, str], *tables: Mapping[str, Any], also: tuple[str, ...] = ()) -> None:
    """A mistyped option would otherwise be a silent default."""
    known = {"servers", *also}.union(_CONNECTION, *tables)
    unknown = sorted(set(options) - known)
    if unknown:
        names = ", ".join(sorted(_SPELLING.get(name, name) for name in known))
        raise OptionError(f"there is no option `{unknown[0]}`; there are {names}")


def required(options: Mapping[str, str], name: str) -> str:
    """An option that must be there."""
    value = options.get(name, "").strip()
    if not value:
        raise OptionError(
            f"option `{name}` is missing: .option({name!r}, ...). "
            "In SQL use CREATE TEMPORARY VIEW; CREATE TABLE loses the options"
        )
    return value


def source_options(raw: Mapping[str, str]) -> Options:
    """The options of a read, batch or streaming."""
    options = lowered(raw)
    check_known(options, _SOURCE, also=("stream",))
    stream = required(options, "stream")
    if re.search(r"[\s.*>/\\]", stream):
        raise OptionError(f"option `stream`: {stream!r} cannot be the name of a stream")
    made = Options(
        address_of(options), stream, "servers" in options, **read(options, _SOURCE), given=dict(options)
    )
    _check_together(made)
    return _with_claims(made)


def _with_claims(options: Options) -> Options:
    """The configuration of claims goes to the tasks with the options: the file may be on the driver only."""
    if options.claims != "inline":
        return options
    if not options.claim_config:
        raise OptionError(
            "option `claimConfig` is missing: with claims=inline it names the YAML file of the claims"
        )
    try:
        from headrace.claims.errors import ConfigError
        from headrace.spark.payloads import configs_of
    except ModuleNotFoundError as error:
        raise OptionError(f"claims=inline needs more: pip install 'headrace[claims]' ({error})") from error
    try:
        return replace(options, claim_configs=configs_of(options.claim_config))
    except ConfigError as error:
        raise OptionError(f"option `claimConfig`: {error}") from error


def _check_together(options: Options) -> None:
    if options.served and not options.servers_given:
        raise OptionError(
            "option `path` is an address: give option `servers` too, where the broker grants pins"
        )
    if options.path and not options.served and not Path(options.path).is_dir():
        raise OptionError(f"option `path`: {options.path!r} is not a folder on this machine")
    if bool(options.rows_min) != bool(options.delay_ns):
        raise OptionError("options `minMessagesPerTrigger` and `maxTriggerDelay` go together")
    if options.ending in (EARLIEST, NEWEST):
        raise OptionError(
            f"option `ending`: {options.ending.word} is no end; use latest, a sequence or a time"
        )
    if options.rows_min and options.messages_max and options.rows_min > options.messages_max:
        raise OptionError("option `minMessagesPerTrigger` is larger than `maxMessagesPerTrigger`")
