"""Who a CONNECT proves to be."""

import pytest

from headrace.errors import AuthError
from headrace.net.auth import ANONYMOUS, Approach, Authenticator, Identity, Standing, is_hash, same_secret
from headrace.net.options import AccountOptions, Options, OptionsError, User


def test_nobody_has_to_say_who_they_are() -> None:
    authenticator = Authenticator(Options())
    assert not authenticator.required
    assert authenticator.check({}) == ANONYMOUS
    assert authenticator.check({"user": "anybody", "pass": "anything"}) == ANONYMOUS


@pytest.mark.parametrize(
    ("connect", "expected"),
    [
        ({"user": "ada", "pass": "secret"}, Identity("ada")),
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
def test_user_and_password(connect: dict[str, object], expected: Identity | None) -> None:
    authenticator = Authenticator(Options(user="ada", password="secret"))
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
def test_token(connect: dict[str, object], known: bool) -> None:
    assert (Authenticator(Options(token="t0ken")).check(connect) is not None) is known


def test_several_users_with_accounts_and_one_for_strangers() -> None:
    users = (User("a", "1", "A"), User("guest", "2"))
    options = Options(users=users, accounts=(AccountOptions("A"),), no_auth_user="guest")
    authenticator = Authenticator(options)
    assert not authenticator.required
    assert authenticator.check({"user": "a", "pass": "1"}) == Identity("a", "A")
    assert authenticator.check({}) == Identity("guest")
    assert authenticator.check({"user": "a", "pass": "wrong"}) is None


def test_a_user_without_a_password_needs_a_certificate() -> None:
    authenticator = Authenticator(Options(users=(User("a"),)))
    for credentials in ({"user": "a"}, {"user": "a", "pass": ""}, {}, {"user": ""}):
        assert authenticator.check(credentials) is None
    approach = Approach(certificate={"subjectAltName": (("DNS", "a"),)}, map_users=True)
    assert authenticator.check({}, approach) == Identity("a")


def test_a_user_of_an_unknown_account_is_refused() -> None:
    with pytest.raises(OptionsError, match="'B'"):
        Authenticator(Options(users=(User("a", "1", "B"),)))


def test_the_user_for_strangers_has_to_exist() -> None:
    with pytest.raises(OptionsError, match="'nobody'"):
        Authenticator(Options(users=(User("a", "1"),), no_auth_user="nobody"))


@pytest.mark.parametrize(
    ("before", "after", "identity", "standing"),
    [
        (Options(token="t"), Options(token="t"), ANONYMOUS, Standing.STAYS),
        (Options(token="t"), Options(token="u"), ANONYMOUS, Standing.VIOLATES),
        (Options(), Options(), ANONYMOUS, Standing.STAYS),
        (Options(), Options(user="a", password="1"), ANONYMOUS, Standing.VIOLATES),
        (Options(user="a", password="1"), Options(user="a", password="1"), Identity("a"), Standing.STAYS),
        (Options(user="a", password="1"), Options(user="a", password="2"), Identity("a"), Standing.VIOLATES),
        (Options(user="a", password="1"), Options(user="b", password="1"), Identity("a"), Standing.GONE),
        (Options(user="a", password="1"), Options(), Identity("a"), Standing.STAYS),
    ],
)
def test_what_becomes_of_clients_when_the_users_change(
    before: Options, after: Options, identity: Identity, standing: Standing
) -> None:
    assert Authenticator(after).review(identity, Authenticator(before))[0] is standing


def test_hashes_are_told_from_plain_secrets() -> None:
    assert is_hash("$2a$11$abcdefghijklmnopqrstuv")
    assert is_hash("$2b$04$abc")
    assert not is_hash("$2z$04$abc")
    assert not is_hash("plain $2a$11$")


def test_a_hash_is_checked_by_bcrypt_or_refused_at_start() -> None:
    try:
        import bcrypt
    except ModuleNotFoundError:
        with pytest.raises(AuthError, match=r"headrace\[bcrypt\]"):
            Authenticator(Options(token="$2a$11$abcdefghijklmnopqrstuv"))
    else:
        stored = bcrypt.hashpw(b"secret", bcrypt.gensalt(4)).decode()
        assert same_secret(stored, "secret")
        assert not same_secret(stored, "Secret")
