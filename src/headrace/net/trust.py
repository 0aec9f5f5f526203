"""Operator mode: accounts and users are what signed tokens say.

Owns the chain: the operator's key signs accounts, an account's key (or one of its signing keys) signs users, and a
user signs the server's nonce. A link that is missing, expired or revoked ends in a refusal; nothing is believed
because of where it came from.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

from headrace.api.limits import Limits
from headrace.broker import AccountLimits, Permissions
from headrace.broker.exports import PATIENCE_NS, Export, Import
from headrace.broker.permissions import Responses
from headrace.broker.redirects import FULL, Destination, Redirect, RedirectError
from headrace.errors import AuthError
from headrace.net.nkeys import signature_of, verify
from headrace.net.options import AccountOptions, Options
from headrace.net.tokens import (
    AccountClaims,
    AccountExport,
    AccountImport,
    SigningScope,
    TimeRange,
    UserClaims,
    UserRules,
    account_claims,
    activation_claims,
    inside,
    operator_claims,
    user_claims,
)
from headrace.protocol import subjects

_RESPONSE_TYPES = {"Stream": "stream", "Chunked": "chunked"}
_DAY_S = 86_400
EVERYBODY = "*"
USER_EXPIRED = "User Authentication Expired"
ACCOUNT_EXPIRED = "Account Authentication Expired"


class Grant(NamedTuple):
    """What a user's token gives."""

    user: str
    account: str
    permissions: Permissions | None
    connections: frozenset[str]
    subscriptions: int
    payload: int
    expires_s: float  # 0: never
    expiry: str  # what is said then
    issued_s: int
    name: str


class Trust:
    """The operators that are believed, and the accounts that they signed."""

    def __init__(self, options: Options) -> None:
        operators = [operator_claims(token) for token in options.operators]
        self._keys = set(options.trusted_keys)
        for operator in operators:
            if not operator.nats.strict_signing_key_usage:
                self._keys.add(operator.subject)
            self._keys.update(operator.nats.signing_keys)
        self.system_account = options.system_account
        if not self.system_account and len(operators) == 1:
            self.system_account = operators[0].nats.system_account
        self.accounts: dict[str, AccountClaims] = {}
        for _, token in options.resolver_preload:
            claims = account_claims(token)
            if claims.issuer in self._keys:
                self.accounts[claims.subject] = claims

    def check(self, token: str, signature: str, nonce: str, client_ip: str, now_s: float) -> Grant:
        """What a user's token gives to somebody who signed the nonce; AuthError when it is nothing."""
        user = user_claims(token)
        account = self.accounts.get(user.nats.issuer_account or user.issuer)
        if account is None or not account.current(now_s):
            raise AuthError("the account is not known, or its token is not valid now")
        rules = self._rules(user, account)
        if not user.current(now_s):
            raise AuthError("the user's token is not valid now")
        if is_revoked(account.nats.revocations, user.subject, user.issued_s):
            raise AuthError("the user's token was revoked")
        if rules.bearer_token:
            if account.nats.limits.disallow_bearer:
                raise AuthError("the account takes no bearer tokens")
        elif not nonce or not verify(user.subject, "U", nonce.encode(), signature_of(signature)):
            raise AuthError("the nonce was not signed by the user")
        if not inside(client_ip, rules.src):
            raise AuthError("the user does not come from an allowed network")
        until_s = allowed_until(rules.times, rules.times_location, now_s)
        ends = [(float(end), USER_EXPIRED) for end in (user.expires_s, until_s) if end]
        if account.expires_s:
            ends.append((float(account.expires_s), ACCOUNT_EXPIRED))
        expires_s, expiry = min(ends, default=(0.0, ""))
        return Grant(
            user=user.subject,
            account=account.subject,
            permissions=permissions_of(_or_default(rules, account)),
            connections=frozenset(kind.upper() for kind in rules.allowed_connection_types),
            subscriptions=rules.subs,
            payload=rules.payload,
            expires_s=expires_s,
            expiry=expiry,
            issued_s=user.issued_s,
            name=user.name,
        )

    def _rules(self, user: UserClaims, account: AccountClaims) -> UserRules:
        """The user's rules: its own, or those of the scope of the key that signed for it."""
        if user.issuer == account.subject:
            return user.nats
        for key in account.nats.signing_keys:
            if isinstance(key, SigningScope):
                if key.key == user.issuer:
                    _check_bare(user)
                    return _filled(key.template, user, account)
            elif key == user.issuer:
                return user.nats
        raise AuthError("the user's token is not signed by its account")

    def stands(self, grant: Grant, now_s: float) -> bool:
        """Whether somebody who was let in would be still, as far as the account is concerned."""
        account = self.accounts.get(grant.account)
        if account is None or not account.current(now_s):
            return False
        return not is_revoked(account.nats.revocations, grant.user, grant.issued_s)

    def plans(self, now_s: float) -> tuple[AccountOptions, ...]:
        """The accounts as the server sets them up."""
        return tuple(self._plan(claims, now_s) for claims in self.accounts.values())

    def next_turn(self, now_s: float) -> float:
        """When the first of the tokens that let accounts import begins or ends to count; 0: none is ahead."""
        turns: list[int] = []
        for account in self.accounts.values():
            for entry in account.nats.imports:
                if entry.token:
                    with suppress(AuthError):
                        claims, _ = activation_claims(entry.token)
                        turns += [claims.not_before_s, claims.expires_s]
        return min((turn for turn in turns if turn > now_s), default=0)

    def _plan(self, claims: AccountClaims, now_s: float) -> AccountOptions:
        body, caps = claims.nats, claims.nats.limits
        exports = tuple(_export(entry) for entry in body.exports)
        imports = [self._import(entry, claims, now_s) for entry in body.imports]
        return AccountOptions(
            claims.subject,
            streams=_stream_limits(claims),
            limits=AccountLimits(
                connections=caps.conn, leafs=caps.leaf, subscriptions=caps.subs, payload=caps.payload
            ),
            exports=exports,
            imports=tuple(entry for entry in imports if entry is not None),
            redirects=_redirects(claims),
        )

    def _import(self, entry: AccountImport, importer: AccountClaims, now_s: float) -> Import | None:
        subject = entry.subject.encode()
        local = (entry.local_subject or entry.to or entry.subject).encode()
        if entry.type == "stream" and entry.to and not entry.local_subject:
            local = f"{entry.to}.{entry.subject}".encode()
        elif entry.type == "service" and entry.to and not entry.local_subject:
            # Before `local_subject` a service's fields were the other way round.
            subject, local = entry.to.encode(), subject
        kind = "stream" if entry.type == "stream" else "service"
        if not subjects.valid(subject):
            return None
        granted = bool(entry.token) and self._granted(entry, subject, importer, now_s)
        return Import(kind, entry.account, subject, local, share=entry.share, granted=granted)  # type: ignore[arg-type]

    def _granted(self, entry: AccountImport, subject: bytes, importer: AccountClaims, now_s: float) -> bool:
        """Whether the exporting account signed that this one may import a subject of its."""
        exporter = self.accounts.get(entry.account)
        if exporter is None:
            return False
        try:
            claims, body = activation_claims(entry.token)
        except AuthError:
            return False
        signers = {exporter.subject, *_plain_keys(exporter)}
        owner = body.issuer_account or claims.issuer
        if claims.issuer not in signers or owner != exporter.subject or claims.subject != importer.subject:
            return False
        if not claims.current(now_s) or body.kind != entry.type:
            return False
        for export in exporter.nats.exports:
            fits = subjects.subset(subject, export.subject.encode())
            if fits and is_revoked(export.revocations, importer.subject, claims.issued_s):
                return False
        return subjects.subset(subject, body.subject.encode())


def is_revoked(revocations: dict[str, int], key: str, issued_s: int) -> bool:
    """Whether a token for a key, issued then, counts no more."""
    return any(name in revocations and issued_s <= revocations[name] for name in (EVERYBODY, key))


def _plain_keys(account: AccountClaims) -> Iterable[str]:
    return (key if isinstance(key, str) else key.key for key in account.nats.signing_keys)


def _check_bare(user: UserClaims) -> None:
    """A token signed with a scope brings no rules of its own."""
    mine = user.nats
    if mine.pub.allow or mine.pub.deny or mine.sub.allow or mine.sub.deny or mine.resp or mine.bearer_token:
        raise AuthError("a token signed for a role carries no rules of its own")


def _or_default(rules: UserRules, account: AccountClaims) -> UserRules:
    mine = (rules.pub.allow, rules.pub.deny, rules.sub.allow, rules.sub.deny, rules.resp)
    return rules if any(mine) else account.nats.default_permissions


def permissions_of(rules: UserRules) -> Permissions | None:
    """The rules of a token; None when there are none."""
    pub, sub, resp = rules.pub, rules.sub, rules.resp
    if not (pub.allow or pub.deny or sub.allow or sub.deny or resp):
        return None
    allow: list[bytes] | None = [entry.encode() for entry in pub.allow] or None
    if resp is not None and allow is None:
        allow = []
    default = Responses()
    return Permissions(
        publish_allow=allow,
        publish_deny=[entry.encode() for entry in pub.deny],
        subscribe_allow=[entry.encode() for entry in sub.allow],
        subscribe_deny=[entry.encode() for entry in sub.deny],
        responses=None
        if resp is None
        else Responses(resp.max or default.most, resp.ttl or default.expires_ns),
    )


# Templates of scoped signing keys


def _filled(template: UserRules, user: UserClaims, account: AccountClaims) -> UserRules:
    """A scope's rules with the user's own values in place of `{{name()}}` and the like."""
    import msgspec

    tags = {"user": user.nats.tags, "account": ()}

    def fill(entries: tuple[str, ...], *, deny: bool) -> tuple[str, ...]:
        made: list[str] = []
        for entry in entries:
            filled = _fill(entry, user, account, tags)
            if not filled and deny:
                raise AuthError("a denial of the role cannot be filled in")
            made += [text for text in filled if subjects.valid(text.split()[0].encode())]
        if entries and not made:
            raise AuthError("the role's rules cannot be filled in")
        return tuple(made)

    pub, sub = template.pub, template.sub
    return msgspec.structs.replace(
        template,
        pub=msgspec.structs.replace(pub, allow=fill(pub.allow, deny=False), deny=fill(pub.deny, deny=True)),
        sub=msgspec.structs.replace(sub, allow=fill(sub.allow, deny=False), deny=fill(sub.deny, deny=True)),
    )


def _fill(
    entry: str, user: UserClaims, account: AccountClaims, tags: dict[str, tuple[str, ...]]
) -> list[str]:
    """All that an entry stands for: a tag with several values makes several rules."""
    values: dict[str, str] = {
        "{{name()}}": user.name,
        "{{subject()}}": user.subject,
        "{{account-name()}}": account.name,
        "{{account-subject()}}": account.subject,
    }
    for mark, value in values.items():
        entry = entry.replace(mark, value)
    found = [entry]
    while any("{{tag(" in text for text in found):
        text = next(text for text in found if "{{tag(" in text)
        found.remove(text)
        mark = text[text.index("{{tag(") :].partition("}}")[0] + "}}"
        name = mark[len("{{tag(") :].partition(")")[0].strip().lower()
        matching = [tag.partition(":")[2] for tag in tags["user"] if tag.lower().partition(":")[0] == name]
        found += [text.replace(mark, value) for value in matching]
    return [text for text in found if "{{" not in text]


# Times of day


def allowed_until(times: tuple[TimeRange, ...], zone: str, now_s: float) -> float:
    """When the part of the day ends in which somebody may be there; 0 is never. AuthError when it is none now."""
    if not times:
        return 0.0
    try:
        place: datetime.tzinfo = ZoneInfo(zone) if zone else datetime.UTC
    except (KeyError, ValueError, OSError):
        raise AuthError("the token names an unknown time zone") from None
    now = datetime.datetime.fromtimestamp(now_s, place)
    second = now.hour * 3600 + now.minute * 60 + now.second
    for part in times:
        start, end = _second_of_day(part.start), _second_of_day(part.end)
        length = (end - start) % _DAY_S
        if (second - start) % _DAY_S < length:
            return now_s + (end - second) % _DAY_S
    raise AuthError("the user may not be there at this time of day")


def _second_of_day(text: str) -> int:
    try:
        clock = datetime.time.fromisoformat(text)
    except ValueError:
        raise AuthError("the token's times cannot be read") from None
    return clock.hour * 3600 + clock.minute * 60 + clock.second


# Accounts


def _stream_limits(claims: AccountClaims) -> Limits | None:
    caps = claims.nats.limits
    tier: dict[str, Any] = caps.tiered_limits.get("R1", {})
    value: Callable[[str], int] = lambda name: int(tier.get(name, getattr(caps, name)))  # noqa: E731
    memory, disk = value("mem_storage"), value("disk_storage")
    if not memory and not disk:
        return None
    return Limits(
        max_memory=memory,
        max_storage=disk,
        max_streams=value("streams") or -1,
        max_consumers=value("consumer") or -1,
        max_ack_pending=value("max_ack_pending") or -1,
        memory_max_stream_bytes=value("mem_max_stream_bytes") or -1,
        storage_max_stream_bytes=value("disk_max_stream_bytes") or -1,
        max_bytes_required=bool(tier.get("max_bytes_required", caps.max_bytes_required)),
    )


def _redirects(claims: AccountClaims) -> tuple[Redirect, ...]:
    """The mappings of an account; what makes no sense is left out, as with imports."""
    made = []
    for source, targets in claims.nats.mappings.items():
        found = tuple(Destination(each.subject, each.weight or FULL) for each in targets if not each.cluster)
        redirect = Redirect(source, found)
        try:
            redirect.check()
        except RedirectError:
            continue
        made.append(redirect)
    return tuple(made)


def _export(entry: AccountExport) -> Export:
    return Export(
        "stream" if entry.type == "stream" else "service",
        entry.subject.encode(),
        account_token=entry.account_token_position,
        token_required=entry.token_req,
        revoked=tuple(entry.revocations.items()),
        response=_RESPONSE_TYPES.get(entry.response_type, "singleton"),  # type: ignore[arg-type]
        patience_ns=entry.response_threshold or PATIENCE_NS,
    )
