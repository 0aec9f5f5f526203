"""Only one copy uses a durable consumer: a second one would take messages from the first."""

from __future__ import annotations

from typing import Any

import pytest

from conformance import backups
from conformance.client import Client
from conformance.consumer_client import eventually
from conformance.leafnode_pair import HUB, LEAF, await_joined, joined, leaf_setup
from conformance.servers import NATS_SERVER, OURS, Server
from conformance.sourcing import Copying
from support.ports import free_port

MANAGED = {"name": "D", "server_managed": True}


def entry(copying: Copying, consumer: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"name": f"{copying.name}O", "consumer": consumer, **more}


def by_user(copying: Copying) -> dict[str, Any]:
    return {"name": "D", "deliver_subject": f"D.{copying.name}"}


def numbered(count: int, start: int = 0) -> list[str]:
    return [str(n) for n in range(start, start + count)]


@pytest.mark.ours_only("The server creates a durable consumer for sourcing")
class TestSameAccount:
    @pytest.mark.parametrize("way", ["mirror", "sources"])
    @pytest.mark.parametrize("is_managed", [True, False])
    def test_the_second_is_refused(self, copying: Copying, way: str, is_managed: bool) -> None:
        copying.made("O", retention="workqueue")
        copying.made("A", sources=[entry(copying, MANAGED)])
        other = entry(copying, MANAGED if is_managed else by_user(copying))
        answer = copying.stream("B", **{way: other if way == "mirror" else [other]})
        assert answer["error"]["err_code"] == 10216
        assert f"'{copying.name}A'" in answer["error"]["description"]
        copying.put("O", *numbered(40))
        copying.until("A", 40)
        assert copying.data("A") == numbered(40)
        copying.made("B", sources=[entry(copying, {**MANAGED, "name": "E"}, filter_subject="nothing")])

    def test_an_update_that_brings_the_clash_is_refused(self, copying: Copying) -> None:
        copying.made("O")
        copying.made("A", sources=[entry(copying, MANAGED)])
        copying.made("B", sources=[{"name": f"{copying.name}O"}])
        answer = copying.update("B", sources=[entry(copying, MANAGED)])
        assert answer["error"]["err_code"] == 10216
        assert "error" not in copying.update("A", sources=[entry(copying, MANAGED)], description="still mine")
        copying.put("O", *numbered(10))
        for tail in "AB":
            copying.until(tail, 10)

    def test_a_backup_of_a_copy_is_not_a_second_reader(self, copying: Copying) -> None:
        copying.made("O", retention="workqueue")
        copying.made("A", sources=[entry(copying, MANAGED)])
        copying.put("O", *numbered(5))
        copying.until("A", 5)
        name, client = f"{copying.name}A", copying.client
        taken = backups.take(client, name)
        config = {**taken.answer["config"], "name": f"{copying.name}B"}
        refused = client.api(f"STREAM.RESTORE.{copying.name}B", {"config": config})
        assert refused["error"]["err_code"] == 10216
        copying.delete("A")
        backups.give(client, name, taken.data, taken.answer["config"])
        copying._made.append(name)
        copying.put("O", *numbered(5, 5))
        copying.until("A", 10)
        assert copying.data("A") == numbered(10)

    def test_a_stream_that_is_created_again_has_its_consumer(self, copying: Copying) -> None:
        copying.made("O", retention="workqueue")
        for turn in range(2):
            copying.made("A", sources=[entry(copying, MANAGED)])
            copying.put("O", *numbered(5, turn))
            copying.until("A", 5)
            eventually(lambda: copying.state("O")[0] == 0)
            copying.delete("A")

    def test_a_restart_changes_nothing(self, name: str) -> None:
        with Server(OURS) as server:
            with Client(server.port) as client:
                copying = Copying(client, name)
                copying.made("O", retention="workqueue")
                copying.made("A", sources=[entry(copying, MANAGED)])
                copying.put("O", *numbered(5))
                copying.until("A", 5)
            server.restart(crash=True)
            with Client(server.port) as client:
                copying = Copying(client, name)
                assert copying.stream("B", mirror=entry(copying, MANAGED))["error"]["err_code"] == 10216
                copying.put("O", *numbered(5, 5))
                copying.until("A", 10)
                assert "error" not in copying.info("A")["sources"][0]

    @pytest.mark.ours_only("Only one copy reads through a durable consumer")
    def test_a_consumer_of_the_user_has_one_reader(self, copying: Copying) -> None:
        """As in nats-server the stream is created; unlike there it waits, and reports the owner."""
        copying.made("O", retention="workqueue")
        copying.consumer("O", "D", deliver_subject=f"D.{copying.name}")
        copying.made("A", sources=[entry(copying, by_user(copying))])
        copying.put("O", *numbered(20))
        copying.until("A", 20)
        copying.made("B", sources=[entry(copying, by_user(copying))])
        shown = eventually(lambda: copying.info("B")["sources"][0].get("error"))
        assert shown["err_code"] == 10013
        assert f"'{copying.name}A'" in shown["description"]
        copying.put("O", *numbered(20, 20))
        copying.until("A", 40)
        assert (copying.data("A"), copying.state("B")[0]) == (numbered(40), 0)
        copying.delete("B")
        assert copying.consumers("O") == ["D"]


@pytest.mark.parametrize("hub_kind", [OURS, NATS_SERVER])
def test_two_leafnodes_that_name_one_consumer(hub_kind: str, name: str) -> None:
    """Neither server knows the other: the consumer's metadata names the owner."""
    port = free_port()
    external = {"api": f"$JS.{HUB}.API", "deliver": ""}
    with joined(hub_kind, OURS, leaf_port=port) as pair:
        setup = leaf_setup(f"nats-leaf://127.0.0.1:{port}", name="other", domain="OTHER")
        with Server(OURS, setup) as server, Client(server.port) as client:
            await_joined(client, pair.hub.client)
            hub, first = Copying(pair.hub.client, name), Copying(pair.leaf.client, name)
            second = Copying(client, name)
            hub.made("O", retention="workqueue")
            for copy in (first, second):
                copy.made("A", sources=[entry(hub, MANAGED, external=external)])
                eventually(lambda: hub.consumers("O") == ["D"])
            shown = eventually(lambda: second.info("A")["sources"][0].get("error"))
            assert shown["err_code"] == 10013
            assert f"in domain {LEAF} " in shown["description"]
            hub.put("O", *numbered(40))
            first.until("A", 40)
            assert (first.data("A"), second.state("A")[0]) == (numbered(40), 0)
            second.delete("A")
            hub.put("O", *numbered(5, 40))
            first.until("A", 45)
            assert hub.consumers("O") == ["D"]
