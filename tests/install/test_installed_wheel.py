"""A newcomer's first steps: the wheel is installed where no compiler can be reached, and the README's examples run."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace._native import describe_core
from install.environments import ROOT, Environment, build, copy_sources, find_one, reuse_compiled_core
from support.processes import Serving

pytestmark = [pytest.mark.xdist_group("install"), pytest.mark.timeout(1200)]
BLOCKS = re.findall(r"^```python\n(.*?)^```$", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE)
READ = """
import headrace

table = headrace.read("nats://127.0.0.1:4222", "ORDERS").to_pandas()
print(list(table["subject"]), [bytes(payload) for payload in table["data"]])
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Environment]:
    """An environment with the wheel, the extras of the README, and pytest-asyncio for its example."""
    folder = tmp_path_factory.mktemp("install")
    sources = copy_sources(folder / "sources")
    if describe_core() == "compiled":
        reuse_compiled_core(sources)
    done = build(sources, folder / "wheels")
    assert done.returncode == 0, done.stdout + done.stderr
    environment = Environment(folder / "venv", sys.executable)
    constraints = str(ROOT / "constraints.txt")
    wheel = find_one(folder / "wheels", "*.whl")
    environment.install("-c", constraints, f"{wheel}[read,server]", "pandas", "pytest-asyncio")
    yield environment
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def server(installed: Environment, tmp_path: Path) -> Iterator[Serving]:
    """`headrace serve -js -sd data`, as in the README, on a free port."""
    log = tmp_path / "stderr"
    with log.open("wb") as stderr:
        process = subprocess.Popen(
            [str(installed.bin / "headrace"), "serve", "-js", "-sd", "data", "-p", "-1"],
            cwd=tmp_path,
            env=installed.variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
        )
    try:
        running = Serving(process, log)
        running.wait_for("Server is ready")
        yield running
    finally:
        process.kill()
        process.wait()


def test_no_compiler_can_be_reached(installed: Environment) -> None:
    path = installed.variables["PATH"]
    assert not [name for name in ("cc", "gcc", "clang", "cython") if shutil.which(name, path=path)]
    assert "core: compiled)" in installed.run("headrace", "version")
    assert str(installed.folder) in installed.run("python", "-c", "import headrace; print(headrace.__file__)")


def test_the_examples_of_the_readme_run_one_after_another(
    installed: Environment, server: Serving, tmp_path: Path
) -> None:
    assert len(BLOCKS) >= 3
    for number, block in enumerate([*BLOCKS, READ]):
        script = tmp_path / f"test_example_{number}.py"
        script.write_text(block.replace("127.0.0.1:4222", f"127.0.0.1:{server.port}"))
        runner = ["-m", "pytest", "-q", "-p", "no:cacheprovider"] if "def test_" in block else []
        shown = installed.run("python", *runner, str(script), cwd=tmp_path, timeout_s=120)
    assert shown == "['orders.new'] [b'one flume, please']\n"
    assert "The core is" not in server.log
