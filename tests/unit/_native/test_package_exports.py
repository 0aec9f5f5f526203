"""The exports of `headrace._native` do not depend on which module is imported first."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize("first", ["encode_reply", "encode_replies", "PublishFastPath", "Parser"])
def test_names_are_never_modules(first: str) -> None:
    program = f"""if True:
        from types import ModuleType
        from headrace import _native

        _native.{first}
        print([name for name in _native.__all__ if isinstance(getattr(_native, name), ModuleType)])
    """
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=150, check=True
    )
    assert done.stdout == "[]\n"
