"""Builds the compiled core; without a compiler the package installs too and runs on the pure version."""

from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup

extensions = [
    Extension(
        f"headrace._native.{source.stem}",
        [str(source)],
        extra_compile_args=["-O3", "-fno-plt"],
        optional=True,
    )
    for source in sorted(Path("src/headrace/_native").glob("*.pyx"))
]

setup(
    ext_modules=cythonize(
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
)
