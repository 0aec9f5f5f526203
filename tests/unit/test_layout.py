"""The architecture, checked: imports point downward only, and every module says what it is."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "headrace"

#: What each part may import besides itself. Everybody may import the leaves.
LEAVES = {"errors", "durations", "probes", ""}
BELOW: dict[str, set[str]] = {
    "kernel": set(),
    "protocol": {"kernel"},
    "store": {"kernel", "protocol"},
    "api": {"kernel", "protocol", "store"},
    "broker": {"kernel", "protocol", "store", "api"},
    "net": {"kernel", "protocol", "store", "api", "broker"},
    "monitor": {"kernel", "protocol", "store", "api", "broker", "net"},
    "sim": {"kernel", "protocol", "store", "api", "broker", "client", "claims"},
    "client": set(),
    "claims": {"client"},
    "spark": {"kernel", "client", "claims", "store"},
    "reading": {"kernel", "protocol", "store", "claims", "spark"},
}
#: The parts on top, which put the others together.
TOP = {"cli", "server", "testing", "demo", "__init__", "__main__"}
BANNED_NAMES = {"utils", "util", "helpers", "helper", "manager", "common", "misc"}

MODULES = sorted(SOURCE.rglob("*.py"))


def part_of(path: Path) -> str:
    first = path.relative_to(SOURCE).parts[0]
    return first.removesuffix(".py")


def imported_parts(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module == "headrace":
            names = [f"headrace.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module]
        for name in names:
            root, _, rest = name.partition(".")
            if root == "headrace":
                yield node.lineno, rest.partition(".")[0]


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_a_module_keeps_its_place(path: Path) -> None:
    tree = ast.parse(path.read_text())
    part = part_of(path)
    assert ast.get_docstring(tree), "a module says at its top what it owns"
    assert path.stem not in BANNED_NAMES
    if part in TOP | LEAVES:
        return
    assert part in BELOW, f"say in BELOW what {part} may import"
    allowed = BELOW[part] | LEAVES | {part, "__version__", "COMPATIBLE_VERSION", "API_LEVEL"}
    wrong = [(line, target) for line, target in imported_parts(tree) if target not in allowed]
    assert not wrong, f"{part} may not import {wrong}"


def test_the_core_knows_no_sockets_clocks_or_threads() -> None:
    """Time, disk and network come in through small protocols, so that everything runs in the simulator."""
    for part in ("protocol", "api", "broker"):
        for path in (SOURCE / part).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
                if isinstance(node, ast.ImportFrom) and node.module:
                    names = [node.module]
                wrong = {name.partition(".")[0] for name in names} & {
                    "asyncio",
                    "socket",
                    "threading",
                    "time",
                }
                assert not wrong, f"{path.relative_to(SOURCE)} imports {wrong}"
