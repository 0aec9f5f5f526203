"""The handshake of leafnodes: malformed CONNECTs are rejected."""

from __future__ import annotations

import pytest

from headrace.broker.leafnodes.leafnode_handshake import parse_object
from headrace.errors import ProtocolError

DEEP = b'{"a":' + b"[" * 3500


def test_a_leafnode_greeting_nested_deep_is_refused() -> None:
    with pytest.raises(ProtocolError):
        parse_object(DEEP)
