"""A workload of `bench/ab.py`: acknowledgements alone, where `pull` measures them together with deliveries."""

from __future__ import annotations

import json
import re

from load import CHUNK, METER, Connection, publication
from workloads import ACK, publish


def acks(port: int, scale: float) -> float:
    """Acknowledge messages of a durable pull consumer; all of them are delivered beforehand."""
    total = int(100 * scale) * CHUNK
    publish(port, total // CHUNK, 128)
    body = json.dumps({"batch": total, "expires": 20_000_000_000}).encode()
    with Connection(port) as connection:
        connection.consumer("B", "D", ack_policy="explicit", max_ack_pending=total)
        connection.subscribe(b"pull")
        connection.socket.sendall(publication(b"$JS.API.CONSUMER.MSG.NEXT.B.D", body, b"pull"))
        data = b"".join(publication(reply, b"+ACK") for reply in _ack_subjects(connection, total))
        with METER.section(total) as section:
            connection.socket.sendall(data)
            while connection.api("CONSUMER.INFO.B.D")["num_ack_pending"]:
                pass
        return total / section.seconds


def _ack_subjects(connection: Connection, count: int) -> list[bytes]:
    """Return the ack subjects of the next messages, found in the raw bytes."""
    pieces, found, tail = [b""], 0, b""
    while found < count or not pieces[-1].endswith(b"\r\n"):
        data = connection.socket.recv(1 << 20)
        if not data:
            raise ConnectionError("the server closed the connection")
        found += (tail + data).count(ACK)
        tail = data[-(len(ACK) - 1) :]
        pieces.append(data)
    return re.findall(rb"\$JS\.ACK\.\S+", b"".join(pieces))
