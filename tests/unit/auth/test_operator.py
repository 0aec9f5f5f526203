"""JWTs and the chain of trust: what each element may grant, and when it is valid."""

from __future__ import annotations

import datetime
import time
from pathlib import Path
from typing import Any

import pytest

from headrace.auth.jwt import TimeRange, decode_user_claims, is_in_networks
from headrace.auth.operator import OperatorTrust, allowed_until, is_revoked
from headrace.config.config_parser import parse_config
from headrace.config.options import ServerOptions, from_keywords
from headrace.config.schema import interpret
from headrace.errors import AuthError
from support.identities import Key, Realm

NOON = datetime.datetime(2026, 6, 1, 12, 0, 0, tzinfo=datetime.UTC).timestamp()


def trust(realm: Realm) -> OperatorTrust:
    draft = interpret(parse_config(realm.config(), "realm.conf", lambda path: "", {}))
    return OperatorTrust(from_keywords(**draft.settings))


def check(realm: Realm, user: tuple[Key, str], now_s: float | None = None) -> Any:
    key, token = user
    return trust(realm).check(token, key.sign_nonce("nonce"), "nonce", "127.0.0.1", now_s or time.time())


@pytest.mark.parametrize(
    ("times", "zone", "seconds_left"),
    [
        ((), "", None),
        ((("08:00:00", "13:00:00"),), "", 3600),
        ((("13:00:00", "14:00:00"), ("11:00:00", "12:30:00")), "", 1800),
        ((("22:00:00", "12:00:01"),), "", 1),
        ((("14:00:00", "15:00:00"),), "Europe/Berlin", 3600),
    ],
)
def test_times_of_day(times: tuple[tuple[str, str], ...], zone: str, seconds_left: int | None) -> None:
    ranges = tuple(TimeRange(start, end) for start, end in times)
    until = allowed_until(ranges, zone, NOON)
    assert until == (0.0 if seconds_left is None else NOON + seconds_left)


@pytest.mark.parametrize(
    ("start", "end", "zone"),
    [
        ("13:00:00", "14:00:00", ""),
        ("08:00:00", "12:00:00", ""),
        ("x", "y", ""),
        ("08:00:00", "13:00:00", "Mars/Base"),
    ],
)
def test_other_times_of_day(start: str, end: str, zone: str) -> None:
    with pytest.raises(AuthError):
        allowed_until((TimeRange(start, end),), zone, NOON)


@pytest.mark.parametrize(
    ("address", "networks", "good"),
    [
        ("10.1.2.3", (), True),
        ("10.1.2.3", ("10.0.0.0/8",), True),
        ("10.1.2.3", ("192.168.0.0/16", "10.1.2.3/32"), True),
        ("10.1.2.3", "192.168.0.0/16, 10.1.2.0/24", True),
        ("10.1.2.3", ("192.168.0.0/16",), False),
        ("::1", ("10.0.0.0/8",), False),
        ("nonsense", ("10.0.0.0/8",), False),
        ("10.1.2.3", ("nonsense",), False),
    ],
)
def test_source_networks_restrict_users(address: str, networks: tuple[str, ...] | str, good: bool) -> None:
    assert is_in_networks(address, networks) is good


def test_a_jwt_issued_before_a_revocation_is_revoked() -> None:
    assert is_revoked({"K": 100}, "K", 100)
    assert is_revoked({"*": 100}, "K", 99)
    assert not is_revoked({"K": 100}, "K", 101)
    assert not is_revoked({"L": 100}, "K", 1)


def test_an_operators_token_from_a_file(tmp_path: Path) -> None:
    realm = Realm()
    realm.account("A")
    token = realm.operator.token(realm.operator.public, "operator", name="OP")
    file = tmp_path / "operator.jwt"
    file.write_text(f"-----BEGIN NATS OPERATOR JWT-----\n{token}\n------END NATS OPERATOR JWT------\n")
    text = realm.config().split("\n", 1)[1]
    draft = interpret(parse_config(f"operator: '{file}'\n{text}", "realm.conf", lambda path: "", {}))
    assert draft.settings["operators"] == (token,)
    assert set(OperatorTrust(from_keywords(**draft.settings)).accounts) == {
        key.public for key in realm.accounts.values()
    }


def test_trusted_keys_alone() -> None:
    realm = Realm()
    account = realm.account("A")
    options = ServerOptions(
        trusted_keys=(realm.operator.public,), resolver_preload=((account.public, realm.tokens["A"]),)
    )
    assert set(OperatorTrust(options).accounts) == {account.public}
    stranger = ServerOptions(trusted_keys=(Key("O").public,), resolver_preload=options.resolver_preload)
    assert OperatorTrust(stranger).accounts == {}


def scoped(template: dict[str, Any], **claims: Any) -> tuple[Realm, tuple[Key, str]]:
    realm, signer, user = Realm(), Key("A"), Key("U")
    scope = {"kind": "user_scope", "key": signer.public, "role": "r", "template": template}
    realm.account("A", signing_keys=[scope])
    token = signer.token(user.public, "user", name="bob", issuer_account=realm.accounts["A"].public, **claims)
    return realm, (user, token)


def test_permission_templates_are_filled_in() -> None:
    allow = ["{{name()}}.x", "{{account-name()}}.{{tag(team)}}.>", "{{tag(none)}}.y"]
    realm, user = scoped({"pub": {"allow": allow}, "sub": {}}, tags=["team:red", "team:blue", "other:z"])
    rules = check(realm, user).permissions
    assert set(rules.publish_allow) == {b"bob.x", b"A.red.>", b"A.blue.>"}


def test_a_denial_that_cannot_be_filled_in_lets_nobody_in() -> None:
    realm, user = scoped({"pub": {"deny": ["{{tag(none)}}.y"]}, "sub": {}})
    with pytest.raises(AuthError):
        check(realm, user)


def test_a_scoped_token_brings_no_rules() -> None:
    realm, user = scoped({"pub": {"allow": ["a"]}, "sub": {}}, pub={"allow": [">"]})
    with pytest.raises(AuthError):
        check(realm, user)


def test_a_user_signs_nobody() -> None:
    realm = Realm()
    realm.account("A")
    key, _ = realm.user("A")
    forged = key.token(Key("U").public, "user")
    with pytest.raises(AuthError):
        decode_user_claims(forged)


def test_default_permissions_of_the_account() -> None:
    realm = Realm()
    realm.account("A")
    realm.account("A", default_permissions={"pub": {"allow": ["d"]}, "sub": {}})
    assert check(realm, realm.user("A")).permissions.publish_allow == (b"d",)
    assert check(realm, realm.user("A", pub={"allow": ["own"]})).permissions.publish_allow == (b"own",)


@pytest.mark.parametrize(
    "case", ["good", "other account", "other signer", "expired", "wrong kind", "narrower", "revoked"]
)
def test_a_private_import_needs_a_valid_activation(case: str) -> None:
    """Only a token that the exporting account signed for this account and subject allows a private import."""
    realm = Realm()
    a, b = realm.accounts.setdefault("A", Key("A")), realm.accounts.setdefault("B", Key("A"))
    now = int(time.time())
    signer = Key("A") if case == "other signer" else a
    about = Key("A").public if case == "other account" else b.public
    token = signer.token(
        about,
        "activation",
        claims={"exp": now - 5} if case == "expired" else {},
        subject="p.x" if case == "narrower" else "p.>",
        kind="service" if case == "wrong kind" else "stream",
    )
    revoked = {b.public: now + 5} if case == "revoked" else {}
    export = {"name": "p", "subject": "p.>", "type": "stream", "token_req": True, "revocations": revoked}
    realm.account("A", exports=[export])
    wanted = {"name": "p", "subject": "p.>", "account": a.public, "type": "stream", "token": token}
    realm.account("B", imports=[wanted])
    plans = {plan.name: plan for plan in trust(realm).make_account_configs(time.time())}
    [made] = plans[b.public].imports
    assert made.token_accepted is (case == "good")
