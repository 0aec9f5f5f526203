"""Upstreams that limit their consumers (`consumer_limits`): a copy still starts, and its consumer stays while it is away."""

from __future__ import annotations

from typing import Any

import pytest

from conformance.consumer_client import SECOND, eventually
from conformance.sourcing import Copying

LIMITS: dict[str, dict[str, Any]] = {
    "pending": {"max_ack_pending": 5},
    "threshold": {"inactive_threshold": 2 * SECOND},
    "both": {"max_ack_pending": 5, "inactive_threshold": 2 * SECOND},
}
MANAGED = {"name": "D", "server_managed": True}


def numbered(count: int) -> list[str]:
    return [str(n) for n in range(count)]


@pytest.mark.parametrize("mirror", [False, True], ids=["source", "mirror"])
@pytest.mark.parametrize("limits", LIMITS)
@pytest.mark.parametrize("retention", ["limits", "workqueue"])
class TestCopies:
    def copied(self, copying: Copying, mirror: bool, consumer: dict[str, Any] | None) -> None:
        """Copy 20 messages."""
        entry: dict[str, Any] = {"name": f"{copying.name}O"}
        if consumer is not None:
            entry["consumer"] = consumer
        copying.put("O", *numbered(20))
        copying.made("A", **({"mirror": entry} if mirror else {"sources": [entry]}))
        copying.until("A", 20)
        assert copying.data("A") == numbered(20)

    @pytest.mark.ours_only("A copy starts whatever the consumer limits of its upstream are")
    def test_ephemeral(self, copying: Copying, retention: str, limits: str, mirror: bool) -> None:
        copying.made("O", retention=retention, consumer_limits=LIMITS[limits])
        self.copied(copying, mirror, None)

    @pytest.mark.ours_only("The server creates a durable consumer for sourcing")
    def test_server_managed(self, copying: Copying, retention: str, limits: str, mirror: bool) -> None:
        copying.made("O", retention=retention, consumer_limits=LIMITS[limits])
        self.copied(copying, mirror, MANAGED)
        config = copying.client.api(f"CONSUMER.INFO.{copying.name}O.D")["config"]
        assert config["max_ack_pending"] == (5 if "max_ack_pending" in LIMITS[limits] else 65_536)

    def test_user_managed(self, copying: Copying, retention: str, limits: str, mirror: bool) -> None:
        copying.made("O", retention=retention, consumer_limits=LIMITS[limits])
        deliver = f"D.{copying.name}"
        copying.consumer("O", "D", deliver_subject=deliver)
        self.copied(copying, mirror, {"name": "D", "deliver_subject": deliver})


@pytest.mark.ours_only("A durable sourcing consumer does not inherit `inactive_threshold`")
class TestThreshold:
    """A consumer that ends while the copy is away would lose what an interest stream then removes."""

    def threshold(self, copying: Copying, name: str) -> int:
        config = copying.client.api(f"CONSUMER.INFO.{copying.name}O.{name}")["config"]
        return int(config.get("inactive_threshold", 0))

    def test_server_managed(self, copying: Copying) -> None:
        copying.made("O", retention="interest", consumer_limits=LIMITS["threshold"])
        copying.made("A", sources=[{"name": f"{copying.name}O", "consumer": MANAGED}])
        eventually(lambda: copying.consumers("O") == ["D"])
        assert self.threshold(copying, "D") == 0

    def test_user_managed(self, copying: Copying) -> None:
        copying.made("O", retention="interest", consumer_limits=LIMITS["threshold"])
        copying.consumer("O", "D", deliver_subject=f"D.{copying.name}")
        assert self.threshold(copying, "D") == 0
        copying.consumer("O", "E", deliver_subject=f"E.{copying.name}", inactive_threshold=SECOND)
        assert self.threshold(copying, "E") == SECOND

    @pytest.mark.parametrize("retention", ["workqueue", "interest"])
    def test_made_durable_by_the_upstream(self, copying: Copying, retention: str) -> None:
        copying.made("O", retention=retention, consumer_limits={"inactive_threshold": 20 * SECOND})
        copying.made("A", sources=[{"name": f"{copying.name}O"}])
        (name,) = eventually(lambda: copying.consumers("O"))
        assert self.threshold(copying, name) == 0
