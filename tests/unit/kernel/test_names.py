"""What the kernel's package hands out, whichever of its modules is loaded first."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize("first", ["answer", "answers", "Lane", "Parser"])
def test_names_are_never_modules(first: str) -> None:
    program = f"""if True:
        from types import ModuleType
        from headrace import kernel

        kernel.{first}
        print([name for name in kernel.__all__ if isinstance(getattr(kernel, name), ModuleType)])
    """
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "[]\n"
