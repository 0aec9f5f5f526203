"""Leafnode sessions: malformed greetings are refused."""

from __future__ import annotations

import pytest

from headrace.broker.leafnodes.leafnode_session import _parse_object
from headrace.errors import ProtocolError

DEEP = b'{"a":' + b"[" * 3500


def test_a_leafnode_greeting_nested_deep_is_refused() -> None:
    with pytest.raises(ProtocolError):
        _parse_object(DEEP)
