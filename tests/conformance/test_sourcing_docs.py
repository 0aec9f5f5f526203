"""The examples in docs/reference/mirrors-and-sources.md run: programs on both servers, configurations on Headrace."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

from conformance.client import Client
from conformance.servers import Server
from headrace.config.config_parser import parse_config
from headrace.config.schema import interpret

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "mirrors-and-sources.md").read_text()


def blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


def test_the_program_of_the_sourcing_docs_runs(server: Server, tmp_path: Path) -> None:
    (block,) = blocks("python")
    script = tmp_path / "block.py"
    script.write_text(block.replace("127.0.0.1:4222", f"127.0.0.1:{server.port}"))
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=150, check=False
    )
    assert (done.stderr, done.returncode) == ("", 0)


def test_the_streams_of_the_sourcing_docs_are_accepted(server: Server) -> None:
    configs = [
        json.loads(line) for block in blocks("json") for line in re.findall(r"^\{.*?\}$", block, re.M | re.S)
    ]
    assert len(configs) == 3
    with Client(server.port) as client:
        for config in configs:
            assert "error" not in client.api(f"STREAM.CREATE.{config['name']}", config)
            client.api(f"STREAM.DELETE.{config['name']}")


def test_the_configurations_of_the_sourcing_docs_are_accepted() -> None:
    """They are next to each other on the page."""
    (block,) = [each for each in blocks("") if each.startswith("# the hub")]
    lines = block.splitlines()
    column = lines[0].index("# the edge")
    for text in ("\n".join(line[:column] for line in lines), "\n".join(line[column:] for line in lines)):
        draft = interpret(parse_config(text, "page.conf", lambda path: "", {}))
        assert draft.settings["leafnodes"].enabled
        assert draft.warnings == []
