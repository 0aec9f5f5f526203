"""Builds the compiled kernel; without a compiler the package installs all the same and runs on its pure version."""

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
            "boundscheck": True,  # off in three loops that check first: crc32c, encode, publishes
            "wraparound": False,
            "cdivision": True,
            "initializedcheck": False,
        },
    )
)
