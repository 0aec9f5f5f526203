"""`headrace stream` and `batch` on both servers."""

from pathlib import Path

from cli.conftest import Headrace


def test_a_stream_from_its_making_to_its_end(headrace: Headrace, name: str) -> None:
    limits = ("--max-age", "24h", "--max-bytes", "1GB", "--max-msgs", 10, "--dupe-window", "30s")
    kinds = ("--storage", "memory", "--discard", "new", "--marker-ttl", "1h", "--metadata", "team=mill")
    made = headrace.json("stream", "add", name, "--subjects", f"{name}.a,{name}.b", *limits, *kinds)
    config = made["config"]
    assert config["subjects"] == [f"{name}.a", f"{name}.b"]
    assert (config["max_age"], config["max_bytes"], config["max_msgs"]) == (86_400 * 10**9, 2**30, 10)
    assert (config["storage"], config["discard"]) == ("memory", "new")
    assert config["metadata"]["team"] == "mill"
    assert (config["subject_delete_marker_ttl"], config["allow_msg_ttl"]) == (3600 * 10**9, True)

    assert name in headrace("stream", "ls", "--names").split()
    assert any(info["config"]["name"] == name for info in headrace.json("stream", "ls"))
    assert "max age  1d" in headrace("stream", "info", name)

    assert headrace.json("stream", "edit", name, "--max-msgs", 20, "--dry-run") == {"max_msgs": 20}
    assert headrace.json("stream", "info", name)["config"]["max_msgs"] == 10
    edited = headrace.json("stream", "edit", name, "--max-msgs", 20, "--no-deny-delete")
    assert edited["config"]["max_msgs"] == 20
    assert edited["config"]["max_age"] == 86_400 * 10**9

    headrace("stream", "rm", name, code=2)
    assert "--force" in headrace.error
    assert headrace("stream", "rm", name, "--force") == f"removed {name}\n"
    headrace("stream", "info", name, code=3)
    assert "headrace stream ls" in headrace.error


def test_a_stream_like_another(headrace: Headrace, stream: str, name: str, tmp_path: Path) -> None:
    file = tmp_path / "stream.json"
    file.write_text(headrace("stream", "info", stream, "--json"))
    made = headrace.json("stream", "add", f"{name}b", "--config", file, "--subjects", f"{name}b.>")
    assert made["config"]["allow_atomic"]
    headrace("stream", "rm", f"{name}b", "-f")


def test_subjects_of_a_stream_are_required(headrace: Headrace, name: str) -> None:
    headrace("stream", "add", name, code=2)
    assert "--subjects" in headrace.error
    headrace("stream", "add", name, "--subjects", name, "--max-age", "soon", code=2)
    assert "'soon' is not a duration" in headrace.error


def test_messages_of_a_stream(headrace: Headrace, stream: str) -> None:
    for number in (1, 2, 3):
        headrace("pub", f"{stream}.{number % 2}", f"payload {number}", "-J", "-H", f"Number:{number}")
    got = headrace.json("stream", "get", stream, 2)
    assert (got["subject"], got["payload"], got["headers"]) == (f"{stream}.0", "payload 2", {"Number": "2"})
    assert headrace("stream", "get", stream, "--last-for", f"{stream}.1", "--raw") == "payload 3"
    assert headrace.json("stream", "get", stream, 2, "--next-for", f"{stream}.1")["seq"] == 3
    assert f"[{stream}.1] sequence 1," in headrace("stream", "get", stream, 1)
    assert headrace.json("stream", "subjects", stream) == {f"{stream}.0": 1, f"{stream}.1": 2}

    headrace("stream", "rmm", stream, 2, "-f")
    headrace("stream", "get", stream, 2, code=3)
    headrace("stream", "get", stream, code=2)
    assert headrace.json("stream", "purge", stream, "--keep", 1, "-f")["purged"] == 1
    assert headrace.json("stream", "info", stream)["state"]["messages"] == 1


def test_a_sealed_stream_takes_nothing_more(headrace: Headrace, stream: str) -> None:
    assert headrace.json("stream", "seal", stream, "-f")["config"]["sealed"]
    headrace("pub", f"{stream}.1", "late", "-J", code=1)


def test_lines_become_a_batch(headrace: Headrace, stream: str) -> None:
    stored = headrace.json("batch", "--subject", f"{stream}.1", stdin=b"one\r\ntwo\nthree")
    assert stored == {"stream": stream, "first_seq": 1, "last_seq": 3, "count": 3}
    assert headrace("stream", "get", stream, 1, "--raw") == "one"


def test_json_lines_become_a_batch(headrace: Headrace, stream: str, tmp_path: Path) -> None:
    file = tmp_path / "lines"
    lines = (
        f'{{"subject": "{stream}.1", "payload": {{"a": 1}}, "headers": {{"X": "y"}}, "ttl": "1h"}}\n\n'
        f'{{"payload_base64": "/wA=", "expect_last_subject_sequence": 0}}\n'
    )
    file.write_text(lines)
    assert headrace.json("batch", file, "--format", "ndjson", "--subject", f"{stream}.2")["count"] == 2
    first = headrace.json("stream", "get", stream, 1)
    assert (first["payload"], first["headers"]["X"]) == ('{"a": 1}', "y")
    assert headrace.json("stream", "get", stream, 2)["payload_base64"] == "/wA="
    headrace("batch", file, "--format", "ndjson", "--subject", f"{stream}.2", code=4)
    assert headrace.json("stream", "info", stream)["state"]["messages"] == 2


def test_files_become_a_batch(headrace: Headrace, stream: str, tmp_path: Path) -> None:
    files = [tmp_path / "a", tmp_path / "b"]
    for file in files:
        file.write_bytes(file.name.encode() + b"\n\0")
    assert headrace.json("batch", *files, "--format", "files", "--subject", f"{stream}.f")["count"] == 2
    assert headrace.json("stream", "get", stream, 2)["headers"]["File-Name"] == "b"


def test_what_cannot_be_a_batch(headrace: Headrace, stream: str, name: str) -> None:
    headrace("batch", "--subject", f"{stream}.1", code=2)
    assert "empty" in headrace.error
    headrace("batch", stdin=b"x", code=2)
    assert "--subject" in headrace.error
    headrace("batch", "--format", "ndjson", "--subject", "a", stdin=b'{"pay": 1}', code=2)
    assert "line 1: unknown field pay" in headrace.error
    headrace("batch", "--format", "ndjson", "--subject", "a", stdin=b"{}\nnonsense", code=2)
    assert "line 2" in headrace.error
    headrace("batch", "--subject", f"{stream}.1", stdin=b"x\n" * 1001, code=1)
    assert "split the input" in headrace.error
    headrace("stream", "edit", stream, "--no-allow-atomic")
    headrace("batch", "--subject", f"{stream}.1", stdin=b"x", code=1)
    assert "--allow-atomic" in headrace.error
    headrace("batch", "--subject", f"nobody.{name}", stdin=b"x", code=6)
