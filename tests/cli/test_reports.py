"""`headrace stream report`, `consumer report` and `consumer copy` on both servers."""

from typing import Any

from cli.conftest import Headrace


def test_streams_are_sorted(headrace: Headrace, stream: str) -> None:
    headrace("stream", "add", f"{stream}b", "--subjects", f"{stream}b")
    headrace("pub", f"{stream}.1", "x", "-J", "-n", 3)
    headrace("pub", f"{stream}b", "x" * 1000, "-J")
    headrace("consumer", "add", f"{stream}b", "worker")

    def report(*words: object) -> list[dict[str, Any]]:
        return [row for row in headrace.json("stream", "report", *words) if row["stream"].startswith(stream)]

    rows = {row["stream"]: row for row in report()}
    assert (rows[stream]["messages"], rows[stream]["lag"]) == (3, None)
    other = rows[f"{stream}b"]
    assert (other["messages"], other["consumers"], other["lag"], other["upstream_lag"]) == (1, 1, 1, None)
    assert other["bytes"] > rows[stream]["bytes"]
    names = [stream, f"{stream}b"]
    assert [row["stream"] for row in report()] == names
    assert [row["stream"] for row in report("--reverse")] == names[::-1]
    assert [row["stream"] for row in report("--sort", "messages")] == names
    for column in ("bytes", "consumers", "lag", "last"):
        assert [row["stream"] for row in report("--sort", column)] == names[::-1], column
    assert "UPSTREAM LAG" not in headrace("stream", "report")
    headrace("stream", "add", f"{stream}m", "--mirror", stream)
    assert "UPSTREAM LAG" in headrace("stream", "report")
    for each in ("b", "m"):
        headrace("stream", "rm", f"{stream}{each}", "-f")


def test_stuck_consumers_come_first(headrace: Headrace, stream: str) -> None:
    headrace("consumer", "add", stream, "a-idle", "--filter", f"{stream}.other")
    headrace("consumer", "add", stream, "b-paused", "--filter", f"{stream}.other")
    headrace("consumer", "add", stream, "c-full", "--max-pending", 1)
    headrace("consumer", "add", stream, "d-unread")
    headrace("consumer", "add", stream, "e-push", "--deliver", f"deliver.{stream}")
    headrace("pub", f"{stream}.1", "x", "-J", "-n", 2)
    headrace("consumer", "pause", stream, "b-paused", "1h")
    headrace("consumer", "next", stream, "c-full", "--answer", "none")
    rows = {row["consumer"]: row for row in headrace.json("consumer", "report", stream)}
    states = {name: row["state"] for name, row in rows.items()}
    assert states == {
        "a-idle": "",
        "b-paused": "paused",
        "c-full": "max ack pending",
        "d-unread": "no pulls",
        "e-push": "no subscriber",
    }
    assert list(rows)[-1] == "a-idle"
    assert (rows["c-full"]["pending"], rows["c-full"]["ack_pending"]) == (1, 1)
    first_time = headrace.json("stream", "get", stream, 1)["time"]
    assert rows["c-full"]["oldest"] == rows["d-unread"]["oldest"] == first_time
    assert rows["a-idle"]["oldest"] is None
    shown = headrace("consumer", "report", stream).splitlines()
    assert shown[0].split()[:3] == ["CONSUMER", "STATE", "PENDING"]
    assert any(row["stream"] == stream for row in headrace.json("consumer", "report"))
    headrace("consumer", "report", f"{stream}x", code=3)


def test_a_consumer_that_redelivers(headrace: Headrace, stream: str) -> None:
    headrace("consumer", "add", stream, "worker")
    headrace("pub", f"{stream}.1", "x", "-J")
    headrace("consumer", "next", stream, "worker", "--answer", "nak")
    headrace("consumer", "next", stream, "worker", "--answer", "none")
    (row,) = headrace.json("consumer", "report", stream)
    assert (row["state"], row["redelivered"]) == ("redelivering", 1)


def test_a_copy_of_a_consumer(headrace: Headrace, stream: str) -> None:
    headrace("consumer", "add", stream, "worker", "--filter", f"{stream}.a", "--max-deliver", 4)
    made = headrace.json("consumer", "copy", stream, "worker", "other", "--max-deliver", 5)
    config = made["config"]
    assert (config["durable_name"], config["filter_subject"], config["max_deliver"]) == (
        "other",
        f"{stream}.a",
        5,
    )
    headrace("consumer", "copy", stream, "worker", "other", "--max-deliver", 6, code=1)
    headrace("consumer", "add", stream, "push", "--deliver", f"deliver.{stream}")
    headrace("consumer", "copy", stream, "push", "push2", code=2)
    assert "--deliver" in headrace.error
    headrace("consumer", "copy", stream, "push", "push2", "--deliver", f"deliver2.{stream}")
    headrace("consumer", "copy", stream, "none", "push3", code=3)
