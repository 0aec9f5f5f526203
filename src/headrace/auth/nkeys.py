"""NKeys: decodes public keys and verifies signatures made with the private ones.

A key is base32 of a prefix byte, 32 bytes of Ed25519 and a checksum; the first letter tells what it is for (`O`
operator, `A` account, `U` user). This module only verifies: it never reads or stores a private key. See ADR 74.
"""

from __future__ import annotations

import base64
import binascii
import secrets
from collections.abc import Callable

from headrace.errors import AuthError

_PREFIXES = {14 << 3: "O", 0: "A", 20 << 3: "U", 13 << 3: "N", 2 << 3: "C"}
_KEY_BYTES = 35
_TEXT_SIZE = 56
_SIGNATURE_BYTES = 64
_NONCE_BYTES = 11


def decode_public_key(text: str, kind: str) -> bytes | None:
    """Return the 32 bytes of a public key of this kind; None if it is not one."""
    if len(text) != _TEXT_SIZE or not text.isascii():
        return None
    try:
        data = base64.b32decode(text)
    except binascii.Error:
        return None
    body, checksum = data[:-2], data[-2:]
    if len(data) != _KEY_BYTES or binascii.crc_hqx(body, 0).to_bytes(2, "little") != checksum:
        return None
    return body[1:] if _PREFIXES.get(body[0]) == kind else None


def is_public_key(text: str, kind: str) -> bool:
    """Whether this is the public key of an operator (`O`), an account (`A`) or a user (`U`)."""
    return decode_public_key(text, kind) is not None


def verify(key: str, kind: str, data: bytes, signature: bytes) -> bool:
    """Whether the owner of a public key signed this data."""
    raw = decode_public_key(key, kind)
    if raw is None or len(signature) != _SIGNATURE_BYTES:
        return False
    return load_verifier()(raw, data, signature)


def load_verifier() -> Callable[[bytes, bytes, bytes], bool]:
    """Return a function that verifies Ed25519 signatures; AuthError names the package to install."""
    try:
        from nacl.exceptions import BadSignatureError
        from nacl.signing import VerifyKey
    except ImportError as missing:
        raise AuthError("nkeys require a package for Ed25519: pip install 'headrace[nkeys]'") from missing

    def check(raw: bytes, data: bytes, signature: bytes) -> bool:
        try:
            VerifyKey(raw).verify(data, signature)
        except (BadSignatureError, ValueError):
            return False
        return True

    return check


def decode_signature(text: str) -> bytes:
    """Decode a signature from CONNECT: base64url without padding, or standard base64 with padding; b"" for neither."""
    for decode in (_url_decode, _standard_decode):
        try:
            return decode(text)
        except (binascii.Error, ValueError):
            continue
    return b""


def _url_decode(text: str) -> bytes:
    if "=" in text or "+" in text or "/" in text:
        raise ValueError("not base64url without padding")
    return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)


def _standard_decode(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


def new_nonce() -> str:
    """Return a new nonce for a client to sign."""
    return base64.urlsafe_b64encode(secrets.token_bytes(_NONCE_BYTES)).decode().rstrip("=")
