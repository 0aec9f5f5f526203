"""The tutorial about tables runs from top to bottom, prints what the page shows, and draws the picture that it has.

A `python` block that begins with `# <name>` is a file of that name. A `text` block is the output of the `sh` block before
it.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from docs.test_how_to import BLOCK, run_script
from support.processes import serving

DOCS = Path(__file__).parents[2] / "docs"
NAME = re.compile(r"# (\w+\.py)\n")
PICTURE = "sold-by-hour.svg"


@pytest.mark.timeout(1200)
def test_the_tutorial_about_tables_runs(tmp_path: Path) -> None:
    found = [(kind, text) for _, kind, text in BLOCK.findall((DOCS / "tutorials" / "tables.md").read_text())]
    following = [*found[1:], ("", "")]
    outputs = 0
    with serving(tmp_path, "-js", "-sd", str(tmp_path / "store")) as server:
        for (kind, text), (next_kind, expected) in zip(found, following, strict=True):
            if kind == "python":
                name = NAME.match(text)
                assert name, text
                (tmp_path / name[1]).write_text(text.replace("127.0.0.1:4222", f"127.0.0.1:{server.port}"))
            elif kind == "sh":
                printed = run_script(text, tmp_path, {"4222": str(server.port)})
                if next_kind == "text":
                    outputs += 1
                    assert printed == expected
    assert outputs == sum(kind == "text" for kind, _ in found) >= 8
    assert (tmp_path / PICTURE).read_text() == (DOCS / "images" / PICTURE).read_text()
