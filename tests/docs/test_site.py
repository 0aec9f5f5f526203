"""The documentation: it builds into a site without a broken link, its code runs, the API page is complete."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.processes import serving

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
TUTORIAL = re.findall(
    r"^```python\n(.*?)^```$", (DOCS / "tutorials" / "first-stream.md").read_text(), re.DOTALL | re.MULTILINE
)
PRINTS = (
    r"north is message 1\nsouth is message 2\n",
    r"level\.north 2\.31 m\nlevel\.south 2\.31 m\n",
    r"PUT b'logged in'\nPURGE b''\n",
    r"stored together: .*1.*2.*\n",
    r".*level\.north\n.*level\.south\n",
)
#: Pages whose code blocks other tests run.
ELSEWHERE = {
    "how-to/claims-with-s3-lifecycle-rules.md",
    "how-to/exactly-once-spark-sink.md",
    "how-to/test-with-virtual-time.md",
    "how-to/write-a-stream-to-an-iceberg-table.md",
    "reference/client.md",
    "reference/spark.md",
    "tutorials/first-stream.md",
    "tutorials/spark.md",
    "tutorials/tables.md",
}
#: Modules whose public names are on the page of the Python API.
PUBLIC_MODULES = (
    "headrace",
    "headrace.client",
    "headrace.client.sync",
    "headrace.claims",
    "headrace.testing",
    "headrace.spark",
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site; a warning, such as a broken link, fails the build."""
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.mark.xdist_group("site")
def test_the_site_builds_without_a_broken_link(site: Path) -> None:
    assert (site / "llms.txt").read_text() == (DOCS / "llms.txt").read_text()
    page = (site / "index.html").read_text()
    assert not re.findall(r'(?:src|href)="(https?://[^"]*)"[^>]*(?:script|stylesheet)', page)


@pytest.mark.xdist_group("site")
@pytest.mark.parametrize("module", PUBLIC_MODULES)
def test_the_api_page_has_every_public_name(site: Path, module: str) -> None:
    page = (site / "reference" / "python-api.html").read_text()
    names = importlib.import_module(module).__all__
    documented = set(re.findall(r'id="(headrace[\w.]*)"', page))
    in_tables = set(re.findall(r"<td><code>(\w+)</code></td>", page))
    assert [name for name in names if f"{module}.{name}" not in documented and name not in in_tables] == []


def test_the_tutorial_runs(tmp_path: Path) -> None:
    with serving(tmp_path, "-js", "-sd", str(tmp_path / "data")) as server:
        for block, prints in zip(TUTORIAL, PRINTS, strict=True):
            script = tmp_path / "block.py"
            script.write_text(block.replace("127.0.0.1:4222", f"127.0.0.1:{server.port}"))
            done = subprocess.run(
                [sys.executable, str(script)],
                capture_output=True,
                text=True,
                timeout=150,
                check=False,
                cwd=tmp_path,
            )
            assert done.returncode == 0, done.stderr
            assert re.fullmatch(prints, done.stdout, re.DOTALL), done.stdout


OTHERS = [
    (name, number, block)
    for page in sorted(DOCS.rglob("*.md"))
    if (name := page.relative_to(DOCS).as_posix()) not in ELSEWHERE
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
            timeout=150,
            check=False,
            cwd=tmp_path,
        )
        assert done.returncode == 0, f"{page}: {done.stderr}"


@pytest.mark.timeout(600)
def test_pages_can_be_read_one_after_the_other(tmp_path: Path) -> None:
    """The examples of all pages run on one server: no two pages use a stream or bucket in different ways."""
    client = re.findall(
        r"^```python\n(.*?)^```$", (DOCS / "reference/client.md").read_text(), re.DOTALL | re.MULTILINE
    )
    blocks = [("tutorials/first-stream.md", block) for block in TUTORIAL]
    blocks += [("reference/client.md", block) for block in client]
    blocks += [(page, block) for page, _, block in OTHERS]
    with serving(tmp_path, "-js", "-sd", str(tmp_path / "data")) as server:
        for page, block in blocks:
            script = tmp_path / "block.py"
            script.write_text(block.replace("127.0.0.1:4222", f"127.0.0.1:{server.port}"))
            done = subprocess.run(
                [sys.executable, str(script)],
                capture_output=True,
                text=True,
                timeout=150,
                check=False,
                cwd=tmp_path,
            )
            assert done.returncode == 0, f"{page}: {done.stderr}"


LLMS_LINK = re.compile(r"^- \[[^\]]+\]\(([^)]+)\): \S", re.MULTILINE)


def test_llms_txt_lists_every_page_of_the_navigation() -> None:
    text = (DOCS / "llms.txt").read_text()
    assert re.match(r"# \S.*\n\n> \S", text), "a title and a summary first (llmstxt.org)"
    listed = LLMS_LINK.findall(text)
    navigation = re.findall(r"(\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(page.replace(".md", ".html") for page in navigation)


LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)")


def anchors_of(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub and MkDocs make them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"])
def test_links_of_pages_outside_of_the_site_lead_somewhere(name: str) -> None:
    """MkDocs checks the links of the site."""
    for path, anchor in LINK.findall((ROOT / name).read_text()):
        target = ROOT / (path or name)
        assert target.exists(), path
        assert not anchor or anchor in anchors_of(target), f"{path}#{anchor}"
