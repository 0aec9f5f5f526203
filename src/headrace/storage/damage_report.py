"""Value types for the damage that recovery and later reads find."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec


class Damage(msgspec.Struct, frozen=True, array_like=True):
    """Data that was written and cannot be read any more; recorded until a person accepts the loss.

    `stream` is empty if no single stream is concerned; `first` to `last` (inclusive) are the lost sequences, 0 and 0 if
    none can be named; `file` is the file kept as evidence. `rows`: the log still has the rows of the messages and
    raises `CorruptData` when one of them is read. `ident` is the stream's if it lost sequences: a later stream of the
    same name did not lose them. Damage recorded by older versions has none.
    """

    description: str
    stream: str = ""
    first_seq: int = 0
    last_seq: int = 0
    file: str = ""
    rows_known: bool = False
    ident: int = 0

    def is_same_as(self, other: Damage) -> bool:
        """Return whether both are the same damage; another version may have described it in other words."""
        if self.file or self.first_seq:
            return msgspec.structs.replace(self, description="") == msgspec.structs.replace(
                other, description=""
            )
        return self == other

    def is_loss_in(self, ident: int, name: str) -> bool:
        """Return whether these sequences are missing from that stream and only this damage entry shows it."""
        return not self.rows_known and (self.ident == ident if self.ident else self.stream == name)


@dataclass(slots=True)
class RecoveryReport:
    """Health of a store. Amber as long as `damage` is not empty."""

    checkpoint: int = 0  # the checkpoint recovery started from, 0 for a new store
    writer: str = ""  # the version that wrote that checkpoint, if recorded
    features: list[str] = field(default_factory=list)  # features that a reader of the store must understand
    frames_replayed: int = 0
    last_frame: int = 0  # the last frame that is in the checkpoint or was replayed
    frame_before_open: int = 0  # the last one before the store was opened, see `CheckpointRoot`
    clean_shutdown: bool = False  # the last frame of the journal is a shutdown mark
    #: Copies of torn tails: unfinished frames, nothing acknowledged was lost.
    torn_tails: list[str] = field(default_factory=list)
    repaired: list[str] = field(default_factory=list)  # one of two copies was bad, or a cache was rebuilt
    unknown_files: list[str] = field(default_factory=list)  # files that nothing refers to; not touched
    damage: list[Damage] = field(default_factory=list)
    #: Name (or ident) of a stream -> why it did not start.
    offline_streams: dict[str, str] = field(default_factory=dict)

    def add_damage(self, damage: Damage) -> None:
        """Record damage once, however often it is found."""
        if not any(damage.is_same_as(known) for known in self.damage):
            self.damage.append(damage)

    @property
    def healthy(self) -> bool:
        return not self.damage and not self.offline_streams
