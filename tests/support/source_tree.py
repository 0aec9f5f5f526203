"""The modules of the package, each read and parsed once per process: for tests over the source."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src" / "headrace"


@cache
def read_source(path: Path) -> str:
    return path.read_text()


@cache
def parse_module(path: Path) -> ast.Module:
    return ast.parse(read_source(path))


@cache
def list_nodes(path: Path) -> tuple[ast.AST, ...]:
    """All nodes of a module, in the order of `ast.walk`."""
    return tuple(ast.walk(parse_module(path)))
