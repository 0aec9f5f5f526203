"""Keys and tokens for tests: operators, accounts and users, generated for each run."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import time
from typing import Any

from nacl.signing import SigningKey

_PREFIX = {"O": 14 << 3, "A": 0, "U": 20 << 3}
_SEED = 18 << 3


class Key:
    """A key pair of an operator (`O`), an account (`A`) or a user (`U`)."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._key = SigningKey.generate()
        self.public = _text(bytes((_PREFIX[kind],)) + bytes(self._key.verify_key))

    @property
    def seed(self) -> str:
        prefix = _PREFIX[self.kind]
        head = bytes((_SEED | prefix >> 5, (prefix & 31) << 3))
        return _text(head + bytes(self._key))

    def sign(self, data: bytes) -> bytes:
        return self._key.sign(data).signature

    def sign_nonce(self, nonce: str) -> str:
        return base64.urlsafe_b64encode(self.sign(nonce.encode())).decode().rstrip("=")

    def token(
        self,
        about: str,
        sort: str,
        /,
        *,
        name: str = "x",
        claims: dict[str, Any] | None = None,
        **nats: Any,
    ) -> str:
        """Return a token about a subject, signed with this key."""
        body: dict[str, Any] = {"iat": int(time.time()), "iss": self.public, "name": name, "sub": about}
        body |= claims or {}
        body["nats"] = {**nats, "type": sort, "version": 2}
        body["jti"] = (
            base64.b32encode(hashlib.sha256(json.dumps(body).encode()).digest()).decode().rstrip("=")
        )
        head = _part({"typ": "JWT", "alg": "ed25519-nkey"})
        signed = f"{head}.{_part(body)}"
        return f"{signed}.{base64.urlsafe_b64encode(self.sign(signed.encode())).decode().rstrip('=')}"


def _text(data: bytes) -> str:
    checksum = binascii.crc_hqx(data, 0).to_bytes(2, "little")
    return base64.b32encode(data + checksum).decode().rstrip("=")


def _part(value: dict[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(value, separators=(",", ":")).encode()).decode().rstrip("=")


NO_LIMITS = {
    "subs": -1,
    "data": -1,
    "payload": -1,
    "imports": -1,
    "exports": -1,
    "wildcards": True,
    "conn": -1,
    "leaf": -1,
}
USER_LIMITS = {"subs": -1, "data": -1, "payload": -1}


class Realm:
    """An operator with accounts; `config` is the configuration of a server that trusts it."""

    def __init__(self) -> None:
        self.operator = Key("O")
        self.accounts: dict[str, Key] = {}
        self.tokens: dict[str, str] = {}
        self.system = self.account("SYS")

    def account(
        self, name: str, *, signer: Key | None = None, claims: dict[str, Any] | None = None, **nats: Any
    ) -> Key:
        """Create an account, or a new token for an existing one."""
        key = self.accounts.setdefault(name, Key("A"))
        body = {
            "limits": NO_LIMITS | nats.pop("limits", {}),
            "default_permissions": {"pub": {}, "sub": {}},
            **nats,
        }
        self.tokens[name] = (signer or self.operator).token(
            key.public, "account", name=name, claims=claims, **body
        )
        return key

    def user(
        self, account: str, *, signer: Key | None = None, claims: dict[str, Any] | None = None, **nats: Any
    ) -> tuple[Key, str]:
        """Create a user of an account; return its key and its token."""
        key = Key("U")
        body = {"pub": {}, "sub": {}, **USER_LIMITS, **nats}
        if signer is not None:
            body.setdefault("issuer_account", self.accounts[account].public)
        made = (signer or self.accounts[account]).token(
            key.public, "user", name="user", claims=claims, **body
        )
        return key, made

    def config(self) -> str:
        operator = self.operator.token(
            self.operator.public, "operator", name="OP", system_account=self.system.public
        )
        preload = "\n".join(f"  {self.accounts[name].public}: {token}" for name, token in self.tokens.items())
        return f"operator: {operator}\nresolver: MEMORY\nresolver_preload {{\n{preload}\n}}\n"
