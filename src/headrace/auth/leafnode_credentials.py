"""Credentials of a server that dials another as a leafnode: a signed JWT or a signed NKey.

The only module that reads private keys; it uses and drops them.
"""

from __future__ import annotations

import base64
import binascii
import re
from pathlib import Path
from typing import Any

from headrace.errors import AuthError

#: The armored parts of a credentials file: the user's JWT, then the seed of its key.
_ARMOURED_PARTS = re.compile(r"-{3,}[^\n]*-{3,}\r?\n([\w\-.=]+)\r?\n-{3,}[^\n]*-{3,}")
_USER_PREFIX = 20 << 3
_SEED_PREFIX = 18 << 3
_SEED_BYTES = 36


def sign_with_credentials_file(path: Path, nonce: str) -> dict[str, str]:
    """Return the fields of CONNECT from a credentials file."""
    try:
        found = _ARMOURED_PARTS.findall(path.read_text(encoding="ascii"))
    except (OSError, ValueError) as error:
        raise AuthError(f"cannot read the credentials file {str(path)!r}: {error}") from error
    if len(found) < 2:
        raise AuthError(f"invalid credentials file {str(path)!r}: it must contain a JWT and a seed")
    return {"jwt": found[0], "sig": _sign(_load_signing_key(found[1]), nonce)}


def sign_with_nkey(seed: str, nonce: str) -> dict[str, str]:
    """Return the fields of CONNECT from the seed of a user's key."""
    signer = _load_signing_key(seed)
    body = bytes([_USER_PREFIX]) + bytes(signer.verify_key)
    public_key = (
        base64.b32encode(body + binascii.crc_hqx(body, 0).to_bytes(2, "little")).rstrip(b"=").decode()
    )
    return {"nkey": public_key, "sig": _sign(signer, nonce)}


def _sign(signer: Any, nonce: str) -> str:
    signature: bytes = signer.sign(nonce.encode()).signature
    return base64.urlsafe_b64encode(signature).rstrip(b"=").decode()


def _load_signing_key(seed: str) -> Any:
    try:
        from nacl.signing import SigningKey
    except ImportError as missing:
        raise AuthError("nkeys require a package for Ed25519: pip install 'headrace[nkeys]'") from missing
    text = seed.strip()
    try:
        data = base64.b32decode(text + "=" * (-len(text) % 8))
    except binascii.Error as error:
        raise AuthError("malformed nkey seed") from error
    body, checksum = data[:-2], data[-2:]
    if len(data) != _SEED_BYTES or binascii.crc_hqx(body, 0).to_bytes(2, "little") != checksum:
        raise AuthError("malformed nkey seed")
    # Two bytes contain two prefixes of five and eight bits: that this is a seed, and its kind.
    if body[0] & 0xF8 != _SEED_PREFIX or (body[0] & 7) << 5 | (body[1] & 0xF8) >> 3 != _USER_PREFIX:
        raise AuthError("the nkey seed is not a user's")
    return SigningKey(body[2:])
