"""A REST catalog whose requests end: pyiceberg's wait without limit for a catalog that does not respond.

Owns the timeouts. Invariant: a request that is given up is an error, and then its outcome is unknown; `commits` finds it
out. Must not know tables.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from pyiceberg.catalog import URI
from pyiceberg.catalog.rest import OAUTH2_SERVER_URI, RestCatalog

#: Seconds for a connection, and between two parts of a response.
TIMEOUT_S = (10, 60)


class RestCatalogWithTimeouts(RestCatalog):
    """The REST catalog of pyiceberg, with timeouts."""

    def __init__(self, name: str, **properties: str) -> None:
        # pyiceberg warns unless the address for tokens is configured; this is the one that it uses.
        properties.setdefault(OAUTH2_SERVER_URI, f"{properties[URI].rstrip('/')}/v1/oauth/tokens")
        super().__init__(name, **properties)

    def _create_session(self) -> Any:
        session = super()._create_session()
        session.request = partial(session.request, timeout=TIMEOUT_S)  # type: ignore[method-assign]
        return session
