"""What a fuzz target is, and how a batch of inputs goes through one.

A target is started with a seed's randomness and gives two functions: one makes an input, the other checks what the code
does with it and raises when that is not as documented. An input is named `target:seed:index` for ever.
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

#: More CPU than this for one input is a finding, even on a busy machine.
INPUT_SECONDS_MAX = 5.0


class Finding(AssertionError):
    """An input with which something else happens than is documented."""


def run(name: str, start: Start, seed: int, inputs: int) -> int:
    """Feed the inputs of a seed; how many there were."""
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
