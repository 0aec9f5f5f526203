"""Storage limits of the server, for all accounts and streams together."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from conformance.client import Client, error_of
from conformance.servers import Server, Setup

CONFIG = """
jetstream { max_file_store: 100000, max_memory_store: 50000 }
accounts {
  A { users: [{user: a, password: a}], jetstream: enabled }
  B { users: [{user: b, password: b}], jetstream: enabled }
}
"""


@pytest.mark.parametrize(("storage", "fitting"), [("file", 10), ("memory", 5)])
def test_what_crosses_the_limit_is_stored_and_no_more(
    launch: Callable[[Setup], Server], connect: Callable[..., Client], storage: str, fitting: int
) -> None:
    server = launch(Setup(config=CONFIG))
    one, other = (connect(server, user=name, **{"pass": name}) for name in ("a", "b"))
    for client in (one, other):
        client.api("STREAM.CREATE.S", {"name": "S", "subjects": ["s"], "storage": storage})
    for number in range(1, fitting + 1):
        assert one.request("s", bytes(10_000)).json["seq"] == number
    for client in (one, other):
        assert error_of(client.request("s", b"").json) == (10023, "insufficient resources")
    one.api("STREAM.PURGE.S")
    assert other.request("s", b"").json["seq"] == 1
