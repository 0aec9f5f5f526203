from __future__ import annotations

from collections import Counter

from headrace.claims import reference
from headrace.spark.write.encode_rows import make_message_columns
from headrace.spark.write.row_digests import digest_message, drop_counted_rows


def test_headers_that_publishers_add_do_not_change_a_digest() -> None:
    plain = digest_message(b"s", b"A: b\r\n", b"x")
    stored = b"NATS/1.0\r\nA: b\r\nNats-Batch-Id: q\r\nNats-Batch-Sequence: 1\r\nNats-Msg-Id: 7\r\n\r\n"
    assert digest_message(b"s", stored, b"x") == plain
    others = [
        (b"t", b"A: b\r\n", b"x"),
        (b"s", b"A: c\r\n", b"x"),
        (b"s", b"A: b\r\n", b"y"),
        (b"s", b"", b"x"),
    ]
    assert len({plain, *(digest_message(*each) for each in others)}) == 5


def test_a_claim_is_recognised_by_its_checksum() -> None:
    header = f"{reference.CLAIM_HEADER}: true\r\n".encode()
    first = digest_message(b"s", header, b'{"claim_id": "1", "checksum": "c"}')
    assert first == digest_message(b"s", header, b'{"claim_id": "2", "checksum": "c"}')
    assert first != digest_message(b"s", header, b'{"claim_id": "1", "checksum": "d"}')


def test_each_counted_row_is_left_out_once() -> None:
    message = (b"s", b"", b"x")
    columns = make_message_columns([message, (b"s", b"", b"y"), message, message])
    counted = Counter({digest_message(*message): 2})
    assert drop_counted_rows(columns, counted, lambda subject: subject) == [1, 3]
