from typing import Any

def encode_deliveries(
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
def encode_leafnode_run(
    to: bytes,
    view: memoryview,
    seqs: Any,
    at: int,
    most: int,
    ack: bytes,
    cseq: int,
    pending: int,
    bytes_max: int,
) -> tuple[bytearray, int, int]: ...
def split_ack_subject(subject: bytes) -> tuple[bytes, int, int, int] | None: ...
def collect_subjects(view: memoryview, last: int, found: set[bytes]) -> int: ...
