"""Keys, JWTs and credentials files for servers in operator mode, created for each test."""

from __future__ import annotations

import base64
import hashlib
import json
import os
from pathlib import Path
from typing import Any

import nkeys

_UNLIMITED = dict.fromkeys(("subs", "data", "payload", "imports", "exports", "conn", "leaf"), -1)


class Identity:
    """A key pair of an operator, an account or a user."""

    def __init__(self, prefix: int) -> None:
        self.seed = bytes(nkeys.encode_seed(os.urandom(32), prefix=prefix))
        self._pair = nkeys.from_seed(bytearray(self.seed))
        self.public = self._pair.public_key.decode()

    def signs(self, subject: str, kind: str, **claims: Any) -> str:
        """Return a JWT about a subject, signed by this identity."""
        body = {"iss": self.public, "sub": subject, "iat": 1_700_000_000, "name": kind}
        body["nats"] = {"type": kind, "version": 2, **claims}
        digest = hashlib.new("sha512_256", json.dumps(body).encode()).digest()
        body["jti"] = base64.b32encode(digest).decode().rstrip("=")
        signed = f"{_part({'typ': 'JWT', 'alg': 'ed25519-nkey'})}.{_part(body)}"
        return f"{signed}.{_encoded(self._pair.sign(signed.encode()))}"


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def _part(value: object) -> str:
    return _encoded(json.dumps(value).encode())


def user() -> Identity:
    return Identity(nkeys.PREFIX_BYTE_USER)


def trusting_server(folder: Path) -> tuple[str, Path]:
    """Return the configuration of a server that trusts a new operator, and a credentials file that it accepts."""
    operator = Identity(nkeys.PREFIX_BYTE_OPERATOR)
    account = Identity(nkeys.PREFIX_BYTE_ACCOUNT)
    person = user()
    of_operator = operator.signs(operator.public, "operator")
    of_account = operator.signs(account.public, "account", limits={**_UNLIMITED, "wildcards": True})
    of_person = account.signs(person.public, "user", subs=-1, data=-1, payload=-1, pub={}, sub={})
    credentials = folder / "person.creds"
    credentials.write_text(
        f"-----BEGIN NATS USER JWT-----\n{of_person}\n------END NATS USER JWT------\n\n"
        f"-----BEGIN USER NKEY SEED-----\n{person.seed.decode()}\n------END USER NKEY SEED------\n"
    )
    config = (
        f"operator: {of_operator}\nresolver: MEMORY\nresolver_preload {{ {account.public}: {of_account} }}\n"
    )
    return config, credentials
