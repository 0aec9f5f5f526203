"""Where a table of a campaign of kills is: its catalog and its files, and how they are killed.

Owns the processes of the object store. Invariant: what is killed is started again with its data on the same ports.
"""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

import boto3

from claims.object_stores import Weed
from headrace.tables.config import TableConfig
from support.tables import make_rest_values, make_s3_properties, make_table

BUCKET = "lake"
#: Catalog and files: SQLite with a folder, SQLite with S3, and the REST catalog of SeaweedFS with its S3.
PLANTS = ("sql", "sql-s3", "rest")
_DOWN_S_MAX = 1.5


class TablePlant:
    """Catalog and files of one table."""

    def __init__(self, kind: str, folder: Path, stream: str) -> None:
        self.kind = kind
        self._weed: Weed | None = None
        if kind != "sql":
            self._weed = Weed(table_bucket=BUCKET)
        values: dict[str, Any] = {"commit_bytes": "1MiB"}
        if kind == "rest":
            values |= make_rest_values(self._weed, BUCKET)
        elif self._weed:
            values |= {"warehouse": "s3://plain", "properties": make_s3_properties(self._weed)}
            self._make_bucket("plain")
        _, self.config = make_table(folder, name=stream, **values)

    config: TableConfig

    @property
    def victims(self) -> tuple[str, ...]:
        """What can be killed here, besides workers and the broker; SeaweedFS is object store and catalog in one."""
        return ("store",) if self._weed else ()

    def kill(self, chance: random.Random) -> None:
        """Kill the object store, and start it again after a while."""
        assert self._weed is not None
        self._weed.kill()
        time.sleep(chance.random() * _DOWN_S_MAX)
        self._weed.restart()

    def close(self) -> None:
        if self._weed:
            self._weed.close()

    def _make_bucket(self, name: str) -> None:
        assert self._weed is not None
        keys = {f"aws_{key}": value for key, value in self._weed.KEYS.items()}
        client = boto3.client("s3", endpoint_url=self._weed.endpoint, region_name="us-east-1", **keys)
        client.create_bucket(Bucket=name)
        client.close()
