"""Opens catalogs, and creates and loads tables in them.

Owns which properties and which location a new table gets. Invariants: pyiceberg never retries a commit of a table by
itself; no two tables have the same folder, even if their catalogs do not know of each other.
"""

from __future__ import annotations

import logging
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.errors import TableError
from headrace.extras import require_extra
from headrace.reader.landed_table import COLUMNS, DeclaredColumns
from headrace.tables.column_types import CLAIM_COLUMN, ERROR_COLUMN, RAW_COLUMNS
from headrace.tables.config import TableConfig
from headrace.tables.position import CREATED_MS
from headrace.tables.redaction import show_catalog

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table
    from pyiceberg.types import NestedField

_log = logging.getLogger("headrace.tables")
#: Properties of a new table.
_TABLE_PROPERTIES = {
    "commit.retry.num-retries": "0",
    "write.parquet.compression-codec": "zstd",
    "write.parquet.compression-level": "1",
    "write.metadata.delete-after-commit.enabled": "false",
    "commit.manifest-merge.enabled": "true",
}
#: Name of the catalogs: their properties can also come from variables such as PYICEBERG_CATALOG__HEADRACE__CREDENTIAL.
CATALOG_NAME = "headrace"
_SQLITE = "sqlite:///"
#: How often a change of the schema is tried while others change the table.
_EVOLUTIONS_MAX = 5


def open_catalog(config: TableConfig) -> Catalog:
    """Open the catalog of a table; a SQL catalog is created if it does not exist."""
    require_extra("tables", "pyiceberg", "pyarrow", "yaml")
    from pyiceberg.catalog import load_catalog

    properties = {"uri": config.catalog, **_make_file_properties(config), **config.properties}
    if config.is_rest:
        return _open_rest_catalog(properties)
    require_extra("tables", "sqlalchemy")
    if config.catalog.startswith(_SQLITE):
        Path(config.catalog.removeprefix(_SQLITE)).absolute().parent.mkdir(parents=True, exist_ok=True)
    return load_catalog(CATALOG_NAME, type="sql", **properties)


def _open_rest_catalog(properties: dict[str, str]) -> Catalog:
    """Open a REST catalog; as in `load_catalog`, properties can also come from the environment."""
    from pyiceberg.utils.config import Config, merge_config

    from headrace.tables.rest_catalog import RestCatalogWithTimeouts

    given: dict[str, Any] = dict(properties)
    merged = merge_config(Config().get_catalog_config(CATALOG_NAME) or {}, given)
    return RestCatalogWithTimeouts(CATALOG_NAME, **{key: str(value) for key, value in merged.items()})


def _make_file_properties(config: TableConfig) -> dict[str, str]:
    """Return where files are; those in a folder are synced."""
    from headrace.tables.synced_files import FILE_IO

    warehouse = config.warehouse
    if not warehouse:
        return {}
    if "://" in warehouse and not warehouse.startswith("file://"):
        return {"warehouse": warehouse}
    folder = Path(warehouse.removeprefix("file://")).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    return {"warehouse": folder.as_uri(), "py-io-impl": FILE_IO}


def load_table(catalog: Catalog, config: TableConfig) -> Table:
    """Return the table as it is now; raise TableError if there is none."""
    from pyiceberg.exceptions import NoSuchTableError

    try:
        return catalog.load_table(config.table)
    except NoSuchTableError:
        raise TableError(
            f"table {config.table} is not in catalog {show_catalog(config)}: create it with 'headrace table add'"
        ) from None


def create_table(catalog: Catalog, config: TableConfig) -> Table:
    """Create the table, or add declared columns to the one that exists."""
    from headrace.tables.columns import RowMapper, make_partition_spec, make_schema

    namespace = config.table.rpartition(".")[0]
    catalog.create_namespace_if_not_exists(namespace)
    if not catalog.table_exists(config.table):
        schema = make_schema(config)
        catalog.create_table_if_not_exists(
            config.table,
            schema,
            _make_location(catalog, config, namespace),
            make_partition_spec(schema, config),
            properties={
                **_TABLE_PROPERTIES,
                CREATED_MS: str(time.time_ns() // 1_000_000),
                COLUMNS: _describe_columns(config),
            },
        )
    RowMapper(load_table(catalog, config).schema(), config)
    return evolve_table(catalog, config)


def _make_location(catalog: Catalog, config: TableConfig, namespace: str) -> str | None:
    """Return a folder that no other table has; None if the catalog chooses it."""
    if config.is_rest:
        return None
    parent = catalog.load_namespace_properties(namespace).get("location")
    parent = parent or f"{catalog.properties['warehouse'].rstrip('/')}/{namespace}"
    return f"{parent.rstrip('/')}/{config.table.rpartition('.')[2]}-{uuid.uuid4()}"


def evolve_table(catalog: Catalog, config: TableConfig) -> Table:
    """Add declared columns that the table lacks, as optional ones, and widen types; return the table.

    A column with another type stays as it is: values that do not fit it are reported in `_error`.
    """
    from pyiceberg.exceptions import CommitFailedException

    for _ in range(_EVOLUTIONS_MAX):
        table = load_table(catalog, config)
        added, widened = _find_changes(table, config)
        described = _describe_columns(config)
        if not (added or widened) and table.properties.get(COLUMNS) == described:
            return table
        try:
            with table.transaction() as transaction:
                with transaction.update_schema() as update:
                    for field in added:
                        update.add_column(field.name, field.field_type)
                    for field in widened:
                        update.update_column(field.name, field.field_type)
                transaction.set_properties({COLUMNS: described})
            _log.info("table %s: new columns %s", config.table, [field.name for field in added])
        except CommitFailedException:
            # Another worker may have added them.
            continue
    raise TableError(f"table {config.table}: its schema cannot be changed: other programs keep changing it")


def _describe_columns(config: TableConfig) -> str:
    """Return how the declared columns are made, for programs that read the table and its stream."""
    return DeclaredColumns(
        tuple(config.schema), config.subject_columns, config.bucket, config.claims
    ).to_property()


def _find_changes(table: Table, config: TableConfig) -> tuple[list[NestedField], list[NestedField]]:
    """Return the declared columns that the table lacks, and those that need a wider type."""
    from pyiceberg.exceptions import ResolveError
    from pyiceberg.schema import promote
    from pyiceberg.types import NestedField, StringType

    from headrace.tables.columns import make_schema

    present = {field.name: field for field in table.schema().fields}
    added, widened, has_conflict = [], [], False
    for field in make_schema(config).fields[len(RAW_COLUMNS) :]:  # those of buckets are as many
        if field.name not in present:
            added.append(field)
            continue
        current = present[field.name].field_type
        if current == field.field_type or field.name == CLAIM_COLUMN:
            continue
        try:
            promote(current, field.field_type)
            widened.append(field)
        except ResolveError:
            has_conflict = True
            _log.warning(
                "table %s: column %r is %s, not %s as declared; values that do not fit %s go to _error",
                *(config.table, field.name, current, field.field_type, current),
            )
    if has_conflict and ERROR_COLUMN not in {*present, *(field.name for field in added)}:
        added.append(NestedField(len(present) + 1, ERROR_COLUMN, StringType(), required=False))
    return added, widened
