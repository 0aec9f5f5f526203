"""Copies the delete markers that the old server wrote after the copy was complete.

Messages expire on both servers, but only one that is open writes a marker for each. Invariant: a marker is copied only if
the new stream has no message of its subject, so it never hides a newer value, and no marker is copied twice.
"""

from __future__ import annotations

import base64

from headrace.migrate.jetstream_server import JetStreamServer

_MARKER_HEADER = b"Nats-Marker-Reason:"


async def copy_late_markers(old: JetStreamServer, new: JetStreamServer, stream: str, after_seq: int) -> int:
    """Publish the markers above a sequence on the new server; return how many were stored."""
    last_seq = (await old.api(f"STREAM.INFO.{stream}"))["state"]["last_seq"]
    copied = 0
    for seq in range(after_seq + 1, last_seq + 1):
        found = await old.find(f"STREAM.MSG.GET.{stream}", {"seq": seq})
        if found is None:
            continue
        message = found["message"]
        header = base64.b64decode(message.get("hdrs") or b"")
        if _MARKER_HEADER not in header:
            continue
        headers = _parse_headers(header) | {"Nats-Expected-Last-Subject-Sequence": "0"}
        reply = await new.request(message["subject"], headers=headers)
        copied += "error" not in reply
    return copied


def _parse_headers(block: bytes) -> dict[str, str]:
    lines = block.decode(errors="replace").split("\r\n")[1:]
    pairs = (line.partition(":") for line in lines if ":" in line)
    return {name: value.strip() for name, _, value in pairs}
