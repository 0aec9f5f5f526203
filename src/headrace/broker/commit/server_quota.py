"""The server's own storage limits, for the streams of all accounts together.

They are checked once per turn of the event loop, not with each message: the message that crosses a limit is stored,
later ones are refused until there is space again. Without limits nothing is counted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.broker.jetstream import AccountJetStream


class ServerQuota:
    """`exhausted` names the kinds of storage without free space."""

    __slots__ = ("_accounts", "_check_scheduled", "_limits", "exhausted")

    def __init__(self, memory: int = -1, storage: int = -1) -> None:
        """`memory` and `storage` are bytes; -1 is no limit."""
        self._limits = {kind: limit for kind, limit in (("memory", memory), ("file", storage)) if limit >= 0}
        self._accounts: list[AccountJetStream] = []
        self._check_scheduled = False
        self.exhausted: frozenset[str] = frozenset()

    def add_account(self, jetstream: AccountJetStream) -> None:
        """Include the streams of an account."""
        self._accounts.append(jetstream)
        self.check()

    def remove_account(self, jetstream: AccountJetStream) -> None:
        """Exclude the streams of an account that is closed."""
        if jetstream in self._accounts:
            self._accounts.remove(jetstream)

    def schedule_check(self, jetstream: AccountJetStream) -> None:
        """Schedule a check at the end of the turn, after something was stored or removed."""
        if self._limits and not self._check_scheduled:
            self._check_scheduled = True
            jetstream.call_soon(self.check)

    def check(self) -> None:
        """Compare usage with the limits, and update every stream if the result changed."""
        self._check_scheduled = False
        exhausted = frozenset(kind for kind, limit in self._limits.items() if self._used(kind) > limit)
        if exhausted == self.exhausted:
            return
        self.exhausted = exhausted
        for jetstream in self._accounts:
            for stream in jetstream.streams.values():
                stream.update_fast_path()

    def remaining(self, kind: str) -> int:
        """Return how many bytes are left."""
        return self._limits[kind] - self._used(kind) if kind in self._limits else 1 << 62

    def _used(self, kind: str) -> int:
        return sum(jetstream.usage(kind)[0] for jetstream in self._accounts)
