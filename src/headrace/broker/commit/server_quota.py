"""The server's own storage limits, for the streams of all accounts together.

They are checked once per turn of the event loop, not with each message: the message that crosses a limit is stored,
later ones are refused until there is space again. Without limits nothing is counted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol


class QuotaAccount(Protocol):
    """The streams of one account, as far as the server's limits are concerned."""

    @property
    def streams(self) -> Mapping[str, Any]:
        """Return the streams by name; each can `update_fast_path`."""

    @property
    def call_soon(self) -> Callable[[Callable[[], None]], object]:
        """Return what calls a function at the end of this turn of the event loop."""

    def usage(self, storage: str) -> tuple[int, int]:
        """Return bytes in use and bytes reserved."""


class ServerQuota:
    """`exhausted` names the kinds of storage without free space."""

    __slots__ = ("_accounts", "_check_scheduled", "_limits", "exhausted")

    def __init__(self, memory: int = -1, storage: int = -1) -> None:
        """`memory` and `storage` are bytes; -1 is no limit."""
        self._limits = {kind: limit for kind, limit in (("memory", memory), ("file", storage)) if limit >= 0}
        self._accounts: list[QuotaAccount] = []
        self._check_scheduled = False
        self.exhausted: frozenset[str] = frozenset()

    def add_account(self, account: QuotaAccount) -> None:
        """Include the streams of an account."""
        self._accounts.append(account)
        self.check()

    def remove_account(self, account: QuotaAccount) -> None:
        """Exclude the streams of an account that is closed."""
        if account in self._accounts:
            self._accounts.remove(account)

    def schedule_check(self, account: QuotaAccount) -> None:
        """Schedule a check at the end of the turn, after something was stored or removed."""
        if self._limits and not self._check_scheduled:
            self._check_scheduled = True
            account.call_soon(self.check)

    def check(self) -> None:
        """Compare usage with the limits, and update every stream if the result changed."""
        self._check_scheduled = False
        exhausted = frozenset(kind for kind, limit in self._limits.items() if self._get_used(kind) > limit)
        if exhausted == self.exhausted:
            return
        self.exhausted = exhausted
        for account in self._accounts:
            for stream in account.streams.values():
                stream.update_fast_path()

    def get_remaining(self, kind: str) -> int:
        """Return how many bytes are left."""
        return self._limits[kind] - self._get_used(kind) if kind in self._limits else 1 << 62

    def _get_used(self, kind: str) -> int:
        return sum(account.usage(kind)[0] for account in self._accounts)
