"""The history that the server keeps for the web page."""

from __future__ import annotations

from pathlib import Path

import nats

import headrace
from headrace.monitor.server_history import SAMPLES_MAX, ServerHistory, find_quantile_us


async def test_samples_have_what_happened_since_the_one_before(tmp_path: Path) -> None:
    async with headrace.Server(store_dir=tmp_path) as server:
        history = ServerHistory(server)
        history.start()
        client = await nats.connect(server.url)
        await client.jetstream().add_stream(name="S", subjects=["s"])
        await client.jetstream().publish("s", b"x" * 1000)
        history.take_sample()
        history.take_sample()
        columns = history.to_columns()
        assert columns["in_msgs"][0] > 0
        assert columns["in_msgs"][1] == 0
        assert columns["commit_p99_us"][0] > 0
        assert columns["stored_bytes"][0] > 1000
        assert columns["connections"] == [1, 1]
        await client.close()
        history.stop()


async def test_the_number_of_samples_is_fixed(tmp_path: Path) -> None:
    async with headrace.Server(store_dir=tmp_path) as server:
        history = ServerHistory(server)
        assert history.to_columns()["memory"] == []
        history.start()
        for _ in range(SAMPLES_MAX + 5):
            history.take_sample()
        history.stop()
        assert len(history.to_columns()["memory"]) == SAMPLES_MAX


def test_quantiles_of_counts() -> None:
    assert find_quantile_us([0, 0, 0], 0.5) == 0
    assert find_quantile_us([99, 0, 1], 0.5) == 32
    assert find_quantile_us([98, 0, 2], 0.99) == 128
