"""The server's own storage limits, for the streams of all accounts together.

They are checked once per turn of the event loop, not with each message: the message that crosses a limit is stored,
later ones are refused until there is space again. Without limits nothing is counted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.broker.jetstream import AccountJetStream


class ServerQuota:
    """`full` names the kinds of storage of which there is no more."""

    __slots__ = ("_accounts", "_check_scheduled", "_limits", "exhausted")

    def __init__(self, memory: int = -1, storage: int = -1) -> None:
        """How many bytes there are of each kind; -1 is any number."""
        self._limits = {kind: limit for kind, limit in (("memory", memory), ("file", storage)) if limit >= 0}
        self._accounts: list[AccountJetStream] = []
        self._check_scheduled = False
        self.exhausted: frozenset[str] = frozenset()

    def add_account(self, jetstream: AccountJetStream) -> None:
        """Count the streams of one account more."""
        self._accounts.append(jetstream)
        self.check()

    def remove_account(self, jetstream: AccountJetStream) -> None:
        """An account is closed."""
        if jetstream in self._accounts:
            self._accounts.remove(jetstream)

    def schedule_check(self, jetstream: AccountJetStream) -> None:
        """Something was stored or removed: look at the end of the turn."""
        if self._limits and not self._check_scheduled:
            self._check_scheduled = True
            jetstream.call_soon(self.check)

    def check(self) -> None:
        """Count, and let every stream know when it makes a difference."""
        self._check_scheduled = False
        exhausted = frozenset(kind for kind, limit in self._limits.items() if self._used(kind) > limit)
        if exhausted == self.exhausted:
            return
        self.exhausted = exhausted
        for jetstream in self._accounts:
            for stream in jetstream.streams.values():
                stream.update_fast_path()

    def remaining(self, kind: str) -> int:
        """How many bytes there are still."""
        return self._limits[kind] - self._used(kind) if kind in self._limits else 1 << 62

    def _used(self, kind: str) -> int:
        return sum(jetstream.usage(kind)[0] for jetstream in self._accounts)
