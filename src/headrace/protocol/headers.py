"""Header blocks: `NATS/1.0[ code[ text]] CRLF (Key: Value CRLF)* CRLF`, parsed and built as plain bytes.

Blocks are passed on without validation, so nothing here assumes that a block is well formed. Keys are compared exactly:
the server knows `Nats-TTL` but not `nats-ttl`. `b""` stands for "no header block".
"""

from collections.abc import Iterable

LINE = b"NATS/1.0"
CRLF = b"\r\n"
Pairs = Iterable[tuple[bytes, bytes]]


def find(block: bytes, name: bytes, start: int = 0) -> int:
    """Return where the line of a header starts, or -1."""
    at = block.find(CRLF + name + b":", start)
    return -1 if at < 0 else at + 2


def get(block: bytes, name: bytes) -> bytes | None:
    """Return the first value of a header without leading blanks; None if it is missing."""
    at = block.find(b"\r\n" + name + b":")
    if at < 0:
        return None
    start = at + len(name) + 3
    end = block.find(CRLF, start)
    return (block[start:] if end < 0 else block[start:end]).lstrip(b" ")


def parse_pairs(block: bytes) -> list[tuple[bytes, bytes]]:
    """Return all headers in order, blanks around values stripped; lines without a colon are skipped."""
    found = []
    for line in block.split(CRLF)[1:]:
        key, colon, value = line.partition(b":")
        if colon:
            found.append((key, value.strip(b" \t")))
    return found


def build(headers: Pairs, status: bytes = b"") -> bytes:
    """Build a block with these headers; `status` is `503` or `408 Request Timeout`."""
    parts = [LINE, b" " + status if status else b"", CRLF]
    for key, value in headers:
        parts += (key, b": ", value, CRLF)
    parts.append(CRLF)
    return b"".join(parts)


def build_status(code: int, text: str = "", headers: Pairs = ()) -> bytes:
    """Build a block whose first line has a status, such as `NATS/1.0 404 No Messages`."""
    return build(headers, b"%d %s" % (code, text.encode()) if text else b"%d" % code)


def append(block: bytes, headers: Pairs) -> bytes:
    """Append headers to a block; create the block if there is none."""
    added = b"".join(b"%s: %s\r\n" % pair for pair in headers)
    if len(block) <= len(CRLF):
        return LINE + CRLF + added + CRLF
    return block[: -len(CRLF)] + added + CRLF


def strip(block: bytes, name: bytes) -> bytes:
    """Return the block without any line of this header; b"" if only the first line is left."""
    removed = False
    at = find(block, name)
    while at >= 0:
        end = block.find(CRLF, at)
        if end < 0:
            break
        block, removed = block[:at] + block[end + 2 :], True
        at = find(block, name, at - 2)
    return b"" if removed and block == LINE + CRLF + CRLF else block


def replace(block: bytes, name: bytes, value: bytes) -> bytes:
    """Return the block with this header set to one value, at its end."""
    return append(strip(block, name), [(name, value)])
