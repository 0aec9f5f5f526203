"""A reference model of a store. Owns what a store should hold, in plain dicts, without a thought of speed.

Invariant: `freeze` gives equal values for equal stores, so "the store equals the model" is one comparison.
It must not know how anything is kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

#: time_ns, subject, header, payload, ttl_s: what `Log.get` returns.
Message = tuple[int, bytes, bytes, bytes, int]
#: first_seq, last_seq, then (seq, message) ascending.
LogState = tuple[int, int, tuple[tuple[int, Message], ...]]
#: Logs by name and facts by key, each sorted.
State = tuple[tuple[tuple[str, LogState], ...], tuple[tuple[bytes, bytes], ...]]


def fold(value: bytes | None, notes: Iterable[bytes]) -> bytes:
    """The fold of the model: notes are appended to the value."""
    return (value or b"") + b"".join(notes)


class LogModel:
    """One stream."""

    def __init__(self, name: str, *, memory: bool = False, first_seq: int = 1) -> None:
        self.name = name
        self.memory = memory
        self.first_seq = first_seq
        self.last_seq = first_seq - 1
        self.messages: dict[int, Message] = {}

    def append(self, subject: bytes, header: bytes, payload: bytes, time_ns: int, ttl_s: int = 0) -> int:
        self.last_seq += 1
        if not self.messages:
            self.first_seq = self.last_seq
        self.messages[self.last_seq] = (time_ns, subject, header, payload, ttl_s)
        return self.last_seq

    def advance(self, seq: int) -> None:
        if seq > self.last_seq:
            self.last_seq = seq
            if not self.messages:
                self.first_seq = seq + 1

    def remove(self, seq: int) -> bool:
        if self.messages.pop(seq, None) is None:
            return False
        self._settle()
        return True

    def remove_below(self, seq: int) -> int:
        doomed = [number for number in self.messages if number < seq]
        for number in doomed:
            del self.messages[number]
        self.last_seq = max(self.last_seq, seq - 1)
        self._settle()
        return len(doomed)

    def _settle(self) -> None:
        self.first_seq = min(self.messages, default=self.last_seq + 1)

    def freeze(self) -> LogState:
        return self.first_seq, self.last_seq, tuple(sorted(self.messages.items()))


class StoreModel:
    """All streams and facts."""

    def __init__(self) -> None:
        self.logs: dict[str, LogModel] = {}
        self.facts: dict[bytes, bytes] = {}

    def create(self, name: str, *, memory: bool = False, first_seq: int = 1) -> LogModel:
        log = self.logs[name] = LogModel(name, memory=memory, first_seq=first_seq)
        return log

    def delete(self, name: str) -> None:
        del self.logs[name]

    def put(self, key: bytes, value: bytes) -> None:
        self.facts[key] = value

    def drop(self, key: bytes) -> None:
        self.facts.pop(key, None)

    def note(self, key: bytes, delta: bytes) -> None:
        self.facts[key] = fold(self.facts.get(key), (delta,))

    def freeze(self) -> State:
        """What must be found after a restart: memory streams are not in it."""
        logs = {name: log.freeze() for name, log in self.logs.items() if not log.memory}
        return state(logs, self.facts)

    @classmethod
    def thaw(cls, frozen: State) -> StoreModel:
        """A model that goes on from a frozen state."""
        model = cls()
        for name, (first_seq, last_seq, messages) in frozen[0]:
            log = model.create(name, first_seq=first_seq)
            log.last_seq = last_seq
            log.messages = dict(messages)
        model.facts = dict(frozen[1])
        return model


def state(logs: Mapping[str, LogState], facts: Mapping[bytes, bytes]) -> State:
    """The frozen form of some logs and facts."""
    return tuple(sorted(logs.items())), tuple(sorted(facts.items()))
