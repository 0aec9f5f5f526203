"""The documentation: it builds into a site without a broken link, its tutorial runs, its reference is what the code says."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from support.processes import serving

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
TUTORIAL = re.findall(r"^```python\n(.*?)^```$", (DOCS / "tutorial.md").read_text(), re.DOTALL | re.MULTILINE)
PRINTS = (
    r"north is message 1\nsouth is message 2\n",
    r"PUT b'logged in'\nPURGE b''\n",
    r"stored together: .*1.*2.*\n",
    r".*level\.north\n.*level\.south\n",
)
#: Pages whose code blocks other tests run.
ELSEWHERE = {"client.md", "spark.md", "tutorial-spark.md", "tutorial.md"}


def test_the_site_builds_without_a_broken_link(tmp_path: Path) -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "mkdocs",
            "build",
            "--strict",
            "--quiet",
            "--site-dir",
            str(tmp_path / "site"),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    page = (tmp_path / "site" / "index.html").read_text()
    assert not re.findall(r'(?:src|href)="(https?://[^"]*)"[^>]*(?:script|stylesheet)', page)


def test_the_tutorial_runs(tmp_path: Path) -> None:
    with serving(tmp_path, "-js", "-sd", str(tmp_path / "data")) as server:
        for block, prints in zip(TUTORIAL, PRINTS, strict=True):
            script = tmp_path / "block.py"
            script.write_text(block.replace("127.0.0.1:4222", f"127.0.0.1:{server.port}"))
            done = subprocess.run(
                [sys.executable, str(script)],
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
                cwd=tmp_path,
            )
            assert done.returncode == 0, done.stderr
            assert re.fullmatch(prints, done.stdout, re.DOTALL), done.stdout


def test_the_reference_is_what_the_code_says() -> None:
    made = runpy.run_path(str(DOCS / "make_reference.py"))["page"]()
    assert made == (DOCS / "reference.md").read_text(), "run: python docs/make_reference.py"


OTHERS = [
    (page.name, number, block)
    for page in sorted(DOCS.glob("*.md"))
    if page.name not in ELSEWHERE
    for number, block in enumerate(
        re.findall(r"^```python\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE)
    )
]


@pytest.mark.parametrize(("page", "number", "block"), OTHERS, ids=[f"{row[0]}-{row[1]}" for row in OTHERS])
def test_code_blocks_of_other_pages_run(page: str, number: int, block: str, tmp_path: Path) -> None:
    with serving(tmp_path, "-js", "-sd", str(tmp_path / "data")) as server:
        script = tmp_path / "block.py"
        script.write_text(block.replace("127.0.0.1:4222", f"127.0.0.1:{server.port}"))
        done = subprocess.run(
            [sys.executable, str(script)],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            cwd=tmp_path,
        )
        assert done.returncode == 0, f"{page}: {done.stderr}"
