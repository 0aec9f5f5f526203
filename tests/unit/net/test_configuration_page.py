"""docs/configuration.md names every key that is understood."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from headrace.net import settings, settings_accounts, settings_doors, settings_users

PAGE = (Path(__file__).parents[3] / "docs" / "configuration.md").read_text()
TABLES = {
    "the top": (settings._TOP,),
    "jetstream": (settings._JETSTREAM, settings._BATCH),
    "authorization": (settings_users._AUTHORIZATION, settings_users._USER),
    "permissions": (settings_users._PERMISSIONS, settings_users._RESPONSES),
    "accounts": (
        settings_accounts._ACCOUNT,
        settings_accounts._STREAMS,
        settings_accounts._LIMITS,
        settings_accounts._EXPORT,
        settings_accounts._IMPORT,
    ),
    "doors": (settings_doors._TLS, settings_doors._WEBSOCKET),
}


@pytest.mark.parametrize("part", list(TABLES))
def test_every_key_is_named(part: str) -> None:
    words = set(re.findall(r"[a-z_0-9]+", PAGE))
    known = {key for table in TABLES[part] for key in table.names}
    assert known - words <= {"resolver_tls"}
