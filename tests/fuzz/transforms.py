"""Subject transforms with any functions and numbers: refused when they are made, or they make a subject of every subject."""

from __future__ import annotations

from typing import NamedTuple

from headrace.jetstream_api.subject_transform import BadTransform, check_transform, compile_transform

from .input_generator import NUMBERS, Maker
from .target import Pair

_SOURCES = ("a.*.*", "*.>", ">", "a.b", "*", "a.*.>", "", "a..b")
_NAMES = (
    "wildcard", "partition", "split", "SplitFromLeft", "splitfromright", "slicefromleft", "SliceFromRight", "left",
    "right", "random", "Partition", "unknown", "",
)  # fmt: skip
_EXTREMES = [number.decode("utf-8", "replace") for number in NUMBERS]
_EXTREMES += [
    "-4294967296",
    "-4294967295",
    "-2147483648",
    "-2147483649",
    "-9223372036854775808",
    "-" + "9" * 5000,
]
_TEXTS = ("-", "", ".", " ", "x", "}}", "(", "é")
_LITERALS = ("x", "$1", "$2", "$9", "$x", "$-1", ">", "*", "", "a b", "{{", "$" + "9" * 5000)
_SUBJECTS = (b"a.b", b"a.b.c", b"a.-x--y-.12345", b"x", b"a.\xff.\xc3", b"a.b.c.d.e")


class Case(NamedTuple):
    source: str
    dest: str


def start(maker: Maker) -> Pair:
    return make, check


def make(maker: Maker) -> Case:
    tokens = [
        _function(maker) if maker.chance(0.7) else maker.pick(_LITERALS) for _ in range(1 + maker.below(3))
    ]
    dest = ".".join(tokens)
    if maker.chance(0.1):
        dest = maker.damaged(dest.encode(), (b"{{", b"}}", b"(", b")", b",", b"-")).decode("utf-8", "replace")
    return Case(maker.pick(_SOURCES), dest)


def _function(maker: Maker) -> str:
    arguments = [_number(maker) for _ in range(maker.below(4))]
    if maker.chance(0.2):
        arguments.append(maker.pick(_TEXTS))
    blank = " " if maker.chance(0.1) else ""
    return f"{{{{{blank}{maker.pick(_NAMES)}({','.join(arguments)}){blank}}}}}"


def _number(maker: Maker) -> str:
    return maker.pick(_EXTREMES) if maker.chance(0.5) else str(maker.below(4))


def check(case: Case) -> None:
    try:
        check_transform(case.source, case.dest)
        transform = compile_transform(case.source, case.dest)
    except BadTransform:
        return
    wildcards = case.source.count("*")
    for subject in _SUBJECTS:
        if subject.count(b".") >= max(case.source.count("."), wildcards):
            assert isinstance(transform(subject), bytes)
