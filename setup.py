"""Builds the compiled core. A build without it is an error, unless HEADRACE_PURE=1 asks for the pure core."""

import os
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

HELP = """
The compiled core of Headrace could not be built (the reason is above). It needs a C compiler and Python's header files;
on Debian: apt-get install gcc libc6-dev python3-dev
To install the pure Python core instead, which does the same but several times slower, set HEADRACE_PURE=1.
"""


class BuildCore(build_ext):
    """Says what to do when the compiler fails."""

    def run(self) -> None:
        try:
            super().run()
        except Exception as error:
            raise SystemExit(f"error: {error}\n{HELP}") from error


def make_extensions() -> list[Extension]:
    """Return the modules to compile: none on Windows, where the broker does not run but its clients do."""
    if os.environ.get("HEADRACE_PURE") or sys.platform == "win32":
        return []
    from Cython.Build import cythonize

    # A function that a newer Python no longer declares must fail to compile: older compilers assume that it returns int.
    flags = ["-O3", "-Werror=implicit-function-declaration"]
    if sys.platform.startswith("linux"):  # only ELF has the procedure linkage table, which this avoids
        flags.append("-fno-plt")
    extensions = [
        Extension(f"headrace._native.{source.stem}", [str(source)], extra_compile_args=flags)
        for source in sorted(Path("src/headrace/_native").glob("*.pyx"))
    ]
    modules: list[Extension] = cythonize(
        extensions,
        language_level=3,
        compiler_directives={
            # Disabled only for four functions that check bounds themselves: `crc32c`, `encode_deliveries`,
            # `encode_publishes` and `spanned`.
            "boundscheck": True,
            "wraparound": False,
            "cdivision": True,
            "initializedcheck": False,
        },
    )
    return modules


setup(ext_modules=make_extensions(), cmdclass={"build_ext": BuildCore})
