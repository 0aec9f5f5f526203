"""What the commands of `headrace table` share: tables of the file, their options, and access to catalogs and streams."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from headrace.cli.connection_target import ConnectionTarget
from headrace.cli.exit_codes import FAILED, USAGE_ERROR, CliError
from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from pyiceberg.table import Table

    from headrace.tables.config import TableConfig
    from headrace.tables.stream_range import StreamRangeReader

#: Properties of REST catalogs without a dot in their name.
CATALOG_PROPERTIES = ("credential", "token", "scope", "prefix")


def load_selected(path: Path, names: list[str] | None) -> dict[str, TableConfig]:
    """Return the tables of the file, or those of these names."""
    from headrace.tables.config import find_table, load_tables

    tables = load_tables(path)
    if not tables and not names:
        missing = "has no tables" if path.exists() else "does not exist"
        raise CliError(f"{path} {missing}; add a table with 'headrace table add'", USAGE_ERROR)
    return {name: find_table(tables, name, path) for name in names} if names else tables


def parse_options(options: list[str]) -> dict[str, Any]:
    """Return the keys of a table; their values are written as in the file."""
    import yaml

    values: dict[str, Any] = {}
    properties: dict[str, str] = {}
    for each in options:
        key, separator, value = each.partition("=")
        if not separator:
            raise CliError(f"--option {each}: write KEY=VALUE", USAGE_ERROR)
        if "." in key or "-" in key or key in CATALOG_PROPERTIES:
            properties[key] = value
            continue
        try:
            values[key] = yaml.safe_load(value)
        except yaml.YAMLError:
            raise CliError(f"--option {each}: {value!r} is not YAML", USAGE_ERROR) from None
    return (
        values if not properties else {**values, "properties": {**values.get("properties", {}), **properties}}
    )


def make_config(name: str, values: dict[str, Any]) -> TableConfig:
    """Return the checked configuration of a new table."""
    import msgspec

    from headrace.tables.config import TableConfig, check_table

    try:
        return check_table(name, msgspec.convert(values, TableConfig), "table")
    except msgspec.ValidationError as error:
        raise CliError(str(error), USAGE_ERROR) from None


def to_connection(target: ConnectionTarget) -> dict[str, str]:
    """Return the options of the reader for a server."""
    if target.nkey or target.tls_first or target.api_prefix:
        raise CliError("tables support --user, --token, --creds and TLS certificates", USAGE_ERROR)
    given = {
        "servers": target.server,
        "user": target.user,
        "password": target.password,
        "token": target.token,
        "creds": target.creds,
        "tlsCa": target.tlsca,
        "tlsCert": target.tlscert,
        "tlsKey": target.tlskey,
        "domain": target.domain,
        "timeout": f"{target.timeout:g}s",
    }
    return {name: value for name, value in given.items() if value}


@contextmanager
def catalog_errors(config: TableConfig) -> Iterator[None]:
    """Turn errors of catalogs and object stores, which have many types, into errors with one line."""
    try:
        yield
    except (HeadraceError, CliError, typer.Exit):
        raise
    except Exception as error:
        from headrace.tables.redaction import describe_error, show_catalog

        text = f"catalog {show_catalog(config)}: {describe_error(error, config)}"
        raise CliError(text, FAILED) from error


@contextmanager
def open_reader(target: ConnectionTarget, name: str, config: TableConfig) -> Iterator[StreamRangeReader]:
    """Open the reader of a table's stream."""
    from headrace.tables.stream_range import StreamRangeReader

    reader = StreamRangeReader(config, to_connection(target), name)
    try:
        yield reader
    finally:
        reader.close()


@contextmanager
def open_table(
    target: ConnectionTarget, name: str, config: TableConfig
) -> Iterator[tuple[Table, StreamRangeReader]]:
    """Open a table and the reader of its stream."""
    from headrace.tables.catalog import load_table, open_catalog

    with catalog_errors(config):
        table = load_table(open_catalog(config), config)
        with open_reader(target, name, config) as reader:
            yield table, reader
