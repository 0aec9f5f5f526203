"""Shows configurations and errors without the secrets in them.

Owns what counts as a secret: passwords in the address of a catalog, and properties whose name says so.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from urllib.parse import unquote_plus

from headrace.tables.config import TableConfig

HIDDEN = "***"
#: As SQLAlchemy finds it.
_PASSWORD = re.compile(r"://[^:/]*:([^@]*)@")
_SECRET_NAME = re.compile(r"credential|token|secret|passw|pwd|account-key|sas", re.IGNORECASE)


def show_catalog(config: TableConfig) -> str:
    """Return the address of the catalog for people."""
    return hide_secrets(config.catalog, config)


def hide_secrets(text: str, config: TableConfig) -> str:
    """Return a text, such as an error of a library, without the secrets of a table."""
    for secret in sorted(set(_find_secrets(config)), key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    return text


def describe_error(error: BaseException, config: TableConfig) -> str:
    """Return type and message of an error."""
    return hide_secrets(f"{type(error).__name__}: {error}", config)


def _find_secrets(config: TableConfig) -> Iterator[str]:
    """Yield secrets as they are written, and as they are used."""
    pairs = [pair.partition("=") for pair in config.catalog.partition("?")[2].split("&")]
    named = {**{name: value for name, _, value in pairs}, **config.properties}
    secrets = [value for name, value in named.items() if _SECRET_NAME.search(name)]
    if password := _PASSWORD.search(config.catalog):
        secrets.append(password[1])
    # A client identifier may stand before the secret.
    secrets += [value.partition(":")[2] for name, value in config.properties.items() if name == "credential"]
    for secret in secrets:
        if secret:
            yield secret
            yield unquote_plus(secret)
