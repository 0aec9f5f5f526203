"""Checks whether Spark finds the data sources and whether a server can be reached.

Owns the checks of `headrace pipeline doctor`. Each check gives an answer and, if it fails, what to do.
"""

from __future__ import annotations

import importlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from headrace.errors import HeadraceError

PACKAGES = ("pyspark_headrace", "pyspark_jetstream", "pyspark_headrace_kv")
_JAVA_MIN = 17
_SPARK_MIN = (4, 0)


@dataclass(frozen=True)
class CheckResult:
    """The result of one check."""

    name: str
    ok: bool
    detail: str


def run_checks(servers: str = "", stream: str = "") -> Iterator[CheckResult]:
    """Run all checks, in the order in which a query meets them."""
    yield _run_check("Java", check_java)
    yield _run_check("PySpark", _check_pyspark)
    yield _run_check("Python of Spark's workers", _check_python)
    yield _run_check("discovery", _check_discovery)
    if servers:
        yield _run_check(f"server {servers.rpartition('@')[2]}", lambda: _check_server(servers))
    if servers and stream:
        yield _run_check(f"stream {stream}", lambda: _check_stream(servers, stream))


class CheckFailed(Exception):
    """A check failed."""


def _run_check(name: str, check: Callable[[], str]) -> CheckResult:
    try:
        return CheckResult(name, True, check())
    except (CheckFailed, HeadraceError, ImportError, OSError) as error:
        return CheckResult(name, False, str(error))


def check_java() -> str:
    """Return version and path of Java; raise `CheckFailed` if there is none that Spark can use."""
    program = shutil.which("java")
    if program is None:
        raise CheckFailed(
            f"java is not on the PATH; Spark 4 needs Java {_JAVA_MIN} or later, for example openjdk-17-jre-headless"
        )
    version_text = subprocess.run([program, "-version"], capture_output=True, text=True, check=False).stderr
    found = re.search(r'version "(\d+)', version_text)
    if not found or int(found[1]) < _JAVA_MIN:
        first_line = version_text.strip().partition("\n")[0]
        raise CheckFailed(f"{program} says {first_line!r}; Spark 4 needs Java {_JAVA_MIN} or later")
    return f"{found[1]} ({program})"


def _check_pyspark() -> str:
    import pyspark

    version = tuple(int(part) for part in pyspark.__version__.split(".")[:2])
    if version < _SPARK_MIN:
        raise CheckFailed(
            f"{pyspark.__version__} does not support Python data sources; pip install 'headrace[spark]'"
        )
    importlib.import_module("pyarrow")
    return str(pyspark.__version__)


def _check_python() -> str:
    """Check the workers' interpreter: discovery runs there, and another interpreter does not have this package."""
    chosen = os.environ.get("PYSPARK_PYTHON", "python3")
    found = shutil.which(chosen)
    if found is None:
        raise CheckFailed(f"PYSPARK_PYTHON is {chosen!r}, which does not exist; set it to {sys.executable}")
    code = "import headrace.spark, sys; print(sys.executable)"
    process = subprocess.run([found, "-c", code], capture_output=True, text=True, check=False)
    if process.returncode:
        raise CheckFailed(f"{found} cannot import headrace.spark; set PYSPARK_PYTHON={sys.executable}")
    return process.stdout.strip()


def _check_discovery() -> str:
    for package in PACKAGES:
        importlib.import_module(package)
    names = [importlib.import_module(package).DefaultSource.name() for package in PACKAGES]
    return f"Spark finds {', '.join(names)}; if a session does not, call headrace.spark.register(spark)"


def _check_server(servers: str) -> str:
    from headrace.reader.blocking_connection import BlockingConnection, ServerAddress, parse_servers

    connection = BlockingConnection(ServerAddress(servers=tuple(parse_servers(servers))))
    try:
        info = connection.server_info
        return f"{info.get('server_name', 'the server')} replies, version {info.get('version', 'unknown')}"
    finally:
        connection.close()


def _check_stream(servers: str, stream: str) -> str:
    from headrace.reader.blocking_connection import ServerAddress, parse_servers
    from headrace.reader.read_method import choose_method
    from headrace.reader.stream_admin import fetch_stream_info

    stream_info = fetch_stream_info(
        ServerAddress(servers=tuple(parse_servers(servers))), "$JS.API", stream, 0.0
    )
    method = choose_method(stream_info).value
    write_mode = (
        "atomic batches" if stream_info.config.get("allow_atomic") else "message ids (allow_atomic is off)"
    )
    return (
        f"{stream_info.messages} messages, {stream_info.retention} retention, read by {method}; "
        f"exactly-once writes by {write_mode}"
    )
