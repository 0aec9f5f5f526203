"""Without an optional package, what needs it says which extra to install."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from headrace.extras import require_extra

#: Runs a statement in a process that cannot find a package.
WITHOUT = """
from importlib.machinery import PathFinder

find = PathFinder.find_spec

def find_others(name, path=None, target=None):
    return None if name.split(".")[0] == {package!r} else find(name, path, target)

PathFinder.find_spec = find_others
{statement}
"""


@pytest.mark.parametrize(
    ("package", "statement", "extra"),
    [
        ("pyarrow", "import headrace; headrace.read('nats://127.0.0.1:1', 'S')", "read"),
        ("pyspark", "import headrace.spark", "spark"),
        ("pyspark", "import pyspark_headrace", "spark"),
        ("pyarrow", "import headrace.spark", "spark"),
        ("prometheus_client", "import headrace.claims", "claims"),
        ("prometheus_client", "from headrace.claims import stores", "claims"),
        ("yaml", "from headrace import claims; claims.load_all('claims.yaml')", "claims"),
        (
            "zstandard",
            "from headrace.claims.compression import make_compressor; make_compressor('zstd')",
            "claims",
        ),
        (
            "obstore",
            "from headrace import claims; claims.open_store(claims.ClaimConfig('v', backend='s3'))",
            "s3",
        ),
    ],
)
def test_a_missing_package_is_an_error_that_names_the_extra(package: str, statement: str, extra: str) -> None:
    code = WITHOUT.format(package=package, statement=statement)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=150, check=False
    )
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert re.search(
        rf"{package}.*pip install 'headrace\[{extra}\]'|pip install 'headrace\[{extra}\]'.*{package}", last
    )


def test_packages_that_are_installed_are_no_error() -> None:
    require_extra("read", "pytest", "msgspec")
