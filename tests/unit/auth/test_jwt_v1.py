"""JWTs of version 1, which old operators still use: only claims are signed, and their type is next to `nats`."""

from __future__ import annotations

import base64
import json
import os
from typing import Any

import nkeys
import pytest

from headrace.auth import jwt
from headrace.errors import AuthError


def encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


class Key:
    def __init__(self, prefix: int) -> None:
        self._pair = nkeys.from_seed(bytearray(nkeys.encode_seed(os.urandom(32), prefix=prefix)))
        self.public = self._pair.public_key.decode()

    def signs(self, subject: str, kind: str, *, whole: bool = False, **more: Any) -> str:
        header = encoded(b'{"typ":"jwt","alg":"ed25519"}')
        claims = {"iss": self.public, "sub": subject, "iat": 1553840337, "name": kind, "type": kind, **more}
        body = encoded(json.dumps(claims).encode())
        signed = f"{header}.{body}" if whole else body
        return f"{header}.{body}.{encoded(self._pair.sign(signed.encode()))}"


OPERATOR, ACCOUNT, USER = (
    Key(prefix) for prefix in (nkeys.PREFIX_BYTE_OPERATOR, nkeys.PREFIX_BYTE_ACCOUNT, nkeys.PREFIX_BYTE_USER)
)


def test_they_are_read() -> None:
    operator = jwt.decode_operator_claims(OPERATOR.signs(OPERATOR.public, "operator"))
    assert operator.nats.type == "operator"
    limits = {"limits": {"subs": 7, "conn": -1, "wildcards": True}}
    account = jwt.decode_account_claims(OPERATOR.signs(ACCOUNT.public, "account", nats=limits))
    assert (account.subject, account.nats.limits.subs) == (ACCOUNT.public, 7)
    rules = {"pub": {"allow": ["a"]}, "payload": 10}
    user = jwt.decode_user_claims(
        ACCOUNT.signs(USER.public, "user", nats=rules, issuer_account=ACCOUNT.public)
    )
    assert (user.nats.pub.allow, user.nats.payload, user.nats.issuer_account) == (("a",), 10, ACCOUNT.public)


@pytest.mark.parametrize(
    "token",
    [
        ACCOUNT.signs(USER.public, "account"),
        USER.signs(USER.public, "user"),
        ACCOUNT.signs(USER.public, "user", whole=True),
        ACCOUNT.signs(USER.public, "user", nats=[1])[:-4] + "AAAA",
        OPERATOR.signs(USER.public, "user"),
    ],
)
def test_what_does_not_count(token: str) -> None:
    with pytest.raises(AuthError):
        jwt.decode_user_claims(token)
