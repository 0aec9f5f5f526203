"""`headrace kv` and `object` on both servers."""

from pathlib import Path

import pytest

from cli.conftest import Headrace


@pytest.fixture
def bucket(headrace: Headrace, name: str) -> str:
    headrace("kv", "add", name, "--history", 3, "--markers", "1h", "--description", "of a test")
    return name


def test_kv_put_get_and_delete_keys(headrace: Headrace, bucket: str) -> None:
    assert headrace.json("kv", "put", bucket, "a", "1") == {"bucket": bucket, "key": "a", "revision": 1}
    assert headrace("kv", "get", bucket, "a") == "1\n"
    assert headrace("kv", "get", bucket, "a", "--raw") == "1"
    headrace("kv", "put", bucket, "b.c", stdin=b"\xff\0")
    assert headrace.json("kv", "get", bucket, "b.c")["value_base64"] == "/wA="
    assert headrace("kv", "ls", bucket) == "a\nb.c\n"
    assert headrace("kv", "keys", bucket, "b.*") == "b.c\n"
    assert headrace.json("kv", "update", bucket, "a", "2", "--revision", 1)["revision"] == 3
    assert [entry["value"] for entry in headrace.json("kv", "history", bucket, "a")] == ["1", "2"]
    assert headrace.json("kv", "get", bucket, "a", "--revision", 1)["value"] == "1"

    headrace("kv", "del", bucket, "a", "-f")
    headrace("kv", "get", bucket, "a", code=3)
    headrace("kv", "purge", bucket, "b.c", "-f")
    headrace("kv", "keys", bucket, code=3)
    assert headrace.json("kv", "compact", bucket, "--older-than", 0, "-f")["removed"] == 4


def test_the_second_one_gets_an_error(headrace: Headrace, bucket: str) -> None:
    headrace("kv", "create", bucket, "a", "1", "--ttl", "1h")
    headrace("kv", "create", bucket, "a", "2", code=4)
    assert "kv put" in headrace.error
    headrace("kv", "update", bucket, "a", "2", "--revision", 9, code=4)
    headrace("kv", "del", bucket, "a", "--revision", 9, "-f", code=4)
    assert headrace("kv", "get", bucket, "a") == "1\n"


def test_kv_watch_prints_changes(headrace: Headrace, bucket: str) -> None:
    headrace("kv", "put", bucket, "a", "1")
    headrace("kv", "del", bucket, "a", "-f")
    headrace("kv", "put", bucket, "b", "2")
    seen = headrace.lines("kv", "watch", bucket, "--count", 2)
    assert [(entry["operation"], entry["key"]) for entry in seen] == [("DEL", "a"), ("PUT", "b")]
    assert "PUT b: 2" in headrace("kv", "watch", bucket, "b", "--history", "--count", 1)


def test_kv_buckets_are_listed_edited_and_removed(headrace: Headrace, bucket: str) -> None:
    assert bucket in headrace("kv", "ls", "--names").split()
    status = headrace.json("kv", "status", bucket)
    assert (status["history"], status["marker_ttl_s"], status["description"]) == (3, 3600, "of a test")
    assert headrace.json("kv", "edit", bucket, "--history", 5, "--ttl", "24h")["ttl_s"] == 86400
    headrace("kv", "edit", bucket, code=2)
    headrace("kv", "rm", bucket, code=2)
    headrace("kv", "rm", bucket, "-f")
    headrace("kv", "status", bucket, code=3)
    assert "kv add" in headrace.error
    headrace("kv", "add", "no such name", code=2)
    assert "is not a valid bucket name" in headrace.error


def test_objects_are_stored_listed_and_read_back(headrace: Headrace, name: str, tmp_path: Path) -> None:
    file = tmp_path / "large"
    file.write_bytes(bytes(range(256)) * 2000)
    headrace("object", "add", name, "--description", "of a test")
    stored = headrace.json("object", "put", name, file, "--name", "picture")
    assert (stored["name"], stored["size"]) == ("picture", 512_000)
    assert [each["name"] for each in headrace.json("object", "ls", name)] == ["picture"]
    assert any(each["bucket"] == name for each in headrace.json("object", "ls"))
    back = tmp_path / "back"
    headrace("object", "get", name, "picture", "--output", back)
    assert back.read_bytes() == file.read_bytes()
    assert "picture" in headrace("object", "info", name, "picture")
    headrace("object", "get", name, "other", code=3)
    headrace("object", "rm", name, "picture", "-f")
    headrace("object", "get", name, "picture", code=3)
    headrace("object", "rm", name, "-f")
    headrace("object", "ls", name, code=3)
