"""Clients, claims, readers and Spark sources can be imported on Windows, where the broker does not run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from support.source_tree import SOURCE

PARTS = ("headrace.client", "headrace.claims", "headrace.reader", "headrace.spark")
SOURCES = ("pyspark_headrace", "pyspark_headrace_kv", "pyspark_jetstream")

#: Third-party packages are imported first, as they are; then this package again, without what Windows lacks.
SIMULATION = """
import ctypes, importlib, json, os, signal, sys, traceback

NO_MODULES = {"fcntl", "grp", "posix", "pwd", "resource", "termios", "tty", "uvloop"}
NO_NAMES = {
    os: ("fdatasync", "fork", "getuid", "posix_fadvise", "posix_fallocate", "pread", "preadv", "pwrite", "pwritev",
         "setxattr", "getxattr", "statvfs", "sched_getaffinity", "O_CLOEXEC", "O_DIRECTORY", "O_NOFOLLOW", "uname"),
    signal: ("SIGHUP", "SIGKILL", "SIGUSR1", "SIGUSR2"),
}

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name in NO_MODULES:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

def load_library(name, *arguments, **options):
    raise TypeError("LoadLibrary() argument 1 must be str, not None" if name is None else f"no library {name!r}")

wanted = json.loads(sys.argv[1])
for name in wanted:
    importlib.import_module(name)
for name in [name for name in sys.modules if name.split(".")[0].startswith(("headrace", "pyspark_"))]:
    del sys.modules[name]
for name in NO_MODULES:
    sys.modules.pop(name, None)
sys.meta_path.insert(0, Blocked())
sys.platform, os.name, ctypes.CDLL = "win32", "nt", load_library
os.environ["HEADRACE_PURE"] = "1"  # the compiled core is not built on Windows
for module, names in NO_NAMES.items():
    for name in names:
        if hasattr(module, name):
            delattr(module, name)
failures = {}
for name in wanted:
    try:
        importlib.import_module(name)
    except Exception:
        failures[name] = traceback.format_exc(limit=-3)
print(json.dumps(failures))
"""


def list_modules(part: str) -> list[str]:
    """Return the name of a package and of all its modules."""
    files = (SOURCE.parent / Path(*part.split("."))).rglob("*.py")
    names = (".".join(file.relative_to(SOURCE.parent).with_suffix("").parts) for file in files)
    return sorted(name.removesuffix(".__init__") for name in names)


def run_simulation(wanted: list[str]) -> dict[str, str]:
    done = subprocess.run(
        [sys.executable, "-c", SIMULATION, json.dumps(wanted)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    failures: dict[str, str] = json.loads(done.stdout)
    return failures


def test_all_modules_and_the_data_sources_that_spark_finds_can_be_imported() -> None:
    modules = [name for part in PARTS for name in list_modules(part)]
    assert len(modules) > 150
    assert run_simulation([*modules, "headrace", "headrace.cli", "headrace.testing", *SOURCES]) == {}


def test_the_simulation_notices_what_windows_lacks() -> None:
    assert "fcntl" in run_simulation(["fcntl"])["fcntl"]
