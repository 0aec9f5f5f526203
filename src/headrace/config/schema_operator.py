"""The keys of operator mode: the trusted operators, and account JWTs that are preloaded."""

from __future__ import annotations

from pathlib import Path

from headrace.auth.jwt import decode_account_claims, decode_operator_claims
from headrace.config.config_parser import SourcePos
from headrace.config.readers import ConfigDraft, fail, read_section, read_string, read_strings, read_value
from headrace.errors import AuthError

_BEGIN, _END = "-----BEGIN NATS OPERATOR JWT-----", "------END NATS OPERATOR JWT------"


def read_operator(draft: ConfigDraft, value: object, pos: SourcePos) -> None:
    """Read `operator: path`, or the JWT itself."""
    found = [_load_operator_token(entry, pos) for entry in read_value(read_strings, value, "operator", pos)]
    draft.settings["operators"] = tuple(found)


def _load_operator_token(entry: str, pos: SourcePos) -> str:
    token = entry
    if not entry.startswith("eyJ"):
        try:
            written = Path(entry).read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            fail(pos, f"cannot read the operator JWT {entry!r}: {error}")
        body = written.partition(_BEGIN)[2].partition(_END)[0]
        token = (body or written).strip()
    try:
        decode_operator_claims(token)
    except AuthError as error:
        fail(pos, f"invalid operator JWT: {error}")
    return token


def read_resolver(draft: ConfigDraft, value: object, pos: SourcePos) -> None:
    """Read `resolver: MEMORY`: accounts are those of `resolver_preload`."""
    if not isinstance(value, str) or value.upper() not in ("MEM", "MEMORY"):
        fail(
            pos,
            "only 'resolver: MEMORY' is supported: put account JWTs into resolver_preload",
        )


def read_resolver_preload(draft: ConfigDraft, value: object, pos: SourcePos) -> None:
    """Read `resolver_preload { <account>: <token> }`."""
    written = read_section(value, "resolver_preload", pos)
    found = []
    for name, token in written.items():
        token_pos = written.positions[name]
        encoded = read_value(read_string, token, name, token_pos)
        try:
            claims = decode_account_claims(encoded)
        except AuthError as error:
            fail(token_pos, f"invalid JWT of account {name!r}: {error}")
        if claims.subject != name:
            fail(token_pos, f"the JWT of account {name!r} was issued for account {claims.subject!r}")
        found.append((name, encoded))
    draft.settings["resolver_preload"] = tuple(found)
