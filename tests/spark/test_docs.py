"""The tutorial runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from spark.conftest import Broker

PAGE = Path(__file__).parents[2] / "docs" / "spark.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)


def test_the_tutorial_runs(ours: Broker, spark: SparkSession) -> None:
    assert len(BLOCKS) >= 6
    names: dict[str, Any] = {"spark": spark}
    for block in BLOCKS:
        exec(compile(block.replace("nats://127.0.0.1:4222", ours.url), str(PAGE), "exec"), names)
