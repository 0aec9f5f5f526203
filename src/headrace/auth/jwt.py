"""Parses and verifies JWTs of operators, accounts and users, as `nsc` creates them.

Owns their format: what is signed, which kind of key may sign it, and which fields count. Every function returns claims
with a valid signature or raises AuthError. Whether the signer is trusted is decided in `headrace.auth.operator`.
"""

from __future__ import annotations

import base64
import ipaddress
from typing import Any, TypeVar

import msgspec

from headrace.auth.nkeys import verify
from headrace.errors import AuthError
from headrace.protocol.json_exceptions import JSON_ERRORS

TOKEN_BYTES_MAX = 1024 * 1024
#: A limit of -1 is none; an empty list of connection types is any.
NO_LIMIT = -1
_ALGORITHM = "ed25519-nkey"
#: JWTs of version 1, created until 2020, sign only the claims.
_ALGORITHM_V1 = "ed25519"


class _Header(msgspec.Struct):
    typ: str = ""
    alg: str = ""


class JwtPermission(msgspec.Struct, frozen=True):
    """Allowed and denied subjects."""

    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()


class JwtResponsePermission(msgspec.Struct, frozen=True):
    max: int = 0
    ttl: int = 0


class TimeRange(msgspec.Struct, frozen=True):
    """A part of the day, `HH:MM:SS` to `HH:MM:SS`."""

    start: str = ""
    end: str = ""


class JwtUserPermissions(msgspec.Struct, frozen=True, kw_only=True):
    """What a user may do; also the template of a scoped signing key."""

    pub: JwtPermission = JwtPermission()
    sub: JwtPermission = JwtPermission()
    resp: JwtResponsePermission | None = None
    subs: int = NO_LIMIT
    data: int = NO_LIMIT
    payload: int = NO_LIMIT
    src: tuple[str, ...] | str = ()
    times: tuple[TimeRange, ...] = ()
    times_location: str = ""
    bearer_token: bool = False
    allowed_connection_types: tuple[str, ...] = ()


class UserBody(JwtUserPermissions, frozen=True, kw_only=True):
    type: str = ""
    issuer_account: str = ""
    tags: tuple[str, ...] = ()


class SigningScope(msgspec.Struct, frozen=True):
    """A signing key with a scope: it signs only for one role."""

    key: str
    kind: str = ""
    role: str = ""
    template: JwtUserPermissions = JwtUserPermissions()


class JwtImport(msgspec.Struct, frozen=True, kw_only=True):
    subject: str
    account: str
    type: str
    name: str = ""
    token: str = ""
    to: str = ""
    local_subject: str = ""
    share: bool = False
    allow_trace: bool = False


class JwtExport(msgspec.Struct, frozen=True, kw_only=True):
    subject: str
    type: str
    name: str = ""
    token_req: bool = False
    revocations: dict[str, int] = {}
    response_type: str = ""
    response_threshold: int = 0
    account_token_position: int = 0
    allow_trace: bool = False


class JwtAccountLimits(msgspec.Struct, frozen=True, kw_only=True):
    subs: int = NO_LIMIT
    data: int = NO_LIMIT
    payload: int = NO_LIMIT
    conn: int = NO_LIMIT
    leaf: int = NO_LIMIT
    imports: int = NO_LIMIT
    exports: int = NO_LIMIT
    wildcards: bool = True
    disallow_bearer: bool = False
    mem_storage: int = 0
    disk_storage: int = 0
    streams: int = 0
    consumer: int = 0
    max_ack_pending: int = 0
    mem_max_stream_bytes: int = 0
    disk_max_stream_bytes: int = 0
    max_bytes_required: bool = False
    tiered_limits: dict[str, dict[str, Any]] = {}


class JwtMappingTarget(msgspec.Struct, frozen=True):
    """A destination of a subject mapping, and its weight in percent."""

    subject: str
    weight: int = 0
    cluster: str = ""


class JwtTrace(msgspec.Struct, frozen=True, kw_only=True):
    dest: str = ""
    sampling: int = 0


class AccountBody(msgspec.Struct, frozen=True, kw_only=True):
    type: str = ""
    imports: tuple[JwtImport, ...] = ()
    exports: tuple[JwtExport, ...] = ()
    limits: JwtAccountLimits = JwtAccountLimits()
    signing_keys: tuple[str | SigningScope, ...] = ()
    revocations: dict[str, int] = {}
    mappings: dict[str, tuple[JwtMappingTarget, ...]] = {}
    default_permissions: JwtUserPermissions = JwtUserPermissions()
    trace: JwtTrace | None = None


class OperatorBody(msgspec.Struct, frozen=True, kw_only=True):
    type: str = ""
    signing_keys: tuple[str, ...] = ()
    system_account: str = ""
    strict_signing_key_usage: bool = False


class ActivationBody(msgspec.Struct, frozen=True, kw_only=True):
    """An activation token: allows one account to import from another."""

    type: str = ""
    subject: str = ""
    kind: str = ""
    issuer_account: str = ""


class _BaseClaims(msgspec.Struct, frozen=True, kw_only=True):
    issuer: str = msgspec.field(name="iss")
    subject: str = msgspec.field(name="sub")
    name: str = ""
    issued_s: int = msgspec.field(name="iat", default=0)
    expires_s: int = msgspec.field(name="exp", default=0)
    not_before_s: int = msgspec.field(name="nbf", default=0)

    def is_valid_at(self, now_s: float) -> bool:
        """Whether the token is valid at this time."""
        return self.not_before_s <= now_s and (not self.expires_s or now_s < self.expires_s)


_T = TypeVar("_T", bound=_BaseClaims)


class UserClaims(_BaseClaims, frozen=True, kw_only=True):
    nats: UserBody


class AccountClaims(_BaseClaims, frozen=True, kw_only=True):
    nats: AccountBody


class OperatorClaims(_BaseClaims, frozen=True, kw_only=True):
    nats: OperatorBody


class ActivationClaims(_BaseClaims, frozen=True, kw_only=True):
    nats: dict[str, Any]


def decode_user_claims(token: str) -> UserClaims:
    """Decode a user's JWT, signed by its account or one of the account's signing keys."""
    claims = _decode(token, UserClaims, ("A",))
    _check_type(claims.nats.type, "user")
    return claims


def decode_account_claims(token: str) -> AccountClaims:
    """Decode an account's JWT, signed by an operator; a self-signed one is decoded too, but proves nothing."""
    claims = _decode(token, AccountClaims, ("O", "A"))
    _check_type(claims.nats.type, "account")
    return claims


def decode_operator_claims(token: str) -> OperatorClaims:
    """Decode an operator's JWT, which it signs itself."""
    claims = _decode(token, OperatorClaims, ("O",))
    _check_type(claims.nats.type, "operator")
    if claims.issuer != claims.subject and claims.issuer not in claims.nats.signing_keys:
        raise AuthError("an operator JWT must be self-signed")
    return claims


def decode_activation_claims(token: str) -> tuple[ActivationClaims, ActivationBody]:
    """Decode an activation token, with which an account allows another to import something."""
    claims = _decode(token, ActivationClaims, ("A",))
    body = claims.nats
    _check_type(str(body.get("type", "")), "activation")
    # The kind of export has had two names; `type` is that of the token itself.
    kind = str(body.get("kind", ""))
    issuer = str(body.get("issuer_account", ""))
    return claims, ActivationBody(subject=str(body.get("subject", "")), kind=kind, issuer_account=issuer)


def _check_type(found: str, expected: str) -> None:
    if found != expected:
        raise AuthError(f"the JWT has type {found!r}, expected {expected!r}")


def _decode(token: str, kind: type[_T], signers: tuple[str, ...]) -> _T:
    if len(token) > TOKEN_BYTES_MAX:
        raise AuthError("the JWT is too long")
    parts = token.split(".")
    if len(parts) != 3:
        raise AuthError("malformed JWT: expected three parts")
    try:
        header = msgspec.json.decode(_decode_part(parts[0]), type=_Header)
        is_v1 = header.alg.lower() == _ALGORITHM_V1
        body = _decode_part(parts[1])
        claims = (
            msgspec.convert(_upgrade_v1_claims(body), kind) if is_v1 else msgspec.json.decode(body, type=kind)
        )
        signature = _decode_part(parts[2])
    except JSON_ERRORS as error:
        raise AuthError(f"malformed JWT: {error}") from None
    if header.typ.upper() != "JWT" or header.alg.lower() not in (_ALGORITHM, _ALGORITHM_V1):
        raise AuthError("the JWT is not signed with an nkey")
    signed = (parts[1] if is_v1 else f"{parts[0]}.{parts[1]}").encode()
    if not any(verify(claims.issuer, signer, signed, signature) for signer in signers):
        raise AuthError("the JWT's signature is invalid")
    return claims


def _upgrade_v1_claims(data: bytes) -> dict[str, Any]:
    """Convert claims of version 1 to version 2: `type` and some other fields were beside `nats`, not in it."""
    claims = msgspec.json.decode(data, type=dict[str, Any])
    inner = claims.get("nats")
    body = dict(inner) if isinstance(inner, dict) else {}
    for name in ("type", "issuer_account", "tags"):
        if name in claims:
            body[name] = claims[name]
    return {**claims, "nats": body}


def _decode_part(text: str) -> bytes:
    return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)


def is_in_networks(address: str, networks: tuple[str, ...] | str) -> bool:
    """Whether an address is in one of these networks; an empty list allows any."""
    ranges = [text.strip() for text in networks.split(",")] if isinstance(networks, str) else list(networks)
    ranges = [text for text in ranges if text]
    if not ranges:
        return True
    try:
        client_address = ipaddress.ip_address(address)
        return any(client_address in ipaddress.ip_network(text, strict=False) for text in ranges)
    except ValueError:
        return False
