"""Why Spark does or does not find the data sources, and whether a server can be reached.

Owns the checks of `headrace pipeline doctor`. Each is a question with an answer and, if it is bad, what to do.
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
class Finding:
    """The answer to a question."""

    question: str
    good: bool
    answer: str


def examine(servers: str = "", stream: str = "") -> Iterator[Finding]:
    """All checks, in the order in which a query meets them."""
    yield _checked("Java", _java)
    yield _checked("PySpark", _pyspark)
    yield _checked("Python of Spark's workers", _python)
    yield _checked("discovery", _discovery)
    if servers:
        yield _checked(f"server {servers.rpartition('@')[2]}", lambda: _server(servers))
    if servers and stream:
        yield _checked(f"stream {stream}", lambda: _stream(servers, stream))


class Bad(Exception):
    """The answer is not as it should be."""


def _checked(question: str, check: Callable[[], str]) -> Finding:
    try:
        return Finding(question, True, check())
    except (Bad, HeadraceError, ImportError, OSError) as error:
        return Finding(question, False, str(error))


def _java() -> str:
    program = shutil.which("java")
    if program is None:
        raise Bad("there is no java on the PATH; Spark 4 needs Java 17, for example openjdk-17-jre-headless")
    shown = subprocess.run([program, "-version"], capture_output=True, text=True, check=False).stderr
    found = re.search(r'version "(\d+)', shown)
    if not found or int(found[1]) < _JAVA_MIN:
        raise Bad(f"{program} is {shown.partition(chr(10))[0]}; Spark 4 needs Java {_JAVA_MIN} or later")
    return f"{found[1]} ({program})"


def _pyspark() -> str:
    import pyspark

    version = tuple(int(part) for part in pyspark.__version__.split(".")[:2])
    if version < _SPARK_MIN:
        raise Bad(f"{pyspark.__version__} has no Python data sources; pip install 'headrace[spark]'")
    importlib.import_module("pyarrow")
    return str(pyspark.__version__)


def _python() -> str:
    """Discovery runs in the workers' interpreter; another one than ours knows nothing of this package."""
    chosen = os.environ.get("PYSPARK_PYTHON", "python3")
    found = shutil.which(chosen)
    if found is None:
        raise Bad(f"PYSPARK_PYTHON is {chosen!r}, which is not there; set it to {sys.executable}")
    code = "import headrace.spark, sys; print(sys.executable)"
    probe = subprocess.run([found, "-c", code], capture_output=True, text=True, check=False)
    if probe.returncode:
        raise Bad(f"{found} cannot import headrace.spark; set PYSPARK_PYTHON={sys.executable}")
    return probe.stdout.strip()


def _discovery() -> str:
    for package in PACKAGES:
        importlib.import_module(package)
    names = [importlib.import_module(package).DefaultSource.name() for package in PACKAGES]
    return f"Spark finds {', '.join(names)}; where it does not, call headrace.spark.register(spark)"


def _server(servers: str) -> str:
    from headrace.spark.link import Address, Link, servers_of

    link = Link(Address(servers=tuple(servers_of(servers))))
    try:
        return f"{link.info.get('server_name', 'it')} answers, version {link.info.get('version', 'unknown')}"
    finally:
        link.close()


def _stream(servers: str, stream: str) -> str:
    from headrace.spark.link import Address, servers_of
    from headrace.spark.streams import facts_of

    facts = facts_of(Address(servers=tuple(servers_of(servers))), "$JS.API", stream, 0.0)
    if not facts.config.get("allow_direct"):
        raise Bad("it allows no direct get; set allow_direct in its configuration")
    writing = "atomic batches" if facts.config.get("allow_atomic") else "message ids (allow_atomic is off)"
    return f"{facts.messages} messages, {facts.retention} retention; written exactly once by {writing}"
