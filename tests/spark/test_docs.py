"""The pages about Spark run as they are."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import nats
import pytest
from pyspark.sql import SparkSession

from spark.conftest import TIMEOUT_S, Broker, make_batch_limit

DOCS = Path(__file__).parents[2] / "docs"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)


@pytest.fixture(autouse=True)
def _long_timeouts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use longer connection timeouts than the pages, because the machine may pause."""
    monkeypatch.setattr(nats, "connect", partial(nats.connect, connect_timeout=TIMEOUT_S))


def run(page: str, names: dict[str, Any], **replaced: str) -> int:
    """Run the code of a page, in order; return the number of blocks."""
    blocks = BLOCK.findall((DOCS / page).read_text())
    for block in blocks:
        for text, instead in replaced.items():
            block = block.replace(_WORDS[text], instead)
        exec(compile(block, page, "exec"), names)
    return len(blocks)


_WORDS = {"url": "nats://127.0.0.1:4222", "images": "docs/images", "limit": ", maxMessagesPerTrigger=40"}


def test_the_spark_docs_run(ours: Broker, spark: SparkSession) -> None:
    limit = {} if make_batch_limit(40) else {"limit": ""}
    assert run("reference/spark.md", {"spark": spark}, url=ours.url, **limit) >= 6


def test_the_spark_tutorial_runs(ours: Broker, spark: SparkSession, tmp_path: Path) -> None:
    """In the existing session, which `getOrCreate` finds; its charts are those on the page."""
    assert run("tutorials/spark.md", {}, url=ours.url, images=str(tmp_path)) >= 12
    shown = re.findall(r"!\[.*?\]\(\.\./images/(.*?)\)", (DOCS / "tutorials" / "spark.md").read_text())
    assert sorted(shown) == sorted(path.name for path in tmp_path.iterdir())
    for name in shown:
        for picture in (tmp_path / name, DOCS / "images" / name):
            tree = ElementTree.fromstring(picture.read_text())
            assert tree.tag.endswith("svg")
            assert len(list(tree.iter())) > 30, "there is something in it"
