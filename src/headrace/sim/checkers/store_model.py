"""Reference model of a store. Owns what a store should contain, in plain dicts, without regard to speed.

Invariant: `to_state` returns equal values for equal stores, so "the store equals the model" is one comparison. Must not
know how anything is stored.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

#: time_ns, subject, header, payload, ttl_s: what `StreamLog.get` returns.
ModelMessage = tuple[int, bytes, bytes, bytes, int]
#: first_seq, last_seq, then (seq, message) ascending.
LogState = tuple[int, int, tuple[tuple[int, ModelMessage], ...]]
#: Logs by name and metadata by key, each sorted.
StoreState = tuple[tuple[tuple[str, LogState], ...], tuple[tuple[bytes, bytes], ...]]


def merge_operands(value: bytes | None, operands: Iterable[bytes]) -> bytes:
    """The model's merge: append operands to the value."""
    return (value or b"") + b"".join(operands)


class LogModel:
    """One stream."""

    def __init__(self, name: str, *, memory: bool = False, first_seq: int = 1) -> None:
        self.name = name
        self.memory = memory
        self.first_seq = first_seq
        self.last_seq = first_seq - 1
        self.messages: dict[int, ModelMessage] = {}

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
        self._update_first_seq()
        return True

    def remove_below(self, seq: int) -> int:
        removed = [number for number in self.messages if number < seq]
        for number in removed:
            del self.messages[number]
        self.last_seq = max(self.last_seq, seq - 1)
        self._update_first_seq()
        return len(removed)

    def _update_first_seq(self) -> None:
        self.first_seq = min(self.messages, default=self.last_seq + 1)

    def to_state(self) -> LogState:
        return self.first_seq, self.last_seq, tuple(sorted(self.messages.items()))


class StoreModel:
    """All streams and metadata."""

    def __init__(self) -> None:
        self.logs: dict[str, LogModel] = {}
        self.metadata: dict[bytes, bytes] = {}

    def create(self, name: str, *, memory: bool = False, first_seq: int = 1) -> LogModel:
        log = self.logs[name] = LogModel(name, memory=memory, first_seq=first_seq)
        return log

    def delete(self, name: str) -> None:
        del self.logs[name]

    def put(self, key: bytes, value: bytes) -> None:
        self.metadata[key] = value

    def delete_key(self, key: bytes) -> None:
        self.metadata.pop(key, None)

    def merge(self, key: bytes, operand: bytes) -> None:
        self.metadata[key] = merge_operands(self.metadata.get(key), (operand,))

    def to_state(self) -> StoreState:
        """Return the state that must be found after a restart, without memory streams."""
        logs = {name: log.to_state() for name, log in self.logs.items() if not log.memory}
        return make_state(logs, self.metadata)

    @classmethod
    def from_state(cls, saved_state: StoreState) -> StoreModel:
        """Make a model that continues from a saved state."""
        model = cls()
        for name, (first_seq, last_seq, messages) in saved_state[0]:
            log = model.create(name, first_seq=first_seq)
            log.last_seq = last_seq
            log.messages = dict(messages)
        model.metadata = dict(saved_state[1])
        return model


def make_state(logs: Mapping[str, LogState], metadata: Mapping[bytes, bytes]) -> StoreState:
    """Make the saved form of some logs and metadata."""
    return tuple(sorted(logs.items())), tuple(sorted(metadata.items()))
