"""Who a client is, from what it sent in CONNECT.

Owns the comparison of credentials. Every failure looks the same to the peer, secrets are compared in constant
time (an unknown name is compared, too), and nothing here writes a credential anywhere. It knows no sockets.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

from headrace.broker.accounts import GLOBAL
from headrace.errors import AuthError
from headrace.net.options import Options, OptionsError, User

if TYPE_CHECKING:
    from headrace.broker import Permissions

_BCRYPT = re.compile(r"^\$2[abxy]\$\d\d\$")


@dataclass(frozen=True, slots=True)
class Identity:
    """Who a connection speaks for. `user` is empty when nobody has to say who they are."""

    user: str = ""
    account: str = GLOBAL
    permissions: Permissions | None = None


ANONYMOUS = Identity()


class Standing(Enum):
    """What becomes of a client when the users change."""

    STAYS = "stays"
    GONE = "gone"
    VIOLATES = "violates"


def is_hash(secret: str) -> bool:
    """Whether a stored secret is a bcrypt hash rather than the secret itself."""
    return _BCRYPT.match(secret) is not None


def same_secret(stored: str, offered: object) -> bool:
    """Whether the offered secret is the stored one; takes the same time wherever they differ."""
    if not isinstance(offered, str):
        return False
    if is_hash(stored):
        return _bcrypt_check()(offered.encode(), stored.encode())
    return hmac.compare_digest(stored.encode(), offered.encode())


def _bcrypt_check() -> Callable[[bytes, bytes], bool]:
    try:
        from bcrypt import checkpw
    except ImportError as missing:
        raise AuthError(
            "a stored password is a bcrypt hash: install headrace[bcrypt] to check it"
        ) from missing
    check: Callable[[bytes, bytes], bool] = checkpw
    return check


class Authenticator:
    """Decides about CONNECTs by the users, or the token, of the options."""

    def __init__(self, options: Options) -> None:
        self.replace(options)

    def replace(self, options: Options) -> None:
        """From now on decide by these options (a reload)."""
        users = {user.name: user for user in options.users}
        if options.user:
            users[options.user] = User(options.user, options.password)
        if options.no_auth_user and options.no_auth_user not in users:
            raise OptionsError(f"no_auth_user {options.no_auth_user!r} is not among the users")
        self._users = users
        self._token = options.token
        self._stranger = users.get(options.no_auth_user)
        self.required = options.auth_required
        for secret in (options.token, *(user.password for user in users.values())):
            if is_hash(secret):
                _bcrypt_check()

    def check(self, connect: Mapping[str, Any]) -> Identity | None:
        """The identity a CONNECT (keys in lower case) proves; None is an authorization violation."""
        if self._token:
            return ANONYMOUS if same_secret(self._token, connect.get("auth_token")) else None
        if not self._users:
            return ANONYMOUS
        if self._stranger is not None and not _offers_anything(connect):
            return _identity(self._stranger)
        user = self._users.get(str(connect.get("user") or ""))
        known = same_secret(user.password if user else "", connect.get("pass"))
        return _identity(user) if user and known else None

    def review(self, identity: Identity, before: Authenticator) -> tuple[Standing, Identity]:
        """How somebody whom `before` let in stands now, and who they are from now on."""
        if self._token != before._token:
            return Standing.VIOLATES, identity
        user, known = self._users.get(identity.user), before._users.get(identity.user)
        if not identity.user:
            return (Standing.VIOLATES if self._users else Standing.STAYS), identity
        if user is None:
            return (Standing.GONE if self._users else Standing.STAYS), identity
        if known is None or known.password != user.password:
            return Standing.VIOLATES, identity
        return Standing.STAYS, _identity(user)


def _offers_anything(connect: Mapping[str, Any]) -> bool:
    return any(connect.get(key) for key in ("user", "pass", "auth_token", "nkey", "jwt"))


def _identity(user: User) -> Identity:
    return Identity(user.name, user.account or GLOBAL, user.permissions)
