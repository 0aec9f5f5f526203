"""Definition of a fuzz target, and how it runs a batch of inputs.

A target is started with the randomness of a seed and returns two functions: one makes an input, the other checks the
code with it and raises if the result is not as documented. The name of an input is `target:seed:index`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from .input_generator import Maker

Make = Callable[[Maker], Any]
Check = Callable[[Any], None]
Pair = tuple[Make, Check]
Start = Callable[[Maker], Pair]

#: More CPU time than this for one input is a finding, even on a busy machine.
INPUT_SECONDS_MAX = 5.0


class Finding(AssertionError):
    """An input for which the code does not do what is documented."""


def run(name: str, start: Start, seed: int, inputs: int) -> int:
    """Run the inputs of a seed; return their number."""
    maker = Maker(seed)
    make, check = start(maker)
    for index in range(inputs):
        case = make(maker)
        begun = time.thread_time()
        try:
            check(case)
            spent = time.thread_time() - begun
            assert spent < INPUT_SECONDS_MAX, f"it took {spent:.1f} s"
        except Exception as error:
            again = f"python bench/fuzz.py --replay {name}:{seed}:{index}"
            raise Finding(f"{type(error).__name__}: {error}\nby {shown(case)}\nagain: {again}") from error
    return inputs


def shown(case: Any) -> str:
    text = repr(case)
    return text if len(text) < 600 else f"{text[:600]}... ({len(text):,} characters)"
