"""Compressed leafnode connections: every pairing of the two servers, every mode, with and without TLS."""

from __future__ import annotations

import json
import urllib.request
from functools import partial
from pathlib import Path

import pytest

from conformance.client import Client
from conformance.consumer_client import eventually
from conformance.leafnode_pair import PAIRINGS, Joined, joined
from conformance.servers import OURS
from support import certificates
from support.ports import free_port

#: Mode of the hub, mode of the leaf, what /leafz shows at the hub and at the leaf.
MODES = [
    ("s2_fast", "s2_fast", "s2_fast"),
    ("s2_better", "s2_best", ""),  # each side compresses in its own way
    ("accept", "s2_best", "s2_best"),
    ("s2_fast", "accept", "s2_fast"),
    ("s2_auto", "s2_auto", "s2_uncompressed"),
    ("off", "s2_fast", "off"),
    ("accept", "accept", "off"),
    ("s2_fast", "off", "off"),
    ("s2_fast", "'not supported'", "not supported"),
]
TEXT = b'{"order":1,"status":"paid","note":"' + b"-" * 200 + b'"}'


def shown(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/leafz", timeout=60) as response:
        (entry,) = json.load(response)["leafs"]
    return str(entry["compression"])


def _arrives(sender: Client, listener: Client, sid: str, subject: str) -> bool:
    sender.publish(subject, b"?")
    sender.flush()
    listener.flush()
    return bool(listener.pending(sid))


def exchange(pair: Joined, name: str) -> None:
    """Messages of all sizes in both directions, in order."""
    payloads = [TEXT * count for count in (1, 10, 300, 2_000)] + [TEXT] * 200 + [bytes(range(256)) * 2_000]
    for up in (True, False):
        sender, listener = (side.client for side in pair.ways(up))
        sid = listener.subscribe(f"{name}.{up}")
        listener.flush()
        eventually(partial(_arrives, sender, listener, sid, f"{name}.{up}"))
        for payload in payloads:
            sender.publish(f"{name}.{up}", payload)
        sender.flush()
        got: list[bytes] = []
        while len(got) < len(payloads):
            payload = listener.next(sid).payload
            if payload != b"?":
                got.append(payload)
        assert got == payloads


@pytest.mark.parametrize(("hub", "leaf"), PAIRINGS)
@pytest.mark.parametrize(("hub_mode", "leaf_mode", "expected"), MODES)
def test_modes(hub: str, leaf: str, hub_mode: str, leaf_mode: str, expected: str) -> None:
    ports = [free_port(), free_port()]
    with joined(
        hub,
        leaf,
        hub={"extra": f"compression: {hub_mode}", "more": f"http: '127.0.0.1:{ports[0]}'"},
        leaf={"remote": f"compression: {leaf_mode}", "more": f"http: '127.0.0.1:{ports[1]}'"},
    ) as pair:
        exchange(pair, "sizes")
        for port, kind, own in ((ports[0], hub, hub_mode), (ports[1], leaf, leaf_mode)):
            if own == "s2_auto" and kind != OURS:
                assert shown(port).startswith("s2_")  # it depends on how busy both servers were
            else:
                assert shown(port) == (expected or own)


def test_over_tls(tmp_path: Path) -> None:
    certs = certificates.make(tmp_path)
    listening = f"tls {{ cert_file: '{certs.cert}', key_file: '{certs.key}', ca_file: '{certs.ca}' }}"
    for hub, leaf in PAIRINGS:
        if OURS not in (hub, leaf):
            continue
        with joined(
            hub,
            leaf,
            hub={"extra": f"compression: s2_fast, {listening}"},
            leaf={"remote": f"compression: s2_fast, tls {{ ca_file: '{certs.ca}' }}"},
        ) as pair:
            exchange(pair, "secret")
