"""How much an account may store: its limits, its usage, and the limits of the server, which all accounts share.

Owns the account's limits. `StorageUsage` counts its bytes; `ServerQuota` belongs to all accounts. Must not know messages.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from headrace.broker.commit.server_quota import ServerQuota
from headrace.broker.commit.storage_usage import StorageUsage
from headrace.jetstream_api.account_limits import JetStreamLimits, Usage
from headrace.jetstream_api.configs import StreamConfig
from headrace.storage import Store, StreamLog


class AccountQuota:
    """The quota of one account. `storage` is "memory" or "file". Implements `QuotaAccount` of the server's quota."""

    __slots__ = ("_reserved", "_stored", "call_soon", "limits", "server_quota", "streams")

    def __init__(
        self,
        limits: JetStreamLimits,
        server_quota: ServerQuota,
        store: Store,
        streams: Mapping[str, Any],
        call_soon: Callable[[Callable[[], None]], object],
    ) -> None:
        self.limits = limits
        self.server_quota = server_quota
        self.streams = streams
        self.call_soon = call_soon
        self._stored = StorageUsage(store)
        self._reserved = {"memory": 0, "file": 0}

    def start(self) -> None:
        """Count this account's usage against the server's limits."""
        self.server_quota.add_account(self)

    def stop(self) -> None:
        """No longer count it: the account is closed."""
        self.server_quota.remove_account(self)

    def set_limits(self, limits: JetStreamLimits) -> None:
        """Apply new account limits; stored messages stay."""
        self.limits = limits
        for stream in self.streams.values():
            stream.update_fast_path()

    def get_limit(self, storage: str) -> int:
        """Return the account's limit in bytes; -1 is no limit."""
        return self.limits.max_memory if storage == "memory" else self.limits.max_storage

    def has_limit(self, storage: str) -> bool:
        """Whether messages must be checked against the quota of the account or the server."""
        return self.get_limit(storage) >= 0 or self.is_server_full(storage)

    def is_server_full(self, storage: str) -> bool:
        """Whether all accounts together have used up what the server allows."""
        return storage in self.server_quota.exhausted

    def reserve(self, storage: str, size: int) -> bool:
        """Reserve bytes for messages that are about to be stored; return whether the account's limit allows them."""
        limit = self.get_limit(storage)
        return limit < 0 or self._stored.reserve(storage, size, limit)

    def get_remaining(self, storage: str) -> int:
        """Return how many bytes the account and the server have left."""
        limit, remaining = self.get_limit(storage), self.server_quota.get_remaining(storage)
        return min(limit - self.usage(storage)[0], remaining) if limit >= 0 else remaining

    def usage(self, storage: str) -> tuple[int, int]:
        """Return bytes in use and bytes reserved by `max_bytes`."""
        return self._stored.count(storage), self._reserved[storage]

    def usage_excluding(self, name: str) -> Usage:
        """Return the usage of the account's streams, except for the one with this name."""
        reserved, stream = dict(self._reserved), self.streams.get(name)
        if stream is not None:
            reserved[stream.config.storage] -= max(stream.config.max_bytes, 0)
        return Usage(
            streams=len(self.streams) - (stream is not None),
            reserved_memory=reserved["memory"],
            reserved_storage=reserved["file"],
        )

    def add_stream(self, config: StreamConfig, log: StreamLog) -> None:
        """Count a stream from now on."""
        self._stored.add(config.storage, log)
        self._reserved[config.storage] += max(config.max_bytes, 0)

    def update_stream(self, old: StreamConfig, config: StreamConfig) -> None:
        """Count the reservation of a new configuration; the kind of storage stays the same."""
        self._reserved[config.storage] += max(config.max_bytes, 0) - max(old.max_bytes, 0)

    def remove_stream(self, config: StreamConfig, log: StreamLog) -> None:
        """Stop counting a stream."""
        self._stored.remove(config.storage, log)
        self._reserved[config.storage] -= max(config.max_bytes, 0)

    def schedule_server_check(self) -> None:
        """Check the server's limits at the end of the turn, after something was stored or removed."""
        self.server_quota.schedule_check(self)
