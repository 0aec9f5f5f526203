"""Mirrors and sources with a durable consumer, managed by the user or by the server.

The numbers of vectors are those of the sourcing specification.
"""

from __future__ import annotations

import contextlib
import time
from typing import Any

import pytest

from conformance.consumer_client import SECOND, eventually
from conformance.servers import Server
from conformance.sourcing import Copying


def entry(copying: Copying, tail: str = "O", **consumer: Any) -> dict[str, Any]:
    """Return a source or mirror that uses the consumer D, which delivers to D.<name>."""
    deliver = {} if consumer.get("server_managed") else {"deliver_subject": f"D.{copying.name}"}
    return {"name": f"{copying.name}{tail}", "consumer": {"name": "D", **deliver, **consumer}}


def user_made(copying: Copying, tail: str = "O", **config: Any) -> None:
    copying.consumer(tail, "D", deliver_subject=f"D.{copying.name}", **config)


class TestUserManaged:
    @pytest.mark.parametrize("retention", ["limits", "workqueue", "interest"])
    def test_a_source_uses_the_users_consumer(self, copying: Copying, retention: str) -> None:
        copying.made("O", retention=retention)
        user_made(copying)
        copying.put("O", "a", "b", "c")
        copying.made("A", sources=[entry(copying)])
        copying.until("A", 3)
        copying.put("O", "d")
        copying.until("A", 4)
        assert copying.data("A") == ["a", "b", "c", "d"]
        assert copying.all("A")[0].origin.startswith(f"{copying.name}O:C=")
        kept = 4 if retention == "limits" else 0
        eventually(lambda: copying.state("O")[0] == kept)
        assert copying.consumers("O") == ["D"]

    @pytest.mark.parametrize("retention", ["limits", "workqueue", "interest"])
    def test_a_mirror_with_a_server_managed_consumer_drains_a_workqueue(
        self, copying: Copying, retention: str
    ) -> None:
        copying.made("O", retention=retention)
        user_made(copying)
        copying.put("O", "a", "b", "c")
        copying.made("M", mirror=entry(copying))
        copying.until("M", 3)
        assert [m.seq for m in copying.all("M")] == [1, 2, 3]
        copying.delete("M")
        assert copying.consumers("O") == ["D"]

    def test_more_than_may_be_pending(self, copying: Copying) -> None:
        copying.made("O", retention="workqueue")
        user_made(copying, max_ack_pending=3)
        copying.put("O", *(str(n) for n in range(20)))
        copying.made("A", sources=[entry(copying)])
        copying.until("A", 20, 120)
        eventually(lambda: copying.state("O")[0] == 0)
        assert copying.data("A") == [str(n) for n in range(20)]

    def test_another_policy_is_refused(self, copying: Copying) -> None:
        copying.made("O")
        copying.consumer("O", "D", deliver_subject=f"D.{copying.name}", ack_policy="none")
        copying.made("A", sources=[entry(copying)])
        copying.made("M", mirror=entry(copying))
        shown = eventually(lambda: copying.info("A")["sources"][0].get("error"))
        assert shown == {
            "code": 400,
            "err_code": 10217,
            "description": "stream source consumer requires flow control ack policy",
        }
        assert eventually(lambda: copying.info("M")["mirror"].get("error"))["err_code"] == 10214

    @pytest.mark.ours_only("A source whose consumer delivers elsewhere reports an error")
    @pytest.mark.parametrize("mirror", [False, True], ids=["source", "mirror"])
    def test_another_deliver_subject_is_an_error(self, copying: Copying, mirror: bool) -> None:
        copying.made("O")
        copying.put("O", "a")
        copying.consumer("O", "D", deliver_subject=f"OTHER.{copying.name}")
        copying.made("A", **({"mirror": entry(copying)} if mirror else {"sources": [entry(copying)]}))

        def error() -> dict[str, Any] | None:
            info = copying.info("A")
            found: dict[str, Any] | None = (info["mirror"] if mirror else info["sources"][0]).get("error")
            return found

        shown = eventually(error)
        assert shown["err_code"] == (10213 if mirror else 10215)
        assert f"OTHER.{copying.name}" in shown["description"]
        copying.consumer("O", "D", deliver_subject=f"D.{copying.name}")
        copying.until("A", 1, 120)

    def test_a_consumer_that_comes_later(self, copying: Copying, server: Server) -> None:
        copying.made("O")
        copying.put("O", "a", "b")
        copying.made("LISTENING")
        copying.consumer(
            "LISTENING",
            "L",
            deliver_subject=f"D.{copying.name}",
            ack_policy="none",
            flow_control=False,
            idle_heartbeat=0,
        )
        copying.made("A", sources=[entry(copying)])
        bound = f"CONSUMER.INFO.{copying.name}LISTENING.L"
        eventually(lambda: copying.client.api(bound).get("push_bound"))
        user_made(copying)
        if not server.is_ours:
            # It subscribes only when its request got no reply, and misses what arrives at that moment, forever.
            for _ in range(4):
                with contextlib.suppress(AssertionError):
                    copying.until("A", 2, 20)
                    break
                copying.client.api(f"CONSUMER.DELETE.{copying.name}O.D")
                user_made(copying)
        copying.until("A", 2, 90)
        assert copying.data("A") == ["a", "b"]

    def test_last_per_subject(self, copying: Copying) -> None:
        copying.made("O")
        for token in "xyxyx":
            copying.put("O", token, token=token)
        user_made(copying, deliver_policy="last_per_subject", filter_subject=f"{copying.name}O.>")
        copying.made("M", mirror=entry(copying))
        copying.until("M", 2)
        assert [(m.seq, m.data) for m in copying.all("M")] == [(4, "y"), (5, "x")]
        copying.put("O", "new")
        copying.until("M", 3)

    def test_a_paused_server_managed_consumer_stops_the_copy(self, copying: Copying) -> None:
        copying.made("O")
        user_made(copying)
        copying.put("O", "a")
        copying.made("A", sources=[entry(copying)])
        copying.until("A", 1)
        until = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 3600))
        assert copying.client.api(f"CONSUMER.PAUSE.{copying.name}O.D", {"pause_until": until})["paused"]
        copying.put("O", "b")
        time.sleep(1.5)
        assert copying.state("A")[0] == 1
        assert "error" not in copying.info("A")["sources"][0]
        copying.client.api(f"CONSUMER.PAUSE.{copying.name}O.D")
        copying.until("A", 2)

    @pytest.mark.parametrize("mirror", [False, True], ids=["source", "mirror"])
    def test_a_user_resets_it_backward(self, copying: Copying, mirror: bool) -> None:
        """Vector 15."""
        copying.made("O")
        user_made(copying)
        copying.put("O", *(f"m{n}" for n in range(1, 11)))
        copying.made("A", **({"mirror": entry(copying)} if mirror else {"sources": [entry(copying)]}))
        copying.until("A", 10)
        copying.reset("O", "D", {"seq": 3})
        time.sleep(1.5)
        copying.put("O", "m11", "m12")
        copying.until("A", 12, 120)
        assert copying.data("A") == [f"m{n}" for n in range(1, 13)]

    def test_a_user_resets_a_mirror_forward(self, copying: Copying) -> None:
        """Vector 15."""
        self.forward(copying, mirror=entry(copying))
        assert copying.state("A") == (15, 1, 20, 5)

    def test_a_user_resets_a_source_forward(self, copying: Copying) -> None:
        """Vector 15."""
        self.forward(copying, sources=[entry(copying)])

    def forward(self, copying: Copying, **config: Any) -> None:
        copying.made("O")
        user_made(copying)
        copying.put("O", *(f"m{n}" for n in range(1, 13)))
        copying.made("A", **config)
        copying.until("A", 12)
        copying.reset("O", "D", {"seq": 18})
        copying.put("O", *(f"m{n}" for n in range(13, 21)))
        expected = [f"m{n}" for n in (*range(1, 13), 18, 19, 20)]
        eventually(lambda: copying.data("A") == expected, 120)

    @pytest.mark.ours_only("A source detects a reset of its consumer at once")
    def test_a_user_resets_it_while_more_arrives(self, copying: Copying) -> None:
        copying.made("O")
        user_made(copying)
        copying.put("O", *(f"m{n}" for n in range(1, 11)))
        copying.made("A", sources=[entry(copying)])
        copying.until("A", 10)
        copying.reset("O", "D", {"seq": 3})
        copying.put("O", "m11", "m12")
        copying.until("A", 12)
        assert copying.data("A") == [f"m{n}" for n in range(1, 13)]

    def test_deleted_and_made_again(self, copying: Copying) -> None:
        copying.made("O")
        user_made(copying)
        copying.put("O", "a", "b")
        copying.made("A", sources=[entry(copying)])
        copying.until("A", 2)
        copying.client.api(f"CONSUMER.DELETE.{copying.name}O.D")
        copying.put("O", "c")
        user_made(copying)
        copying.until("A", 3, 120)
        assert copying.data("A") == ["a", "b", "c"]

    def test_transforms_only_rename(self, copying: Copying) -> None:
        copying.made("O")
        user_made(copying)
        copying.put("O", "a", token="x")
        copying.put("O", "b", token="y")
        renamed = {**entry(copying), "subject_transforms": [{"src": f"{copying.name}O.x", "dest": "new.x"}]}
        copying.made("A", sources=[renamed])
        copying.until("A", 2)
        assert [m.subject for m in copying.all("A")] == ["new.x", f"{copying.name}O.y"]


@pytest.mark.ours_only("The server creates a durable consumer for sourcing")
class TestServerManaged:
    @pytest.mark.parametrize("retention", ["limits", "workqueue", "interest"])
    def test_makes_its_consumer(self, copying: Copying, retention: str) -> None:
        copying.made("O", retention=retention)
        if retention != "interest":
            copying.put("O", "a", "b")
        copying.made("A", sources=[entry(copying, server_managed=True)])
        eventually(lambda: copying.consumers("O") == ["D"])
        if retention == "interest":
            copying.put("O", "a", "b")
        copying.until("A", 2)
        info = copying.client.api(f"CONSUMER.INFO.{copying.name}O.D")
        assert info["config"]["ack_policy"] == "flow_control"
        eventually(lambda: copying.state("O")[0] == (2 if retention == "limits" else 0))
        assert copying.all("A")[0].origin.startswith(f"{copying.name}O 1 > > ")
        copying.delete("A")
        eventually(lambda: not copying.consumers("O"))

    def test_start_and_filter_come_from_the_entry(self, copying: Copying) -> None:
        copying.made("O")
        for token in "xyxy":
            copying.put("O", token, token=token)
        wanted = {
            **entry(copying, server_managed=True),
            "filter_subject": f"{copying.name}O.y",
            "opt_start_seq": 3,
        }
        copying.made("A", sources=[wanted])
        copying.until("A", 1)
        assert copying.all("A")[0].origin.split(" ")[1] == "4"

    def test_a_mirror_with_a_server_managed_consumer_drains_a_workqueue(self, copying: Copying) -> None:
        copying.made("O", retention="workqueue")
        copying.put("O", "a", "b")
        copying.made("M", mirror=entry(copying, server_managed=True))
        copying.until("M", 2)
        eventually(lambda: copying.state("O")[0] == 0)

    @pytest.mark.parametrize("mirror", [False, True], ids=["source", "mirror"])
    def test_switching_the_kind_of_consumer_loses_and_doubles_nothing(
        self, copying: Copying, mirror: bool
    ) -> None:
        """Ephemeral, server-managed, user-managed and back: nothing is copied twice, nothing is lost."""
        copying.made("O")
        plain = {"name": f"{copying.name}O"}
        ways = [plain, entry(copying, server_managed=True), entry(copying, name="U"), plain]
        copying.consumer("O", "U", deliver_subject=f"D.{copying.name}")
        config = {"mirror": plain} if mirror else {"sources": [plain]}
        copying.made("A", **config)
        sent: list[str] = []
        for turn, way in enumerate(ways):
            if turn:
                config = {"mirror": way} if mirror else {"sources": [way]}
                assert "error" not in copying.update("A", **config)
            batch = [f"{turn}.{n}" for n in range(5)]
            copying.put("O", *batch)
            sent += batch
            copying.until("A", len(sent), 120)
        assert copying.data("A") == sent

    def test_a_paused_server_managed_consumer_stops_the_copy(self, copying: Copying) -> None:
        copying.made("O", retention="workqueue")
        copying.made("A", sources=[entry(copying, server_managed=True)])
        eventually(lambda: copying.consumers("O") == ["D"])
        until = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 3600))
        copying.client.api(f"CONSUMER.PAUSE.{copying.name}O.D", {"pause_until": until})
        copying.put("O", "a")
        time.sleep(0.3)
        assert (copying.state("O")[0], copying.state("A")[0]) == (1, 0)
        copying.client.api(f"CONSUMER.PAUSE.{copying.name}O.D")
        copying.until("A", 1)
        eventually(lambda: copying.state("O")[0] == 0)


def test_a_window_is_acknowledged_by_heartbeat(copying: Copying) -> None:
    """Vector 8: pending messages are acknowledged about a second after their delivery, without more messages."""
    copying.made("O", retention="workqueue")
    user_made(copying)
    copying.made("A", sources=[entry(copying)])
    copying.put("O", "a", "b")
    copying.until("A", 2)
    eventually(lambda: copying.state("O")[0] == 0)
    info = copying.client.api(f"CONSUMER.INFO.{copying.name}O.D")
    assert info["ack_floor"]["stream_seq"] == 2
    assert info["config"]["idle_heartbeat"] == SECOND
