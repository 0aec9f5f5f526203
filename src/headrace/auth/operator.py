"""Operator mode: accounts and users are defined by signed JWTs.

Owns the chain of trust: the operator's key signs accounts, an account's key (or one of its signing keys) signs users,
and a user signs the server's nonce. A user is rejected if an element of the chain is missing, expired or revoked.
Only signatures are trusted, never the source of a JWT.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from contextlib import suppress
from typing import NamedTuple
from zoneinfo import ZoneInfo

from headrace.auth.account_tiers import make_jetstream_limits
from headrace.auth.jwt import (
    AccountClaims,
    JwtExport,
    JwtImport,
    JwtUserPermissions,
    SigningScope,
    TimeRange,
    UserClaims,
    decode_account_claims,
    decode_activation_claims,
    decode_operator_claims,
    decode_user_claims,
    is_in_networks,
)
from headrace.auth.nkeys import decode_signature, verify
from headrace.broker import AccountLimits, Permissions
from headrace.broker.routing.exports import RESPONSE_TIMEOUT_NS, Export, Import
from headrace.broker.routing.permissions import ResponsePermission
from headrace.broker.routing.subject_mapping import (
    WEIGHT_TOTAL,
    MappingDestination,
    MappingError,
    SubjectMapping,
)
from headrace.config.options import AccountOptions, ServerOptions
from headrace.config.trace_options import NO_TRACE, TraceOptions
from headrace.errors import AuthError
from headrace.protocol import subjects

_RESPONSE_TYPES = {"Stream": "stream", "Chunked": "chunked"}
_DAY_S = 86_400
ALL_USERS = "*"
USER_EXPIRED = "User Authentication Expired"
ACCOUNT_EXPIRED = "Account Authentication Expired"


class UserGrant(NamedTuple):
    """What a user's JWT grants."""

    user: str
    account: str
    permissions: Permissions | None
    connection_types: frozenset[str]
    subscriptions: int
    payload: int
    expires_s: float  # 0: never
    expiry_error: str  # the error sent then
    issued_s: int
    name: str


class OperatorTrust:
    """The trusted operators, and the accounts that they signed."""

    def __init__(self, options: ServerOptions) -> None:
        operators = [decode_operator_claims(token) for token in options.operators]
        self._trusted_keys = set(options.trusted_keys)
        for operator in operators:
            if not operator.nats.strict_signing_key_usage:
                self._trusted_keys.add(operator.subject)
            self._trusted_keys.update(operator.nats.signing_keys)
        self.system_account = options.system_account
        if not self.system_account and len(operators) == 1:
            self.system_account = operators[0].nats.system_account
        self.accounts: dict[str, AccountClaims] = {}
        for _, token in options.resolver_preload:
            claims = decode_account_claims(token)
            if claims.issuer in self._trusted_keys:
                self.accounts[claims.subject] = claims

    def check(self, token: str, signature: str, nonce: str, client_ip: str, now_s: float) -> UserGrant:
        """Check a user's JWT and the signature of the nonce; return what it grants or raise AuthError."""
        user = decode_user_claims(token)
        account = self.accounts.get(user.nats.issuer_account or user.issuer)
        if account is None or not account.is_valid_at(now_s):
            raise AuthError("the account is unknown, or its JWT is expired or not yet valid")
        user_permissions = self._get_user_permissions(user, account)
        if not user.is_valid_at(now_s):
            raise AuthError("the user's JWT is expired or not yet valid")
        if is_revoked(account.nats.revocations, user.subject, user.issued_s):
            raise AuthError("the user's JWT was revoked")
        if user_permissions.bearer_token:
            if account.nats.limits.disallow_bearer:
                raise AuthError("the account does not allow bearer tokens")
        elif not nonce or not verify(user.subject, "U", nonce.encode(), decode_signature(signature)):
            raise AuthError("the signature of the nonce is invalid")
        if not is_in_networks(client_ip, user_permissions.src):
            raise AuthError("the client's address is not in an allowed network")
        until_s = allowed_until(user_permissions.times, user_permissions.times_location, now_s)
        expiries = [(float(end), USER_EXPIRED) for end in (user.expires_s, until_s) if end]
        if account.expires_s:
            expiries.append((float(account.expires_s), ACCOUNT_EXPIRED))
        expires_s, expiry_error = min(expiries, default=(0.0, ""))
        return UserGrant(
            user=user.subject,
            account=account.subject,
            permissions=make_permissions(_with_default_permissions(user_permissions, account)),
            connection_types=frozenset(kind.upper() for kind in user_permissions.allowed_connection_types),
            subscriptions=user_permissions.subs,
            payload=user_permissions.payload,
            expires_s=expires_s,
            expiry_error=expiry_error,
            issued_s=user.issued_s,
            name=user.name,
        )

    def _get_user_permissions(self, user: UserClaims, account: AccountClaims) -> JwtUserPermissions:
        """Return the user's permissions: its own, or those of the scope of the signing key."""
        if user.issuer == account.subject:
            return user.nats
        for key in account.nats.signing_keys:
            if isinstance(key, SigningScope):
                if key.key == user.issuer:
                    _check_no_permissions(user)
                    return _fill_template(key.template, user, account)
            elif key == user.issuer:
                return user.nats
        raise AuthError("the user's JWT is not signed by its account")

    def is_valid(self, grant: UserGrant, now_s: float) -> bool:
        """Whether a user that was accepted still would be, as far as its account is concerned."""
        account = self.accounts.get(grant.account)
        if account is None or not account.is_valid_at(now_s):
            return False
        return not is_revoked(account.nats.revocations, grant.user, grant.issued_s)

    def make_account_configs(self, now_s: float) -> tuple[AccountOptions, ...]:
        """Return the configurations of the accounts."""
        return tuple(self._make_account_config(claims, now_s) for claims in self.accounts.values())

    def next_token_change(self, now_s: float) -> float:
        """Return when the next activation token becomes valid or expires; 0 if none does."""
        token_times: list[int] = []
        for account in self.accounts.values():
            for entry in account.nats.imports:
                if entry.token:
                    with suppress(AuthError):
                        claims, _ = decode_activation_claims(entry.token)
                        token_times += [claims.not_before_s, claims.expires_s]
        return min((token_time for token_time in token_times if token_time > now_s), default=0)

    def _make_account_config(self, claims: AccountClaims, now_s: float) -> AccountOptions:
        body, caps = claims.nats, claims.nats.limits
        exports = tuple(_make_export(entry) for entry in body.exports)
        imports = [self._make_import(entry, claims, now_s) for entry in body.imports]
        return AccountOptions(
            claims.subject,
            jetstream_limits=make_jetstream_limits(claims),
            limits=AccountLimits(
                connections=caps.conn, leafs=caps.leaf, subscriptions=caps.subs, payload=caps.payload
            ),
            exports=exports,
            imports=tuple(entry for entry in imports if entry is not None),
            subject_mappings=_make_subject_mappings(claims),
            trace=TraceOptions(body.trace.dest, body.trace.sampling or 100) if body.trace else NO_TRACE,
        )

    def _make_import(self, entry: JwtImport, importer: AccountClaims, now_s: float) -> Import | None:
        subject = entry.subject.encode()
        local = (entry.local_subject or entry.to or entry.subject).encode()
        if entry.type == "stream" and entry.to and not entry.local_subject:
            local = f"{entry.to}.{entry.subject}".encode()
        elif entry.type == "service" and entry.to and not entry.local_subject:
            # Before `local_subject` existed, the fields of a service import were swapped.
            subject, local = entry.to.encode(), subject
        kind = "stream" if entry.type == "stream" else "service"
        if not subjects.is_valid(subject):
            return None
        token_accepted = bool(entry.token) and self._is_import_authorized(entry, subject, importer, now_s)
        return Import(
            kind,  # type: ignore[arg-type]
            entry.account,
            subject,
            local,
            share=entry.share,
            token_accepted=token_accepted,
            allow_trace=entry.allow_trace,
        )

    def _is_import_authorized(
        self, entry: JwtImport, subject: bytes, importer: AccountClaims, now_s: float
    ) -> bool:
        """Whether the exporting account allows this import with a valid activation token."""
        exporter = self.accounts.get(entry.account)
        if exporter is None:
            return False
        try:
            claims, body = decode_activation_claims(entry.token)
        except AuthError:
            return False
        signers = {exporter.subject, *_get_signing_keys(exporter)}
        owner = body.issuer_account or claims.issuer
        if claims.issuer not in signers or owner != exporter.subject or claims.subject != importer.subject:
            return False
        if not claims.is_valid_at(now_s) or body.kind != entry.type:
            return False
        for export in exporter.nats.exports:
            covers_subject = subjects.is_subset(subject, export.subject.encode())
            if covers_subject and is_revoked(export.revocations, importer.subject, claims.issued_s):
                return False
        return subjects.is_subset(subject, body.subject.encode())


def is_revoked(revocations: dict[str, int], key: str, issued_s: int) -> bool:
    """Whether a token for a key, issued at that time, is revoked."""
    return any(name in revocations and issued_s <= revocations[name] for name in (ALL_USERS, key))


def _get_signing_keys(account: AccountClaims) -> Iterable[str]:
    return (key if isinstance(key, str) else key.key for key in account.nats.signing_keys)


def _check_no_permissions(user: UserClaims) -> None:
    """Raise if a JWT signed with a scope has permissions of its own."""
    own_permissions = user.nats
    if (
        own_permissions.pub.allow
        or own_permissions.pub.deny
        or own_permissions.sub.allow
        or own_permissions.sub.deny
        or own_permissions.resp
        or own_permissions.bearer_token
    ):
        raise AuthError("a JWT signed by a scoped signing key must not have its own permissions")


def _with_default_permissions(
    user_permissions: JwtUserPermissions, account: AccountClaims
) -> JwtUserPermissions:
    own_permissions = (
        user_permissions.pub.allow,
        user_permissions.pub.deny,
        user_permissions.sub.allow,
        user_permissions.sub.deny,
        user_permissions.resp,
    )
    return user_permissions if any(own_permissions) else account.nats.default_permissions


def make_permissions(user_permissions: JwtUserPermissions) -> Permissions | None:
    """Return the permissions of a JWT; None if it has none."""
    pub, sub, resp = user_permissions.pub, user_permissions.sub, user_permissions.resp
    if not (pub.allow or pub.deny or sub.allow or sub.deny or resp):
        return None
    allow: list[bytes] | None = [entry.encode() for entry in pub.allow] or None
    if resp is not None and allow is None:
        allow = []
    default = ResponsePermission()
    return Permissions(
        publish_allow=allow,
        publish_deny=[entry.encode() for entry in pub.deny],
        subscribe_allow=[entry.encode() for entry in sub.allow],
        subscribe_deny=[entry.encode() for entry in sub.deny],
        responses=None
        if resp is None
        else ResponsePermission(resp.max or default.max_msgs, resp.ttl or default.expires_ns),
    )


# Templates of scoped signing keys


def _fill_template(
    template: JwtUserPermissions, user: UserClaims, account: AccountClaims
) -> JwtUserPermissions:
    """Fill in the template of a scope: replace `{{name()}}` and the like with the user's values."""
    import msgspec

    tags = {"user": user.nats.tags, "account": ()}

    def fill(entries: tuple[str, ...], *, deny: bool) -> tuple[str, ...]:
        result: list[str] = []
        for entry in entries:
            expanded = _expand_entry(entry, user, account, tags)
            if not expanded and deny:
                raise AuthError("a deny rule of the scoped signing key has no value for this user")
            result += [text for text in expanded if subjects.is_valid(text.split()[0].encode())]
        if entries and not result:
            raise AuthError("the permissions of the scoped signing key have no values for this user")
        return tuple(result)

    pub, sub = template.pub, template.sub
    return msgspec.structs.replace(
        template,
        pub=msgspec.structs.replace(pub, allow=fill(pub.allow, deny=False), deny=fill(pub.deny, deny=True)),
        sub=msgspec.structs.replace(sub, allow=fill(sub.allow, deny=False), deny=fill(sub.deny, deny=True)),
    )


def _expand_entry(
    entry: str, user: UserClaims, account: AccountClaims, tags: dict[str, tuple[str, ...]]
) -> list[str]:
    """Expand an entry: a tag with several values yields several rules."""
    values: dict[str, str] = {
        "{{name()}}": user.name,
        "{{subject()}}": user.subject,
        "{{account-name()}}": account.name,
        "{{account-subject()}}": account.subject,
    }
    for placeholder, value in values.items():
        entry = entry.replace(placeholder, value)
    found = [entry]
    while any("{{tag(" in text for text in found):
        text = next(text for text in found if "{{tag(" in text)
        found.remove(text)
        placeholder = text[text.index("{{tag(") :].partition("}}")[0] + "}}"
        name = placeholder[len("{{tag(") :].partition(")")[0].strip().lower()
        matching = [tag.partition(":")[2] for tag in tags["user"] if tag.lower().partition(":")[0] == name]
        found += [text.replace(placeholder, value) for value in matching]
    return [text for text in found if "{{" not in text]


# Times of day


def allowed_until(times: tuple[TimeRange, ...], zone: str, now_s: float) -> float:
    """Return when the current allowed time of day ends; 0 is never. Raise AuthError if this time is not allowed."""
    if not times:
        return 0.0
    try:
        time_zone: datetime.tzinfo = ZoneInfo(zone) if zone else datetime.UTC
    except (KeyError, ValueError, OSError):
        raise AuthError("the JWT has an unknown time zone") from None
    now = datetime.datetime.fromtimestamp(now_s, time_zone)
    second = now.hour * 3600 + now.minute * 60 + now.second
    for time_range in times:
        start, end = _parse_second_of_day(time_range.start), _parse_second_of_day(time_range.end)
        length = (end - start) % _DAY_S
        if (second - start) % _DAY_S < length:
            return now_s + (end - second) % _DAY_S
    raise AuthError("the user may not connect at this time of day")


def _parse_second_of_day(text: str) -> int:
    try:
        time_of_day = datetime.time.fromisoformat(text)
    except ValueError:
        raise AuthError("the JWT has malformed times") from None
    return time_of_day.hour * 3600 + time_of_day.minute * 60 + time_of_day.second


# Accounts


def _make_subject_mappings(claims: AccountClaims) -> tuple[SubjectMapping, ...]:
    """Return the mappings of an account; invalid ones are left out, as with imports."""
    result = []
    for source, targets in claims.nats.mappings.items():
        found = tuple(
            MappingDestination(each.subject, each.weight or WEIGHT_TOTAL)
            for each in targets
            if not each.cluster
        )
        subject_mapping = SubjectMapping(source, found)
        try:
            subject_mapping.check()
        except MappingError:
            continue
        result.append(subject_mapping)
    return tuple(result)


def _make_export(entry: JwtExport) -> Export:
    return Export(
        "stream" if entry.type == "stream" else "service",
        entry.subject.encode(),
        account_token=entry.account_token_position,
        token_required=entry.token_req,
        revoked=tuple(entry.revocations.items()),
        response=_RESPONSE_TYPES.get(entry.response_type, "singleton"),  # type: ignore[arg-type]
        response_timeout_ns=entry.response_threshold or RESPONSE_TIMEOUT_NS,
        allow_trace=entry.allow_trace,
    )
