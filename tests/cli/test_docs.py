"""docs/reference/cli.md: the examples run on both servers, every command has one, and the options match the code."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from cli.conftest import Headrace
from conformance.servers import Server
from headrace.cli import docs_reference, exit_codes

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "reference" / "cli.md").read_text()
BLOCKS = re.findall(r"^```sh\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
EXAMPLES = [line for block in BLOCKS for line in block.splitlines()]
#: Examples of what nats-server refuses: order per key and dead letters.
OURS_ONLY = {line for block in BLOCKS if "--dead-letter" in block for line in block.splitlines()}
#: Commands that run until stopped, need two servers, or work with Headrace only; other tests run them.
WITHOUT_EXAMPLE = {
    *("headrace serve", "headrace fsck", "headrace events"),
    *("headrace backup create", "headrace backup offline", "headrace backup ls", "headrace backup verify"),
    *("headrace backup prune", "headrace restore"),
    *(f"headrace archive {each}" for each in ("check", "list", "verify", "restore", "promote", "trim")),
    *("headrace migrate check", "headrace migrate move", "headrace migrate undo"),
}


@pytest.mark.timeout(600)
def test_every_example_of_the_cli_docs_runs(
    headrace: Headrace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, server: Server
) -> None:
    """In the order of the page; pipelines run in a shell."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "README.md").write_text("the file of an example")
    monkeypatch.setenv("HEADRACE_URL", headrace.url)
    command = f'headrace() {{ {shlex.quote(sys.executable)} -m headrace "$@"; }}\nset -e -o pipefail\n'
    for example in EXAMPLES:
        if example in OURS_ONLY and not server.is_ours:
            continue
        if re.search(r" [|&] |; | > ", example):
            done = subprocess.run(
                ["bash", "-c", command + example], capture_output=True, text=True, timeout=150, check=False
            )
            assert done.returncode == 0, f"{example}: {done.stderr}"
        else:
            headrace(*shlex.split(example)[1:])


def test_every_command_has_an_example() -> None:
    for path, _ in docs_reference.iter_commands():
        named = any(f"{path} " in f"{example} " for example in EXAMPLES)
        assert named or path in WITHOUT_EXAMPLE, f"{path} has no example in docs/reference/cli.md"


def test_the_reference_is_current() -> None:
    _, _, rest = PAGE.partition(docs_reference.BEGIN)
    written, _, _ = rest.partition(docs_reference.END)
    advice = "run: python -m headrace.cli.docs_reference docs/reference/cli.md"
    assert written == f"\n\n{docs_reference.render_markdown()}\n", advice


def test_the_exit_codes_are_those_of_the_code() -> None:
    for code, meaning in exit_codes.DESCRIPTIONS.items():
        assert f"| {code} | {meaning} |" in PAGE
