"""How a server that dials signs, and which credentials it rejects."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.auth.leafnode_credentials import sign_with_credentials_file, sign_with_nkey
from headrace.auth.nkeys import decode_signature, verify
from headrace.errors import AuthError
from support.identities import Key

NONCE = "abcdefghijk"


def test_an_nkey_signs_the_nonce() -> None:
    key = Key("U")
    fields = sign_with_nkey(key.seed, NONCE)
    assert fields["nkey"] == key.public
    assert verify(key.public, "U", NONCE.encode(), decode_signature(fields["sig"]))


def test_a_credentials_file_signs_the_nonce_and_sends_its_jwt(tmp_path: Path) -> None:
    key, path = Key("U"), tmp_path / "user.creds"
    path.write_text(
        f"-----BEGIN NATS USER JWT-----\r\nhead.body.sig\r\n------END NATS USER JWT------\r\n\r\n"
        f"*** IMPORTANT ***\r\n\r\n-----BEGIN USER NKEY SEED-----\r\n{key.seed}\r\n------END USER NKEY SEED------\r\n"
    )
    fields = sign_with_credentials_file(path, NONCE)
    assert fields["jwt"] == "head.body.sig"
    assert verify(key.public, "U", NONCE.encode(), decode_signature(fields["sig"]))


@pytest.mark.parametrize("text", ["", "nonsense", "-----BEGIN X-----\nonly.one.part\n------END X------\n"])
def test_a_file_that_is_none(tmp_path: Path, text: str) -> None:
    path = tmp_path / "user.creds"
    path.write_text(text)
    with pytest.raises(AuthError, match="invalid credentials file"):
        sign_with_credentials_file(path, NONCE)


def test_a_file_that_is_missing(tmp_path: Path) -> None:
    with pytest.raises(AuthError, match="cannot read"):
        sign_with_credentials_file(tmp_path / "missing", NONCE)


@pytest.mark.parametrize("kind", ["nothing", "too short", "not base32", "an account's", "a public key"])
def test_what_is_no_user_s_seed(kind: str) -> None:
    seeds = {"nothing": "", "too short": "SU", "not base32": "!" * 58, "an account's": Key("A").seed}
    seed = seeds.get(kind, Key("U").public)
    with pytest.raises(AuthError) as refused:
        sign_with_nkey(seed, NONCE)
    assert not seed or seed not in str(refused.value)
