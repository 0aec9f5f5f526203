"""Which identity a CONNECT gets."""

import pytest

from headrace.auth.authenticator import (
    ANONYMOUS,
    AuthContext,
    Authenticator,
    RecheckResult,
    UserIdentity,
    is_bcrypt_hash,
    verify_secret,
)
from headrace.config.options import AccountOptions, OptionsError, ServerOptions, User
from headrace.errors import AuthError


def test_nobody_has_to_say_who_they_are() -> None:
    authenticator = Authenticator(ServerOptions())
    assert not authenticator.required
    assert authenticator.check({}) == ANONYMOUS
    assert authenticator.check({"user": "anybody", "pass": "anything"}) == ANONYMOUS


@pytest.mark.parametrize(
    ("connect", "expected"),
    [
        ({"user": "ada", "pass": "secret"}, UserIdentity("ada")),
        ({"user": "ada", "pass": "Secret"}, None),
        ({"user": "ada", "pass": ""}, None),
        ({"user": "ada"}, None),
        ({"user": "bob", "pass": "secret"}, None),
        ({"user": "", "pass": ""}, None),
        ({"auth_token": "secret"}, None),
        ({"user": ["ada"], "pass": "secret"}, None),
        ({"user": "ada", "pass": 1}, None),
        ({}, None),
    ],
)
def test_user_and_password(connect: dict[str, object], expected: UserIdentity | None) -> None:
    authenticator = Authenticator(ServerOptions(user="ada", password="secret"))
    assert authenticator.required
    assert authenticator.check(connect) == expected


@pytest.mark.parametrize(
    ("connect", "known"),
    [
        ({"auth_token": "t0ken"}, True),
        ({"auth_token": "t0ke"}, False),
        ({"auth_token": None}, False),
        ({"user": "t0ken"}, False),
        ({"auth_token": "tökén"}, False),
        ({}, False),
    ],
)
def test_only_the_right_token_authenticates(connect: dict[str, object], known: bool) -> None:
    assert (Authenticator(ServerOptions(token="t0ken")).check(connect) is not None) is known


def test_several_users_with_accounts_and_one_for_strangers() -> None:
    users = (User("a", "1", "A"), User("guest", "2"))
    options = ServerOptions(users=users, accounts=(AccountOptions("A"),), no_auth_user="guest")
    authenticator = Authenticator(options)
    assert not authenticator.required
    assert authenticator.check({"user": "a", "pass": "1"}) == UserIdentity("a", "A")
    assert authenticator.check({}) == UserIdentity("guest")
    assert authenticator.check({"user": "a", "pass": "wrong"}) is None


def test_a_user_without_a_password_needs_a_certificate() -> None:
    authenticator = Authenticator(ServerOptions(users=(User("a"),)))
    for credentials in ({"user": "a"}, {"user": "a", "pass": ""}, {}, {"user": ""}):
        assert authenticator.check(credentials) is None
    approach = AuthContext(certificate={"subjectAltName": (("DNS", "a"),)}, map_users=True)
    assert authenticator.check({}, approach) == UserIdentity("a")


def test_a_user_of_an_unknown_account_is_refused() -> None:
    with pytest.raises(OptionsError, match="'B'"):
        Authenticator(ServerOptions(users=(User("a", "1", "B"),)))


def test_the_user_for_strangers_has_to_exist() -> None:
    with pytest.raises(OptionsError, match="'nobody'"):
        Authenticator(ServerOptions(users=(User("a", "1"),), no_auth_user="nobody"))


@pytest.mark.parametrize(
    ("before", "after", "identity", "standing"),
    [
        (ServerOptions(token="t"), ServerOptions(token="t"), ANONYMOUS, RecheckResult.ACCEPTED),
        (ServerOptions(token="t"), ServerOptions(token="u"), ANONYMOUS, RecheckResult.VIOLATION),
        (ServerOptions(), ServerOptions(), ANONYMOUS, RecheckResult.ACCEPTED),
        (ServerOptions(), ServerOptions(user="a", password="1"), ANONYMOUS, RecheckResult.VIOLATION),
        (
            ServerOptions(user="a", password="1"),
            ServerOptions(user="a", password="1"),
            UserIdentity("a"),
            RecheckResult.ACCEPTED,
        ),
        (
            ServerOptions(user="a", password="1"),
            ServerOptions(user="a", password="2"),
            UserIdentity("a"),
            RecheckResult.VIOLATION,
        ),
        (
            ServerOptions(user="a", password="1"),
            ServerOptions(user="b", password="1"),
            UserIdentity("a"),
            RecheckResult.USER_REMOVED,
        ),
        (ServerOptions(user="a", password="1"), ServerOptions(), UserIdentity("a"), RecheckResult.ACCEPTED),
    ],
)
def test_what_becomes_of_clients_when_the_users_change(
    before: ServerOptions, after: ServerOptions, identity: UserIdentity, standing: RecheckResult
) -> None:
    assert Authenticator(after).recheck(identity, Authenticator(before))[0] is standing


def test_hashes_are_told_from_plain_secrets() -> None:
    assert is_bcrypt_hash("$2a$11$abcdefghijklmnopqrstuv")
    assert is_bcrypt_hash("$2b$04$abc")
    assert not is_bcrypt_hash("$2z$04$abc")
    assert not is_bcrypt_hash("plain $2a$11$")


def test_a_hash_is_checked_by_bcrypt_or_refused_at_start() -> None:
    try:
        import bcrypt
    except ModuleNotFoundError:
        with pytest.raises(AuthError, match=r"headrace\[bcrypt\]"):
            Authenticator(ServerOptions(token="$2a$11$abcdefghijklmnopqrstuv"))
    else:
        stored = bcrypt.hashpw(b"secret", bcrypt.gensalt(4)).decode()
        assert verify_secret(stored, "secret")
        assert not verify_secret(stored, "Secret")
