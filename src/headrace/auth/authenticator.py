"""Authenticates a client from the fields of its CONNECT.

Owns the comparison of credentials. Every failure looks the same to the client, secrets are compared in constant time
(also for an unknown user name), and credentials are never logged or stored. Must not know sockets.
"""

from __future__ import annotations

import hmac
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.auth import nkeys, x509_names
from headrace.broker.accounts import GLOBAL
from headrace.config.options import OptionsError, ServerOptions, User
from headrace.errors import AuthError

if TYPE_CHECKING:
    from headrace.auth.operator import OperatorTrust, UserGrant
    from headrace.broker import Permissions

_BCRYPT = re.compile(r"^\$2[abxy]\$\d\d\$")
#: Connection types that users can be restricted to.
STANDARD, WEBSOCKET = "STANDARD", "WEBSOCKET"
#: The user of clients in the server's own process. While there are such clients, no other user can have this name.
INTERNAL_USER = "headrace inside"


@dataclass(frozen=True, slots=True)
class UserIdentity:
    """The user of a connection. `user` is empty if no authentication is required."""

    user: str = ""
    account: str = GLOBAL
    permissions: Permissions | None = None
    #: Limits from a JWT; -1 if only the server's apply.
    subscriptions: int = -1
    payload: int = -1
    #: When it expires, in seconds since the epoch; 0 is never.
    expires_s: float = 0.0
    grant: UserGrant | None = None


class SlowPassword(Exception):
    """A password must be checked against a bcrypt hash first, away from the event loop."""

    def __init__(self, stored: str, provided: str) -> None:
        super().__init__("the password must be checked first")
        self.stored = stored
        self.provided = provided


class VerifiedPassword(NamedTuple):
    """The result of such a check."""

    stored: str
    provided: str
    is_correct: bool


@dataclass(frozen=True, slots=True)
class AuthContext:
    """The properties of a connection that authentication checks: nonce, type, address and certificate."""

    nonce: str = ""
    connection_type: str = STANDARD
    client_ip: str = ""
    certificate: Mapping[str, Any] | None = None
    #: Users are mapped by certificate on this listener.
    map_users: bool = False
    #: The listener's own user for clients without credentials, if it has one.
    no_auth_user: str = ""
    #: The password that was checked for this connection already.
    verified: VerifiedPassword | None = None


ANONYMOUS = UserIdentity()
DEFAULT_CONTEXT = AuthContext()


class RecheckResult(Enum):
    """What happens to a client when the users change."""

    ACCEPTED = "stays"
    USER_REMOVED = "gone"
    VIOLATION = "violates"


def is_bcrypt_hash(secret: str) -> bool:
    """Whether a stored secret is a bcrypt hash rather than the secret itself."""
    return _BCRYPT.match(secret) is not None


def verify_secret(stored: str, provided: object) -> bool:
    """Whether the provided secret is the stored one; the comparison takes constant time."""
    if not isinstance(provided, str):
        return False
    if is_bcrypt_hash(stored):
        # bcrypt uses only 72 bytes; longer secrets are rejected rather than truncated.
        return len(provided.encode()) <= 72 and _load_bcrypt()(provided.encode(), stored.encode())
    return hmac.compare_digest(stored.encode(), provided.encode())


def _load_bcrypt() -> Callable[[bytes, bytes], bool]:
    try:
        from bcrypt import checkpw
    except ImportError as missing:
        raise AuthError(
            "a password is a bcrypt hash, which requires the package bcrypt: pip install 'headrace[bcrypt]'"
        ) from missing
    check: Callable[[bytes, bytes], bool] = checkpw
    return check


class Authenticator:
    """Checks CONNECTs against the users, the token or the operator of the options."""

    def __init__(self, options: ServerOptions) -> None:
        #: The secret of internal clients; empty if there are none. Created by each process, never stored.
        self.internal_secret = ""
        users = {user.name: user for user in options.users}
        if options.user:
            users[options.user] = User(options.user, options.password)
        for name in (options.no_auth_user, options.websocket.no_auth_user):
            if name and name not in users:
                raise OptionsError(f"no_auth_user {name!r} is not a configured user")
        self._users = users
        self._token = options.token
        self._no_auth_user = options.no_auth_user
        self.operator_trust = self._make_operator_trust(options)
        self.required = options.auth_required
        self._decoy_hash = self._make_decoy_hash()
        self.needs_nonce = self.operator_trust is not None or any(user.nkey for user in users.values())
        self._check_libraries()
        self._check_accounts(options)

    @staticmethod
    def _make_operator_trust(options: ServerOptions) -> OperatorTrust | None:
        if not options.operator_mode:
            return None
        from headrace.auth.operator import OperatorTrust

        try:
            return OperatorTrust(options)
        except AuthError as error:
            raise OptionsError(f"cannot use the operator's JWTs: {error}") from error

    def _check_libraries(self) -> None:
        """Raise now, not at the first CONNECT, if a library that is needed is missing."""
        if any(
            is_bcrypt_hash(secret)
            for secret in (self._token, *(user.password for user in self._users.values()))
        ):
            _load_bcrypt()
        if self.needs_nonce:
            nkeys.load_verifier()

    def _make_decoy_hash(self) -> str:
        """Return a hash that no password has, as costly as those of the users; "" if no user has a hash.

        Unknown users are checked against it, so that a refusal takes the same time for every name.
        """
        secrets = [self._token, *(user.password for user in self._users.values())]
        hashes = [secret for secret in secrets if is_bcrypt_hash(secret)]
        if not hashes:
            return ""
        cost = max(hashes, key=lambda each: each[4:6])[4:6]
        return f"$2b${cost}$" + "." * 22 + "." * 31

    @property
    def has_slow_passwords(self) -> bool:
        """Whether `check` may raise `SlowPassword`."""
        return bool(self._decoy_hash)

    def _verify(self, stored: str, provided: object, context: AuthContext) -> bool:
        """Compare a password; with bcrypt in use, only after it was checked away from the event loop."""
        if not self._decoy_hash or not isinstance(provided, str) or not provided:
            return verify_secret(stored, provided) and bool(provided)
        slow = stored if is_bcrypt_hash(stored) else self._decoy_hash
        verified = context.verified
        if verified is None or (verified.stored, verified.provided) != (slow, provided):
            raise SlowPassword(slow, provided)
        return verified.is_correct if slow == stored else verify_secret(stored, provided)

    def _check_accounts(self, options: ServerOptions) -> None:
        known = {account.name for account in options.accounts} | {options.system_account, ""}
        for user in self._users.values():
            if user.account not in known:
                raise OptionsError(
                    f"user {user.name!r} is in account {user.account!r}, which is not configured"
                )

    def is_required_for(self, context: AuthContext) -> bool:
        """Whether a client must send CONNECT before anything else."""
        return self.required and not context.no_auth_user

    def check(
        self, connect: Mapping[str, Any], context: AuthContext = DEFAULT_CONTEXT
    ) -> UserIdentity | None:
        """Return the identity for a CONNECT (keys in lower case); None is an authorization violation."""
        if self.internal_secret and connect.get("user") == INTERNAL_USER:
            return (
                UserIdentity(INTERNAL_USER)
                if verify_secret(self.internal_secret, connect.get("pass"))
                else None
            )
        if self.operator_trust is not None:
            return self._check_jwt(self.operator_trust, connect, context)
        if self._token:
            return ANONYMOUS if self._verify(self._token, connect.get("auth_token"), context) else None
        if not self._users:
            return ANONYMOUS
        user = self._find_user(connect, context)
        if user is None or (user.connections and context.connection_type not in user.connections):
            return None
        return _make_identity(user)

    def _find_user(self, connect: Mapping[str, Any], context: AuthContext) -> User | None:
        no_auth_user = context.no_auth_user or self._no_auth_user
        if self.needs_nonce and connect.get("nkey"):
            return self._check_nkey(str(connect["nkey"]), str(connect.get("sig") or ""), context)
        if context.map_users:
            return self._find_user_by_certificate(context.certificate)
        if no_auth_user and not _has_credentials(connect):
            return self._users.get(no_auth_user)
        user = self._users.get(str(connect.get("user") or ""))
        if user is not None and user.nkey:
            user = None
        # A user without a password can only be authenticated by a certificate.
        known = self._verify(user.password if user else "", connect.get("pass") or "", context)
        return user if user is not None and user.password and known else None

    def _check_nkey(self, key: str, signature: str, context: AuthContext) -> User | None:
        user = self._users.get(key)
        signature_bytes = nkeys.decode_signature(signature)
        if user is None or not user.nkey or not context.nonce:
            return None
        return user if nkeys.verify(key, "U", context.nonce.encode(), signature_bytes) else None

    def _find_user_by_certificate(self, certificate: Mapping[str, Any] | None) -> User | None:
        """Find the user that a verified certificate names."""
        if not certificate:
            return None
        for name in x509_names.get_alternative_names(certificate):
            user = self._users.get(name)
            if user is not None and not user.nkey:
                return user
        subject = x509_names.get_distinguished_name(certificate)
        if not subject:
            return None
        return next(
            (
                user
                for user in self._users.values()
                if x509_names.parse_distinguished_name(user.name) == subject
            ),
            None,
        )

    def _check_jwt(
        self, operator_trust: OperatorTrust, connect: Mapping[str, Any], context: AuthContext
    ) -> UserIdentity | None:
        token, signature = str(connect.get("jwt") or ""), str(connect.get("sig") or "")
        try:
            grant = operator_trust.check(token, signature, context.nonce, context.client_ip, time.time())
        except AuthError:
            return None
        if grant.connection_types and context.connection_type not in grant.connection_types:
            return None
        return UserIdentity(
            grant.user,
            grant.account,
            grant.permissions,
            subscriptions=grant.subscriptions,
            payload=grant.payload,
            expires_s=grant.expires_s,
            grant=grant,
        )

    def recheck(self, identity: UserIdentity, old: Authenticator) -> tuple[RecheckResult, UserIdentity]:
        """Check again a client that `old` accepted; return the result and its new identity."""
        if (
            self.internal_secret
            and identity.user == INTERNAL_USER
            and self.internal_secret == old.internal_secret
        ):
            return RecheckResult.ACCEPTED, identity
        if self.operator_trust is not None:
            valid = identity.grant is not None and self.operator_trust.is_valid(identity.grant, time.time())
            return (RecheckResult.ACCEPTED if valid else RecheckResult.VIOLATION), identity
        if self._token != old._token or identity.grant is not None:
            return RecheckResult.VIOLATION, identity
        user, known = self._users.get(identity.user), old._users.get(identity.user)
        if not identity.user:
            return (RecheckResult.VIOLATION if self._users else RecheckResult.ACCEPTED), identity
        if user is None:
            return (RecheckResult.USER_REMOVED if self._users else RecheckResult.ACCEPTED), identity
        if known is None or known.password != user.password or known.account != user.account:
            return RecheckResult.VIOLATION, identity
        return RecheckResult.ACCEPTED, _make_identity(user)


def _has_credentials(connect: Mapping[str, Any]) -> bool:
    """Whether a CONNECT has credentials that this server checks; NKeys and JWTs are ignored if no user has one."""
    return any(connect.get(key) for key in ("user", "pass", "auth_token"))


def _make_identity(user: User) -> UserIdentity:
    return UserIdentity(user.name, user.account or GLOBAL, user.permissions)
