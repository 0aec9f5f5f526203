"""Value types for the damage that recovery and later reads find."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec


class Damage(msgspec.Struct, frozen=True, array_like=True):
    """Something that was written and cannot be read again; kept until a person accepts the loss.

    `stream` is empty where no single stream is concerned; `first` to `last` (inclusive) are the sequences
    lost, 0 and 0 where none can be named; `file` is the file kept as evidence. `rows`: the log still
    knows the messages and raises `Corrupt` when one of them is read. `ident` is the stream's, where sequences
    of its are lost: another one of that name did not lose them. Damage noted by older versions has none.
    """

    description: str
    stream: str = ""
    first_seq: int = 0
    last_seq: int = 0
    file: str = ""
    rows_known: bool = False
    ident: int = 0

    def is_loss_in(self, ident: int, name: str) -> bool:
        """Whether these sequences are gone from that stream, and nothing but this tells."""
        return not self.rows_known and (self.ident == ident if self.ident else self.stream == name)


@dataclass(slots=True)
class RecoveryReport:
    """The state of health. Amber as long as `damage` is not empty."""

    checkpoint: int = 0  # the one recovery started from, 0 = a new store
    writer: str = ""  # the version that wrote that checkpoint, where it says so
    features: list[str] = field(default_factory=list)  # that a reader of the store must understand
    frames_replayed: int = 0
    clean_shutdown: bool = False  # the last thing in the journal was a shutdown mark
    #: Copied tails: an unfinished frame, nothing acknowledged lost.
    torn_tails: list[str] = field(default_factory=list)
    repaired: list[str] = field(default_factory=list)  # one of two copies was bad, or a cache was rebuilt
    unknown_files: list[str] = field(default_factory=list)  # files nobody names; left alone
    damage: list[Damage] = field(default_factory=list)
    #: Name (or ident) of a stream -> why it did not start.
    offline_streams: dict[str, str] = field(default_factory=dict)

    def add_damage(self, damage: Damage) -> None:
        """Notes damage once, however often it is met."""
        if damage not in self.damage:
            self.damage.append(damage)

    @property
    def healthy(self) -> bool:
        return not self.damage and not self.offline_streams
