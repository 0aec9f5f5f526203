"""The index of stream configurations gives the same results as a comparison with every stream."""

from __future__ import annotations

from random import Random

import pytest

from headrace.jetstream_api.configs import StreamConfig
from headrace.jetstream_api.validation.stream_configs import StreamConfigs
from headrace.protocol.pattern_set import TooManyVisits
from headrace.protocol.subjects import overlaps


def draw_subject(rng: Random) -> str:
    tokens = [rng.choice("ab*") for _ in range(rng.randrange(1, 4))]
    return ".".join([*tokens, *([">"] if rng.random() < 0.2 else [])])


def draw_config(rng: Random, name: str) -> StreamConfig:
    subjects = [draw_subject(rng) for _ in range(rng.randrange(3))]
    return StreamConfig(name=name, subjects=subjects)


@pytest.mark.parametrize("seed", range(20))
def test_it_agrees_with_a_comparison_of_all(seed: int) -> None:
    rng, index, model = Random(seed), StreamConfigs(), dict[str, StreamConfig]()
    for _ in range(200):
        config = draw_config(rng, f"S{rng.randrange(8)}")
        others = [s for name, other in model.items() if name != config.name for s in other.subjects]
        expected = any(overlaps(a.encode(), b.encode()) for a in config.subjects for b in others)
        assert index.has_overlap(config) is expected
        if rng.random() < 0.7:
            index.put(config)
            model[config.name] = config
        elif model.pop(config.name, None) is not None:
            assert list(index.iter_discard(config.name)) == []
        assert dict(index) == model == index.copy()


def test_wildcards_that_need_many_steps_are_left_to_others() -> None:
    index = StreamConfigs()
    for number in range(200):
        index.put(StreamConfig(name=f"S{number}", subjects=[f"a{number}.b{n}.c" for n in range(200)]))
    assert not index.has_overlap(StreamConfig(name="NEW", subjects=["a7.b7.d"]))
    for _ in range(2):
        with pytest.raises(TooManyVisits):
            index.has_overlap(StreamConfig(name="NEW", subjects=["*.*.d"]))
    assert index.has_overlap(StreamConfig(name="NEW", subjects=["a7.*.c"])), "each search may take as long"


def test_many_subjects_are_indexed_in_slices() -> None:
    index = StreamConfigs()
    large = StreamConfig(name="LARGE", subjects=[f"a.{number}" for number in range(1_000)])
    new = StreamConfig(name="NEW", subjects=["a.999"])
    for steps in (index.iter_put(large), index.iter_put(large), index.iter_discard("LARGE")):
        next(steps)
        with pytest.raises(TooManyVisits):
            index.has_overlap(new)
        assert len(list(steps)) >= 2
        assert index.has_overlap(new) is ("LARGE" in index)
