from __future__ import annotations

import pytest

from headrace.spark.write.encode_rows import RawMessage, make_message_columns
from headrace.spark.write.row_blocks import RowBlock, decode_block, encode_block

MESSAGES: list[RawMessage] = [(b"a.b", b"A: 1\r\n", b""), (b"c", b"", b"\x00" * 300), (b"d", b"", b"x")]


@pytest.mark.parametrize("has_headers", [True, False])
def test_a_block_is_decoded_as_it_was_encoded(has_headers: bool) -> None:
    columns = make_message_columns(MESSAGES).slice(1, 3)
    if not has_headers:
        columns = type(columns)(columns.subjects, None, columns.payloads)
    claims = {1: {"claim_id": "x", "places": {}}}
    found = decode_block(encode_block(RowBlock(columns, claims)))
    assert [found.columns.get_message(row) for row in range(2)] == MESSAGES[1:]
    assert (found.columns.header_lines is None) == (not has_headers)
    assert found.claims == claims
