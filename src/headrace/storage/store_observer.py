"""What the owner of a store implements to be called when something happens in it."""

from __future__ import annotations

from typing import Protocol


class StoreObserver(Protocol):
    """The owner of a store; see `Store.set_observer`."""

    def on_frame_durable(self, frame: int) -> None:
        """Called when a frame is durable; may commit the next one."""

    def on_full(self) -> None:
        """Called when the disk becomes full; to be followed by calls of `Store.on_idle`."""
