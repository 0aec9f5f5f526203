"""docs/reference/configuration.md names every key that is supported."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from headrace.config import schema, schema_accounts, schema_tls_websocket, schema_users

PAGE = (Path(__file__).parents[3] / "docs" / "reference" / "configuration.md").read_text()
TABLES = {
    "the top": (schema._TOP,),
    "jetstream": (schema._JETSTREAM, schema._BATCH),
    "authorization": (schema_users._AUTHORIZATION, schema_users._USER),
    "permissions": (schema_users._PERMISSIONS, schema_users._RESPONSES),
    "accounts": (
        schema_accounts._ACCOUNT,
        schema_accounts._JETSTREAM_LIMITS,
        schema_accounts._LIMITS,
        schema_accounts._EXPORT,
        schema_accounts._IMPORT,
    ),
    "doors": (schema_tls_websocket._TLS, schema_tls_websocket._WEBSOCKET),
}


@pytest.mark.parametrize("part", list(TABLES))
def test_every_key_is_named(part: str) -> None:
    words = set(re.findall(r"[a-z_0-9]+", PAGE))
    known = {key for table in TABLES[part] for key in table.names}
    assert known - words <= {"resolver_tls"}
