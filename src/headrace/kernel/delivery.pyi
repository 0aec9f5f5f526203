from typing import Any

def encode(
    targets: list[list[Any]],
    view: memoryview,
    seqs: Any,
    at: int,
    most: int,
    ack: bytes,
    cseq: int,
    pending: int,
    base: int,
    bytes_max: int,
    strict: bool,
) -> tuple[int, int]: ...
def ack_parts(subject: bytes) -> tuple[bytes, int, int, int] | None: ...
def subjects_of(view: memoryview, last: int, found: set[bytes]) -> int: ...
