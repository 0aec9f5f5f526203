"""Permissions of a leafnode connection: which reply subjects the other side may name."""

from __future__ import annotations

import pytest

from headrace.broker.leafnodes.leafnode_permissions import LOCAL_ONLY, LeafnodePermissions

ACK = b"$JS.ACK.S.C.1."


@pytest.mark.parametrize(
    ("deny", "reply", "allowed"),
    [
        ((), b"$JS.ACK.S.C.1.2.3.4.5", True),
        (LOCAL_ONLY, b"$JS.ACK.S.C.1.2.3.4.5", True),
        (LOCAL_ONLY, b"$KV.bucket.key", False),
        (LOCAL_ONLY, b"$KV", True),
        (LOCAL_ONLY, b"$JS.API.INFO", False),
        ((*LOCAL_ONLY, b"$JS.*.S.>"), b"$JS.ACK.S.C.1.2.3.4.5", False),
        ((*LOCAL_ONLY, b"$JS.*.S.>"), b"$JS.ACK.T.C.1.2.3.4.5", True),
        ((b"$JS.ACK.>",), b"$JS.ACK.S.C.1.2.3.4.5", False),
        ((b"$X.y",), b"$X.y", False),
        ((b"*.y",), b"$X.y", False),
        ((b"_INBOX.a.>",), b"_INBOX.a.b", False),
    ],
)
def test_replies_are_checked_against_denied_patterns(
    deny: tuple[bytes, ...], reply: bytes, allowed: bool
) -> None:
    assert LeafnodePermissions(deny=deny).allows_reply(reply) == allowed


@pytest.mark.parametrize(
    ("deny", "prefix", "allowed"),
    [
        ((), ACK, True),
        (LOCAL_ONLY, ACK, True),
        ((b"$JS.ACK.>",), ACK, False),
        ((b"$JS.ACK.S.C.1.7.*.*.*",), ACK, False),
        ((b"$JS.ACK.S.C.2.>",), ACK, True),
        ((), b"$JS.ACK.API.C.1.", False),
    ],
)
def test_all_replies_of_a_run_are_allowed_or_each_is_checked(
    deny: tuple[bytes, ...], prefix: bytes, allowed: bool
) -> None:
    assert LeafnodePermissions(deny=deny).allows_replies_below(prefix) == allowed
