"""JSON payloads as columns: what fits, what goes to `_error`, and what never stops."""

from __future__ import annotations

import pyarrow as pa
import pytest

from headrace.reader.json_columns import JsonColumns

FIELDS = [pa.field("id", pa.int64()), pa.field("name", pa.string()), pa.field("price", pa.decimal128(6, 2))]


def parse(*payloads: bytes) -> tuple[list[dict[str, object]], list[str | None]]:
    columns, errors = JsonColumns(FIELDS).parse(pa.array(payloads, pa.binary()))
    return pa.RecordBatch.from_pydict(columns).to_pylist(), errors.to_pylist()


def test_fields_that_fit_have_no_error() -> None:
    rows, errors = parse(b'{"id": 1, "name": "a", "price": 1.5, "other": [1]}', b'{"id": null}')
    assert [str(row["price"]) for row in rows] == ["1.50", "None"]
    assert (rows[0]["id"], rows[0]["name"], rows[1]["id"], rows[1]["name"]) == (1, "a", None, None)
    assert errors == [None, None]


@pytest.mark.parametrize(
    ("payload", "error"),
    [
        (b"not json", "not JSON: Expecting value: line 1 column 1 (char 0)"),
        (b"", "the payload is empty"),
        (b"  \n", "the payload is empty"),
        (b"[1, 2]", "not a JSON object: list"),
        (b"null", "not a JSON object: NoneType"),
        (b'{"id": "x", "name": "b"}', 'id: "x" is not int64'),
        (b'{"id": 1.5, "price": "y"}', 'id: 1.5 is not int64; price: "y" is not decimal128(6, 2)'),
        (b'{"id": 99999999999999999999}', "id: 99999999999999999999 is not int64"),
        (b"\xff\xfe", "not JSON: "),
        (b"[" * 100_000, "not JSON: "),
    ],
)
def test_what_does_not_fit_is_an_error_of_its_row(payload: bytes, error: str) -> None:
    rows, errors = parse(b'{"id": 7, "name": "before"}', payload, b'{"id": 8}')
    assert (rows[0]["id"], rows[2]["id"]) == (7, 8)
    assert (errors[0], errors[2]) == (None, None)
    assert errors[1] is not None
    assert errors[1].startswith(error)


def test_the_other_fields_of_a_payload_are_there() -> None:
    rows, _ = parse(b'{"id": "x", "name": "b", "price": 2}')
    assert (rows[0]["id"], rows[0]["name"], str(rows[0]["price"])) == (None, "b", "2.00")


def test_an_error_is_short() -> None:
    _, errors = parse(b'{"id": "%s"}' % (b"x" * 10_000))
    assert errors[0] is not None
    assert len(errors[0]) == 300


@pytest.mark.parametrize("kind", [pa.time64("us"), pa.uuid(), pa.list_(pa.time64("us"))], ids=str)
def test_a_type_that_json_does_not_have_stops_nothing(kind: pa.DataType) -> None:
    payloads = pa.array([b'{"id": 1, "at": "12:00"}', b'{"id": 2, "at": null}', b'{"id": 3}'])
    columns, errors = JsonColumns([pa.field("id", pa.int64()), pa.field("at", kind)]).parse(payloads)
    assert columns["id"].to_pylist() == [1, 2, 3]
    assert (columns["at"].type, columns["at"].null_count) == (kind, 3)
    assert errors.to_pylist() == [f'at: "12:00" is not {kind}', None, None]
