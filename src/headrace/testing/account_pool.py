"""Accounts of one server for many tests: each test has one of its own, so tests share a process and nothing else.

Owns the accounts of a shared server. Opening an account is expensive, so accounts are used again: after a test the
server closes the connections of its user and deletes its streams. Invariant: an account that could not be emptied is
never used again.
"""

from __future__ import annotations

import secrets
import warnings
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from headrace.testing.hosted_server import HostedServer

if TYPE_CHECKING:
    from headrace.config.options import User

_CLEAN_UP_TIMEOUT_S = 20.0


@dataclass(frozen=True, slots=True)
class IsolatedAccount:
    """An account for one test: no other test sees its subjects and streams."""

    name: str
    server: HostedServer = field(repr=False)
    user: str
    password: str = field(repr=False)

    @property
    def url(self) -> str:
        """The URL with user and password; every NATS client accepts it."""
        return f"nats://{self.user}:{self.password}@127.0.0.1:{self.server.port}"


class AccountPool:
    """The accounts of one server. Its methods block; do not call them in the server's event loop."""

    def __init__(self, server: HostedServer) -> None:
        self._server = server
        #: The user that cleans up, by account.
        self._cleaners: dict[str, IsolatedAccount] = {}
        self._in_use: dict[str, IsolatedAccount] = {}
        self._free: list[str] = []
        self._count = 0

    @staticmethod
    def make_options(**options: Any) -> dict[str, Any]:
        """Return options for the server: clients must authenticate as a user of one of the accounts."""
        from headrace.config.options import AccountOptions, User

        nobody = User("headrace-nobody", secrets.token_hex(16), account="headrace-nobody")
        return {"users": (nobody,), "accounts": (AccountOptions("headrace-nobody"),), **options}

    def acquire(self) -> IsolatedAccount:
        """Return an account without streams and clients, with a new user."""
        if not self._free:
            self._count += 1
            name = f"test-{self._count}"
            self._cleaners[name] = self._make_user(name, "cleaner")
            self._free.append(name)
        name = self._free.pop()
        account = self._in_use[name] = self._make_user(name, "user")
        self._apply()
        return account

    def release(self, account: IsolatedAccount) -> None:
        """Close the connections of an account's user, and delete what is stored."""
        if self._in_use.get(account.name) is not account:
            raise ValueError(f"account {account.name!r} is not in use: it was released already")
        del self._in_use[account.name]
        self._apply()
        try:
            self._server.run(_delete_streams(self._cleaners[account.name].url))
        except Exception as error:  # any failure: the next test gets another account
            warnings.warn(f"account {account.name!r} is not used again: {error!r}", stacklevel=2)
            return
        self._free.append(account.name)

    def _make_user(self, account: str, role: str) -> IsolatedAccount:
        return IsolatedAccount(
            account, self._server, f"{account}-{role}-{secrets.token_hex(4)}", secrets.token_hex(16)
        )

    def _apply(self) -> None:
        """Give the server the accounts and users as they are now; it closes connections of users that are gone."""
        from headrace.config.options import AccountOptions
        from headrace.jetstream_api.account_limits import JetStreamLimits

        server = self._server.server
        others = [each for each in server.options.accounts if not each.name.startswith("test-")]
        accounts = [AccountOptions(name, JetStreamLimits()) for name in self._cleaners]
        options = replace(
            server.options,
            accounts=(*others, *accounts),
            users=(*(each for each in server.options.users if not each.account.startswith("test-")),
                   *map(_to_user, [*self._cleaners.values(), *self._in_use.values()])),
        )  # fmt: skip

        async def reload() -> None:
            server.reload(options)

        self._server.run(reload())


def _to_user(account: IsolatedAccount) -> User:
    from headrace.config.options import User

    return User(account.user, account.password, account=account.name)


async def _delete_streams(url: str) -> None:
    import nats

    connection = await nats.connect(url, allow_reconnect=False, connect_timeout=_CLEAN_UP_TIMEOUT_S)
    try:
        js = connection.jetstream(timeout=_CLEAN_UP_TIMEOUT_S)
        while streams := await js.streams_info():
            for stream in streams:
                await js.delete_stream(str(stream.config.name))
    finally:
        await connection.close()
