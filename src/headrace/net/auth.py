"""Who a client is, from what it sent in CONNECT.

Owns the comparison of credentials. Every failure looks the same to the peer, secrets are compared in constant
time (an unknown name is compared, too), and nothing here writes a credential anywhere. It knows no sockets.
"""

from __future__ import annotations

import hmac
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

from headrace.broker.accounts import GLOBAL
from headrace.errors import AuthError
from headrace.net import certificates, nkeys
from headrace.net.options import Options, OptionsError, User

if TYPE_CHECKING:
    from headrace.broker import Permissions
    from headrace.net.trust import Grant, Trust

_BCRYPT = re.compile(r"^\$2[abxy]\$\d\d\$")
#: Kinds of connection, as users are bound to them.
STANDARD, WEBSOCKET = "STANDARD", "WEBSOCKET"
#: Who parts of the server's own process are that come as clients. While there are such, no user can have this name.
INSIDER = "headrace inside"


@dataclass(frozen=True, slots=True)
class Identity:
    """Who a connection speaks for. `user` is empty when nobody has to say who they are."""

    user: str = ""
    account: str = GLOBAL
    permissions: Permissions | None = None
    #: What a token allows, -1 is what the server allows.
    subscriptions: int = -1
    payload: int = -1
    #: When it ends, in seconds since the epoch; 0 is never.
    expires_s: float = 0.0
    grant: Grant | None = None


@dataclass(frozen=True, slots=True)
class Approach:
    """How a client comes: the nonce it was given, the kind of connection, its address and its certificate."""

    nonce: str = ""
    kind: str = STANDARD
    client_ip: str = ""
    certificate: Mapping[str, Any] | None = None
    #: Users are found by certificates on this door.
    map_users: bool = False
    #: The door's own user for strangers, if it has one.
    stranger: str = ""


ANONYMOUS = Identity()
PLAIN = Approach()


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
        # bcrypt looks at 72 bytes; more is refused rather than cut off.
        return len(offered.encode()) <= 72 and _bcrypt_check()(offered.encode(), stored.encode())
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
    """Decides about CONNECTs by the users, the token or the operator of the options."""

    def __init__(self, options: Options) -> None:
        #: What an insider proves itself with; empty when there is none. Made anew by each process, never written.
        self.inside_secret = ""
        users = {user.name: user for user in options.users}
        if options.user:
            users[options.user] = User(options.user, options.password)
        for name in (options.no_auth_user, options.websocket.no_auth_user):
            if name and name not in users:
                raise OptionsError(f"no_auth_user {name!r} is not among the users")
        self._users = users
        self._token = options.token
        self._stranger = options.no_auth_user
        self.trust = self._make_trust(options)
        self.required = options.auth_required
        self.signs = self.trust is not None or any(user.nkey for user in users.values())
        self._check_libraries()
        self._check_accounts(options)

    @staticmethod
    def _make_trust(options: Options) -> Trust | None:
        if not options.operator_mode:
            return None
        from headrace.net.trust import Trust

        try:
            return Trust(options)
        except AuthError as error:
            raise OptionsError(f"the operator's tokens cannot be used: {error}") from error

    def _check_libraries(self) -> None:
        """What is needed to decide is there now, not only when somebody comes."""
        if any(
            is_hash(secret) for secret in (self._token, *(user.password for user in self._users.values()))
        ):
            _bcrypt_check()
        if self.signs:
            nkeys.checker()

    def _check_accounts(self, options: Options) -> None:
        known = {account.name for account in options.accounts} | {options.system_account, ""}
        for user in self._users.values():
            if user.account not in known:
                raise OptionsError(
                    f"user {user.name!r} is in account {user.account!r}, which is not configured"
                )

    def required_for(self, approach: Approach) -> bool:
        """Whether nobody is heard here before CONNECT."""
        return self.required and not approach.stranger

    def check(self, connect: Mapping[str, Any], approach: Approach = PLAIN) -> Identity | None:
        """The identity a CONNECT (keys in lower case) proves; None is an authorization violation."""
        if self.inside_secret and connect.get("user") == INSIDER:
            return Identity(INSIDER) if same_secret(self.inside_secret, connect.get("pass")) else None
        if self.trust is not None:
            return self._check_grant(self.trust, connect, approach)
        if self._token:
            return ANONYMOUS if same_secret(self._token, connect.get("auth_token")) else None
        if not self._users:
            return ANONYMOUS
        user = self._find(connect, approach)
        if user is None or (user.connections and approach.kind not in user.connections):
            return None
        return _identity(user)

    def _find(self, connect: Mapping[str, Any], approach: Approach) -> User | None:
        stranger = approach.stranger or self._stranger
        if self.signs and connect.get("nkey"):
            return self._check_nkey(str(connect["nkey"]), str(connect.get("sig") or ""), approach)
        if approach.map_users:
            return self._mapped(approach.certificate)
        if stranger and not _offers_anything(connect):
            return self._users.get(stranger)
        user = self._users.get(str(connect.get("user") or ""))
        if user is not None and user.nkey:
            user = None
        # Somebody without a password is known by a certificate or not at all.
        known = same_secret(user.password if user else "", connect.get("pass") or "")
        return user if user is not None and user.password and known else None

    def _check_nkey(self, key: str, signature: str, approach: Approach) -> User | None:
        user = self._users.get(key)
        signed = nkeys.signature_of(signature)
        if user is None or not user.nkey or not approach.nonce:
            return None
        return user if nkeys.verify(key, "U", approach.nonce.encode(), signed) else None

    def _mapped(self, certificate: Mapping[str, Any] | None) -> User | None:
        """The user that a verified certificate names."""
        if not certificate:
            return None
        for name in certificates.alternative_names(certificate):
            user = self._users.get(name)
            if user is not None and not user.nkey:
                return user
        subject = certificates.distinguished_name(certificate)
        if not subject:
            return None
        return next(
            (user for user in self._users.values() if certificates.parse_name(user.name) == subject), None
        )

    def _check_grant(self, trust: Trust, connect: Mapping[str, Any], approach: Approach) -> Identity | None:
        token, signature = str(connect.get("jwt") or ""), str(connect.get("sig") or "")
        try:
            grant = trust.check(token, signature, approach.nonce, approach.client_ip, time.time())
        except AuthError:
            return None
        if grant.connections and approach.kind not in grant.connections:
            return None
        return Identity(
            grant.user,
            grant.account,
            grant.permissions,
            subscriptions=grant.subscriptions,
            payload=grant.payload,
            expires_s=grant.expires_s,
            grant=grant,
        )

    def review(self, identity: Identity, before: Authenticator) -> tuple[Standing, Identity]:
        """How somebody whom `before` let in stands now, and who they are from now on."""
        if self.inside_secret and identity.user == INSIDER and self.inside_secret == before.inside_secret:
            return Standing.STAYS, identity
        if self.trust is not None:
            stands = identity.grant is not None and self.trust.stands(identity.grant, time.time())
            return (Standing.STAYS if stands else Standing.VIOLATES), identity
        if self._token != before._token or identity.grant is not None:
            return Standing.VIOLATES, identity
        user, known = self._users.get(identity.user), before._users.get(identity.user)
        if not identity.user:
            return (Standing.VIOLATES if self._users else Standing.STAYS), identity
        if user is None:
            return (Standing.GONE if self._users else Standing.STAYS), identity
        if known is None or known.password != user.password or known.account != user.account:
            return Standing.VIOLATES, identity
        return Standing.STAYS, _identity(user)


def _offers_anything(connect: Mapping[str, Any]) -> bool:
    """Whether a client says who it is, in words that count here: keys and tokens do not where nobody has any."""
    return any(connect.get(key) for key in ("user", "pass", "auth_token"))


def _identity(user: User) -> Identity:
    return Identity(user.name, user.account or GLOBAL, user.permissions)
