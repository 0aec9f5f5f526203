"""Stored messages as entries of a bucket, and valid names."""

from __future__ import annotations

import nats.js.errors
import pytest

from headrace.client.kv_entry import (
    InvalidName,
    Operation,
    check_bucket,
    check_key,
    check_pattern,
    parse_operation,
)


@pytest.mark.parametrize(
    ("headers", "operation"),
    [
        (None, Operation.PUT),
        ({}, Operation.PUT),
        ({"Nats-Expected-Last-Subject-Sequence": "0"}, Operation.PUT),
        ({"KV-Operation": "DEL"}, Operation.DEL),
        ({"KV-Operation": "PURGE", "Nats-Rollup": "sub"}, Operation.PURGE),
        ({"KV-Operation": "PUT"}, Operation.PUT),
        ({"Nats-Marker-Reason": "MaxAge", "Nats-TTL": "3s"}, Operation.PURGE),
        ({"Nats-Marker-Reason": "Purge"}, Operation.PURGE),
        ({"Nats-Marker-Reason": "Remove"}, Operation.DEL),
        ({"Nats-Applied-Limit": "MaxAge"}, Operation.PURGE),
        ({"Nats-Limit-Applied": "MaxAge"}, Operation.PURGE),
        ({"Nats-Marker-Reason": "Something"}, None),
        ({"Nats-Applied-Limit": "Something"}, None),
        ({"KV-Operation": "DEL", "Nats-Marker-Reason": "MaxAge"}, Operation.DEL),
        ({"Nats-Marker-Reason": "Remove", "Nats-Applied-Limit": "MaxAge"}, Operation.DEL),
    ],
)
def test_operations_and_markers(headers: dict[str, str] | None, operation: Operation | None) -> None:
    assert parse_operation(headers) == operation


@pytest.mark.parametrize("key", ["a", "a.b", "orders/1=x_y-z", "A.9"])
def test_valid_keys_are_accepted(key: str) -> None:
    assert check_key(key) == key


@pytest.mark.parametrize("key", ["", ".a", "a.", "a..b", "a b", "a*", ">", "ä", "a\n"])
def test_what_is_no_key(key: str) -> None:
    with pytest.raises(InvalidName):
        check_key(key)
    with pytest.raises(nats.js.errors.InvalidKeyError):
        check_key(key)


def test_key_patterns_are_checked() -> None:
    assert [check_pattern(pattern) for pattern in ("", ">", "a.*", "a.>")] == [">", ">", "a.*", "a.>"]
    with pytest.raises(InvalidName):
        check_pattern("a..>")


@pytest.mark.parametrize("bucket", ["", "a.b", "a b", "a*", "a\n"])
def test_what_is_no_bucket(bucket: str) -> None:
    with pytest.raises(nats.js.errors.InvalidBucketNameError):
        check_bucket(bucket)
