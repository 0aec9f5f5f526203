"""Finds the code probes in the source, and counts those that a run hit."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from headrace import code_probes

SOURCE = Path(code_probes.__file__).parent


def calls() -> Iterator[tuple[str, ast.Call]]:
    """Yield every call of `sometimes` in the source, with its location."""
    for path in sorted(SOURCE.rglob("*.py")):
        text = path.read_text()
        if "sometimes(" not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "sometimes":
                yield f"{path.relative_to(SOURCE)}:{node.lineno}", node


def names() -> list[str]:
    """Return the names of all probes, sorted."""
    return sorted(call.args[0].value for _, call in calls() if isinstance(call.args[0], ast.Constant))


def taken() -> Counter[str]:
    """Return how often each probe was hit since the last call."""
    counts = Counter(code_probes.hits)
    code_probes.hits.clear()
    return counts
