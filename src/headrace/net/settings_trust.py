"""The keys of operator mode: whose tokens are believed, and the accounts' tokens that are known from the start."""

from __future__ import annotations

from pathlib import Path

from headrace.errors import AuthError
from headrace.net.conf import Place
from headrace.net.tokens import account_claims, operator_claims
from headrace.net.values import Draft, fail, read, section, text, texts

_BEGIN, _END = "-----BEGIN NATS OPERATOR JWT-----", "------END NATS OPERATOR JWT------"


def operator(draft: Draft, value: object, place: Place) -> None:
    """`operator: path`, or the token itself."""
    found = [_operator_token(entry, place) for entry in read(texts, value, "operator", place)]
    draft.settings["operators"] = tuple(found)


def _operator_token(entry: str, place: Place) -> str:
    token = entry
    if not entry.startswith("eyJ"):
        try:
            written = Path(entry).read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            fail(place, f"cannot read the operator's token {entry!r}: {error}")
        inside = written.partition(_BEGIN)[2].partition(_END)[0]
        token = (inside or written).strip()
    try:
        operator_claims(token)
    except AuthError as error:
        fail(place, f"the operator's token is not valid: {error}")
    return token


def resolver(draft: Draft, value: object, place: Place) -> None:
    """`resolver: MEMORY`: accounts are those of `resolver_preload`."""
    if not isinstance(value, str) or value.upper() not in ("MEM", "MEMORY"):
        fail(
            place,
            "the resolver is MEMORY: accounts come from resolver_preload, not from a folder or an address",
        )


def resolver_preload(draft: Draft, value: object, place: Place) -> None:
    """`resolver_preload { <account>: <token> }`."""
    written = section(value, "resolver_preload", place)
    found = []
    for name, token in written.items():
        here = written.places[name]
        encoded = read(text, token, name, here)
        try:
            claims = account_claims(encoded)
        except AuthError as error:
            fail(here, f"the token of account {name!r} is not valid: {error}")
        if claims.subject != name:
            fail(here, f"the token of {name!r} speaks of account {claims.subject!r}")
        found.append((name, encoded))
    draft.settings["resolver_preload"] = tuple(found)
