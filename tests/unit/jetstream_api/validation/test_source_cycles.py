"""Which streams would copy from one another forever."""

import pytest

from headrace.jetstream_api.configs import External, StreamConfig, StreamSource, SubjectTransform
from headrace.jetstream_api.validation.source_cycles import has_cycle, intersect_patterns


def stream(name: str, *sources: StreamSource, mirror: StreamSource | None = None) -> StreamConfig:
    return StreamConfig(name=name, sources=list(sources), mirror=mirror)


def source(name: str, subject: str = "") -> StreamSource:
    return StreamSource(name=name, filter_subject=subject)


def changed(name: str, src: str, dest: str) -> StreamSource:
    return StreamSource(name=name, subject_transforms=[SubjectTransform(src=src, dest=dest)])


def rounds(*streams: StreamConfig) -> bool:
    """Return the cycles; the last stream is being created or changed."""
    return has_cycle(streams[-1], {each.name: each for each in streams})


@pytest.mark.parametrize(
    ("one", "other", "both"),
    [
        (">", "a.*", "a.*"),
        ("a.*.c", "*.b.>", "a.b.c"),
        ("a.>", "a", None),
        ("a.b", "a.c", None),
        ("*.x", "y.*", "y.x"),
        ("a.b", "a.b.c", None),
    ],
)
def test_what_two_patterns_have_in_common(one: str, other: str, both: str | None) -> None:
    assert intersect_patterns(one, other) == intersect_patterns(other, one) == both


def test_a_stream_that_copies_itself() -> None:
    assert rounds(stream("A", source("A", "a.>")))
    assert rounds(stream("A", changed("A", "a.*", "a.$1")))
    assert rounds(stream("A", changed("A", "a.>", "a.more.>")))  # longer with each round
    assert not rounds(stream("A", changed("A", "a.*", "b.$1")))
    assert not rounds(stream("A", changed("A", "a.*", "b.$1"), changed("A", "b.*", "c.$1")))
    assert rounds(stream("A", changed("A", "a.*", "b.$1"), changed("A", "b.*", "a.$1")))
    assert rounds(stream("A", changed("A", "a.*", "{{partition(3,1)}}")))


def test_circles_of_several() -> None:
    assert rounds(stream("B", source("A", "x.>")), stream("A", source("B", "x.y")))
    assert not rounds(stream("B", source("A", "a.>")), stream("A", source("B", "b.>")))
    three = [stream("B", source("C", "*.1")), stream("C", source("A", "x.*")), stream("A", source("B"))]
    assert rounds(*three)
    three[1] = stream("C", source("A", "x.2"))
    assert not rounds(*three)
    assert rounds(stream("A", source("M", "x")), stream("M", mirror=source("A")))


def test_what_is_no_circle() -> None:
    assert not rounds(stream("C"), stream("B", source("C")), stream("A", source("B"), source("C")))
    assert not rounds(stream("B", source("A")), stream("A"))
    other = StreamSource(name="A", filter_subject="x", external=External(api="$JS.other.API"))
    assert not rounds(stream("A", other))
    circle = [stream("X", source("Y", "x")), stream("Y", source("X", "x"))]
    assert not rounds(*circle, stream("A", source("X")))  # not its own


def test_a_circle_of_others_that_grows_does_not_hold_up_the_check() -> None:
    circle = [stream("X", changed("Y", "x.>", "x.1.>")), stream("Y", source("X", "x.>"), source("A"))]
    assert not rounds(*circle, stream("A", source("Z")))
