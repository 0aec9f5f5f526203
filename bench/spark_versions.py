"""Runs the Spark tests with each supported version of PySpark.

    python bench/spark_versions.py [--versions 4.0,4.1,4.2,4.3] [--folder out/pyspark] [tests/spark/test_kv.py ...]

A version that the environment does not have is installed in the folder of versions, once, with what it needs beyond the
environment. Further arguments go to pytest; by default all Spark tests run. Output is in `<version>.log` in the folder.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from importlib.metadata import version as find_version
from pathlib import Path

ROOT = Path(__file__).parents[1]
VERSIONS = ("4.0", "4.1", "4.2", "4.3")
_SUMMARY = re.compile(r"^=*\s*(\d+ (?:passed|failed|skipped|error).* in [0-9.]+s.*?)\s*=*$", re.MULTILINE)


def install(version: str, folder: Path) -> Path | None:
    """Install a version of PySpark; return its folder, None if the environment has it."""
    if find_version("pyspark").startswith(f"{version}."):
        return None
    target = folder / version
    if not (target / "pyspark").is_dir():
        pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "install"]
        subprocess.run([*pip, "--target", str(target), f"pyspark=={version}.*"], check=True)
    return target


def run_tests(version: str, folder: Path, arguments: list[str]) -> tuple[int, str]:
    """Run the tests with a version; return the exit code and what pytest says at the end."""
    target = install(version, folder)
    places = [str(target)] if target else []
    places += [str(ROOT / "src"), str(ROOT / "tests"), *filter(None, [os.environ.get("PYTHONPATH", "")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(places)}
    command = [sys.executable, "-m", "pytest", "-q", "-rfEs", *(arguments or ["tests/spark"])]
    log = folder / f"{version}.log"
    with log.open("w") as file:
        code = subprocess.run(command, cwd=ROOT, env=environment, stdout=file, stderr=file).returncode
    found = _SUMMARY.findall(log.read_text())
    return code, found[-1] if found else f"no result, see {log}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--versions", default=",".join(VERSIONS))
    parser.add_argument("--folder", type=Path, default=ROOT / "out" / "pyspark")
    given, arguments = parser.parse_known_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    codes = []
    for version in given.versions.split(","):
        code, summary = run_tests(version, given.folder, arguments)
        codes.append(code)
        print(f"PySpark {version}: {summary}", flush=True)
    sys.exit(any(codes))


if __name__ == "__main__":
    main()
