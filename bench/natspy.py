"""Runs the test suites of nats.py and orbit.py against Headrace and against nats-server, and compares the results.

    python bench/natspy.py --suite PATH [--orbit PATH] [--python PYTHON] [--only nats,nats-core]
    [--server ours|nats-server|both] [-k EXPRESSION] [--json FILE]

The paths are checkouts of nats.py and orbit.py, or their bare git directories; they are exported into a temporary
folder that is removed afterwards. PYTHON is an interpreter of version 3.13 or later with pytest, pytest-asyncio,
pytest-timeout, pytest-benchmark, nkeys, websockets and aiohttp; an older one, such as that of this program, is enough for
the package `nats`. The suites start `nats-server` by name: a two-line wrapper of that name on PATH replaces it. As
nats-server does, the wrapper listens on all addresses without authentication unless the suite says otherwise. `nats` and
`nats-server` use fixed ports (4222 and up), so no other process may listen there meanwhile.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from client_suites import Outcomes, compare, export, make_parser, run_pytest

from conformance.servers import nats_server_binary

#: The package of nats-py, and the newer ones, which share the namespace `nats`.
LEGACY = "nats"
NEWER = ("nats-server", "nats-core", "nats-jetstream", "nats-key-value")
ORBIT = ("nats-extra", "orbit-counters", "orbit-jetstreamext")


def stand_in(folder: Path, server: str) -> Path:
    """Create a folder for PATH with an executable named nats-server."""
    folder.mkdir()
    program = folder / "nats-server"
    source = Path(__file__).parent.parent / "src"  # not the suite's own packages
    ours = f"env PYTHONPATH={source} {sys.executable} -m headrace serve -a 0.0.0.0 --allow_insecure"
    command = nats_server_binary() if server == "nats-server" else ours
    program.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
    program.chmod(0o755)
    return folder


def merge_namespaces(folder: Path, packages: list[Path]) -> Path:
    """Create a folder in which `nats` and `orbit` are ordinary packages: an installed nats-py would hide namespaces."""
    folder.mkdir()
    for source in sorted(each for package in packages for each in package.glob("src/*/*/")):
        (folder / source.parent.name).mkdir(exist_ok=True)
        (folder / source.parent.name / "__init__.py").touch()
        (folder / source.parent.name / source.name).symlink_to(source)
    for package in packages:  # a test of orbit.py runs an example that sees nothing but `src`
        for name in ("nats", "orbit"):
            if not (package / "src" / name).exists():
                (package / "src" / name).symlink_to(folder / name)
    return folder


def run(options: argparse.Namespace, server: str) -> Outcomes:
    """Run the wanted packages; the name of each test begins with that of its package."""
    outcomes: Outcomes = {}
    with tempfile.TemporaryDirectory(prefix="natspy-") as temporary:
        folder = Path(temporary)
        export(options.suite, folder, [LEGACY, *NEWER])
        if options.orbit:
            export(options.orbit, folder, list(ORBIT))
        programs = stand_in(folder / "bin", server)
        newer = [folder / name for name in (*NEWER, *ORBIT) if (folder / name).is_dir()]
        merged = merge_namespaces(folder / "merged", newer)
        for package in (folder / LEGACY, *newer):
            if package.name not in options.only:
                continue
            if package.name == LEGACY:  # its configuration files name certificates relative to the repository
                (package / LEGACY).symlink_to(package)
            (package / "pytest.ini").write_text("[pytest]\nasyncio_mode = auto\n")
            found = run_pytest(
                options,
                package,
                ["-p", "no:headrace", "tests"],
                PATH=f"{programs}{os.pathsep}{os.environ['PATH']}",
                PYTHONPATH=str(package / "src" if package.name == LEGACY else merged),
                TMPDIR=temporary,
                HOME=temporary,
            )
            outcomes |= {f"{package.name}: {test}": outcome for test, outcome in found.items()}
    return outcomes


def main() -> int:
    parser = make_parser(__doc__, "nats.py")
    parser.add_argument("--orbit", type=Path, help="checkout or bare git directory of orbit.py")
    parser.add_argument(
        "--only", type=lambda text: text.split(","), default=[LEGACY, *NEWER, *ORBIT], help="packages"
    )
    options = parser.parse_args()
    return compare(options, lambda server: run(options, server))


if __name__ == "__main__":
    sys.exit(main())
