"""The configurations of an account's streams, with an index of their subjects.

Validation asks it for overlaps, so that a new stream is not compared with each of ten thousand others. Invariant: the
index has the subjects of the configurations in the mapping, except while they are changed in slices.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain

from headrace.jetstream_api.configs import StreamConfig
from headrace.protocol.pattern_set import PatternSet, TooManyVisits

#: Steps of one search on the event loop. Wildcards that need more are compared off the loop.
_VISITS_MAX = 10_000
_SUBJECTS_PER_SLICE = 256


class StreamConfigs(Mapping[str, StreamConfig]):
    """Configurations by name. A configuration must not be changed while it is in the mapping."""

    __slots__ = ("_configs", "_indexing", "_subjects")

    def __init__(self) -> None:
        self._configs: dict[str, StreamConfig] = {}
        self._subjects = PatternSet(visits_max=_VISITS_MAX)
        self._indexing = 0  # how many changes of the index are under way

    def __getitem__(self, name: str) -> StreamConfig:
        return self._configs[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._configs)

    def __len__(self) -> int:
        return len(self._configs)

    def iter_put(self, config: StreamConfig) -> Iterator[None]:
        """Add the configuration of a new stream, or replace that of an existing one; its subjects in slices."""
        old = self._configs.get(config.name)
        self._configs[config.name] = config
        yield from self._iter_index(old.subjects if old is not None else [], config.subjects)

    def iter_discard(self, name: str) -> Iterator[None]:
        """Remove the configuration of a stream; its subjects in slices."""
        yield from self._iter_index(self._configs.pop(name).subjects, [])

    def put(self, config: StreamConfig) -> None:
        """Add or replace a configuration at once."""
        for _ in self.iter_put(config):
            pass

    def _iter_index(self, removed: Sequence[str], added: Sequence[str]) -> Iterator[None]:
        self._indexing += 1
        changes = chain(
            ((self._subjects.discard, subject) for subject in removed),
            ((self._subjects.add, subject) for subject in added),
        )
        for number, (change, subject) in enumerate(changes, 1):
            change(subject.encode())
            if number % _SUBJECTS_PER_SLICE == 0:
                yield
        self._indexing -= 1

    def copy(self) -> dict[str, StreamConfig]:
        """Return a copy for a thread."""
        return self._configs.copy()

    def has_overlap(self, config: StreamConfig) -> bool:
        """Return whether a stream with another name has one of these subjects.

        Raise TooManyVisits if that takes long, or the index is incomplete: subjects must then be compared one by one.
        """
        if self._indexing:
            raise TooManyVisits
        own = self._configs.get(config.name)
        own_subjects = [subject.encode() for subject in own.subjects] if own is not None else []
        index = self._subjects
        for subject in own_subjects:
            index.discard(subject)
        try:
            index.visits = 0
            return any(index.overlaps(subject.encode()) for subject in config.subjects)
        finally:
            for subject in own_subjects:
                index.add(subject)
