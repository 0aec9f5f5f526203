"""The configuration of tables: the file `tables.yaml`, its keys, defaults and errors.

Owns the file. Invariants: a `TableConfig` is valid in itself; a wrong value is rejected with its path in the file, and a
file is replaced as a whole. Whether streams, catalogs and tables exist is checked when they are used.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from headrace.durations import parse_duration_ns, parse_size
from headrace.errors import TableError
from headrace.tables.column_types import DAY, check_columns, parse_partition, parse_type

DEFAULT_FILE = "tables.yaml"
COMMIT_INTERVAL_S_MIN = 2.0
PORT_MAX = 65_535
COMMIT_BYTES_MIN, COMMIT_BYTES_MAX = 1 << 20, 4 << 30
_NAME = re.compile(r"[A-Za-z0-9_-]+")
_TABLE = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)+")
_STREAM = re.compile(r"[^\s.*>/\\]+")


#: Keys of `connection`, which are those of the command line, and the reader's names of them.
_CONNECTION_OPTIONS = {
    "server": "servers",
    "user": "user",
    "password": "password",
    "token": "token",
    "creds": "creds",
    "tlsca": "tlsCa",
    "tlscert": "tlsCert",
    "tlskey": "tlsKey",
    "domain": "domain",
}


class TableConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """One table: which stream is written where, and how often."""

    #: The stream; the name of the entry if it is empty.
    stream: str = ""
    #: A key-value bucket instead of a stream: the table then has its changes.
    bucket: str = ""
    #: Namespace and name in the catalog, such as `shop.orders`.
    table: str
    #: Where the catalog is: `sqlite:///FILE` or another URL of SQLAlchemy, or `http(s)://` of a REST catalog.
    catalog: str
    #: Where the files are: `s3://BUCKET/PREFIX` or a folder.
    warehouse: str = ""
    #: More properties of the catalog, such as `s3.endpoint`; they go to pyiceberg.
    properties: dict[str, str] = {}
    #: Folder of the broker's store, or the URL of its monitoring port, to read its files.
    path: str = ""
    commit_interval: str | int = "60s"
    commit_bytes: str | int = "256MiB"
    #: What happens if messages were removed before they were written: `stop`, or `continue` and record the gap.
    on_gap: str = "stop"
    #: `raw`, or `json` with the fields of `schema` as columns.
    payload: str = "raw"
    #: Columns of JSON payloads and their types, such as `total: decimal(10, 2)`.
    schema: dict[str, str] = {}
    #: Columns from tokens of the subject, which count from 1.
    subject_columns: dict[str, int] = {}
    #: Older snapshots expire, and all but the newest so many, unless `snapshot_expiry` is `never`.
    snapshot_expiry: str | int = "7d"
    snapshots_max: int = 100
    #: Whether files that nothing refers to are deleted after a day.
    remove_orphans: bool = True
    #: What happens with payloads in an object store: `reference` adds column `claim`, `inline` also fetches them.
    claims: str = ""
    #: Claim configuration (YAML file), and the largest payload that is fetched, for `inline`.
    claim_config: str = ""
    claim_bytes: str | int = "16MiB"
    #: Partitions of a new table: `day(time)`, a column of the subject, or `bucket(16, column)`.
    partition_by: tuple[str, ...] = (DAY,)

    @property
    def snapshot_expiry_s(self) -> float | None:
        """How long snapshots stay; None if they do not expire."""
        return None if self.snapshot_expiry == "never" else parse_duration_ns(self.snapshot_expiry) / 1e9

    @property
    def allows_gaps(self) -> bool:
        """Whether messages may be removed before they are written; a bucket replaces its messages all the time."""
        return self.on_gap == "continue" or bool(self.bucket)

    @property
    def claim_bytes_max(self) -> int:
        return parse_size(str(self.claim_bytes))

    @property
    def is_rest(self) -> bool:
        """Whether the catalog is a REST catalog."""
        return self.catalog.startswith(("http://", "https://"))

    @property
    def commit_interval_s(self) -> float:
        return parse_duration_ns(self.commit_interval) / 1e9

    @property
    def commit_bytes_max(self) -> int:
        return parse_size(str(self.commit_bytes))


class TablesFile(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """The file: all tables, by name, how their worker connects to the server, and where it serves metrics."""

    tables: dict[str, TableConfig] = {}
    connection: dict[str, str] = {}
    metrics_port: int = 0
    metrics_host: str = "127.0.0.1"


def load_tables(path: Path) -> dict[str, TableConfig]:
    """Read the tables of the file; none if it does not exist. Raise TableError if something in it is wrong."""
    tables = _load_file(path).tables
    return {name: check_table(name, each, f"{path}: tables.{name}") for name, each in tables.items()}


def load_connection(path: Path) -> dict[str, str]:
    """Read how the worker connects, as options of the reader. Raise TableError if something in it is wrong."""
    given = _load_file(path).connection
    unknown = [key for key in given if key not in _CONNECTION_OPTIONS]
    if unknown:
        known = ", ".join(_CONNECTION_OPTIONS)
        raise TableError(f"{path}: connection.{unknown[0]} is unknown; use {known}")
    return {_CONNECTION_OPTIONS[key]: value for key, value in given.items()}


def load_metrics_address(path: Path) -> tuple[str, int]:
    """Read where the worker serves metrics; port 0 for nowhere. Raise TableError if the port is wrong."""
    file = _load_file(path)
    if not 0 <= file.metrics_port <= PORT_MAX:
        raise TableError(f"{path}: metrics_port: {file.metrics_port} is not between 1 and {PORT_MAX}")
    return file.metrics_host, file.metrics_port


def _load_file(path: Path) -> TablesFile:
    import yaml

    try:
        return msgspec.convert(yaml.safe_load(path.read_text()) or {}, TablesFile)
    except FileNotFoundError:
        return TablesFile()
    except (OSError, yaml.YAMLError, msgspec.ValidationError, UnicodeDecodeError) as error:
        raise TableError(f"{path}: {error}") from error


def save_tables(path: Path, tables: Mapping[str, TableConfig]) -> None:
    """Replace the file; a new one can be read by its owner only. Comments in it are lost."""
    import yaml

    values = msgspec.to_builtins(msgspec.structs.replace(_load_file(path), tables=dict(tables)))
    new_path = path.with_name(f"{path.name}.new")
    # Properties may be credentials.
    mode = path.stat().st_mode & 0o777 if path.exists() else 0o600
    new_path.unlink(missing_ok=True)
    with os.fdopen(os.open(new_path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w") as file:
        yaml.safe_dump(values, file, sort_keys=False)
        file.flush()
        os.fsync(file.fileno())
    new_path.replace(path)


def find_table(tables: Mapping[str, TableConfig], name: str, path: Path) -> TableConfig:
    """Return the table of a name; raise TableError if there is none."""
    if name not in tables:
        known = ", ".join(tables) or "none"
        raise TableError(
            f"{path} has no table {name!r}; its tables: {known}. Add one with 'headrace table add'"
        )
    return tables[name]


def check_table(name: str, config: TableConfig, where: str) -> TableConfig:
    """Return the configuration with all defaults; raise TableError if a value is wrong."""
    if not _NAME.fullmatch(name):
        raise TableError(f"{where}: {name!r} is not a name: use letters, digits, - and _")
    stream = f"KV_{config.bucket}" if config.bucket else name
    config = msgspec.structs.replace(config, stream=config.stream or stream)
    checks: list[tuple[str, Any, bool, str]] = [
        ("stream", config.stream, bool(_STREAM.fullmatch(config.stream)), "a stream name"),
        (
            "table",
            config.table,
            bool(_TABLE.fullmatch(config.table)),
            "a namespace and a name, such as shop.orders",
        ),
        ("catalog", config.catalog, "://" in config.catalog, "a URL, such as sqlite:///lake/catalog.db"),
        ("on_gap", config.on_gap, config.on_gap in ("stop", "continue"), "stop or continue"),
        ("payload", config.payload, config.payload in ("raw", "json"), "raw or json"),
        ("claims", config.claims, config.claims in ("", "reference", "inline"), "reference or inline"),
    ]
    for key, value, is_valid, expected in checks:
        if not is_valid:
            raise TableError(f"{where}.{key}: {value!r} is not {expected}")
    _check_limits(config, where)
    _check_columns(config, where)
    _check_source(config, where)
    return config


def _check_source(config: TableConfig, where: str) -> None:
    if config.bucket and config.stream != f"KV_{config.bucket}":
        raise TableError(f"{where}: bucket and stream cannot be combined: set only one of them")
    if config.bucket and config.claims:
        raise TableError(f"{where}: values of buckets have no claims: remove claims")
    if (config.claims == "inline") != bool(config.claim_config):
        raise TableError(
            f"{where}: claims: inline and claim_config belong together: name the file with the claim configuration"
        )


def _check_columns(config: TableConfig, where: str) -> None:
    if (config.payload == "json") != bool(config.schema):
        raise TableError(f"{where}: payload: json and schema belong together: declare the fields in schema")
    check_columns((*config.subject_columns, *config.schema), f"{where}.schema")
    for name, text in config.schema.items():
        parse_type(text, f"{where}.schema.{name}")
    for name, position in config.subject_columns.items():
        if position < 1:
            raise TableError(f"{where}.subject_columns.{name}: {position} is not a token: the first one is 1")
    for text in config.partition_by:
        column, _ = parse_partition(text, f"{where}.partition_by")
        if column not in ("time", *config.subject_columns):
            raise TableError(f"{where}.partition_by: {column!r} is not in subject_columns")


def _check_limits(config: TableConfig, where: str) -> None:
    try:
        interval_s, commit_bytes = config.commit_interval_s, config.commit_bytes_max
        _ = config.claim_bytes_max, config.snapshot_expiry_s
    except ValueError as error:
        raise TableError(f"{where}: {error}") from error
    if interval_s < COMMIT_INTERVAL_S_MIN:
        raise TableError(f"{where}.commit_interval: {config.commit_interval} is below 2s")
    if not COMMIT_BYTES_MIN <= commit_bytes <= COMMIT_BYTES_MAX:
        raise TableError(f"{where}.commit_bytes: {config.commit_bytes} is not between 1MiB and 4GiB")
    if config.snapshots_max < 1:
        raise TableError(f"{where}.snapshots_max: {config.snapshots_max} is below 1")
    if not config.warehouse and not config.is_rest:
        raise TableError(f"{where}.warehouse is missing: a folder, or s3://BUCKET/PREFIX")
