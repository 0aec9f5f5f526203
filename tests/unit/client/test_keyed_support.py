"""When the client deletes a consumer that a server created without order per key."""

from __future__ import annotations

import pytest

from headrace.client.keyed_support import _is_new

CREATED = "2026-01-01T00:00:00.123456789Z"


@pytest.mark.parametrize(
    ("response", "is_new"),
    [
        ({"created": CREATED, "ts": "2026-01-01T00:00:00.223456789Z"}, True),
        ({"created": CREATED, "ts": "2026-01-01T00:00:02.123456789Z"}, False),
        ({"created": CREATED}, False),
    ],
)
def test_only_a_consumer_that_the_request_created_is_deleted(response: dict[str, str], is_new: bool) -> None:
    assert _is_new(response, 1.0) == is_new
