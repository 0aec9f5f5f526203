"""A consumer at the upstream is deleted only when the change of configuration that ends its use is durable."""

from __future__ import annotations

import pytest

from .test_sourcing_migration import SECOND, D, Migration
from .test_sourcing_migration import ended as ended  # closes both servers after each test


@pytest.mark.parametrize("change", ["source removed", "stream deleted"])
def test_the_deletion_waits_for_the_frame_of_the_change(change: str) -> None:
    migration = Migration(f"durable/{change}", retention="interest")
    requests: list[bool] = []
    frame_before = 0

    def observe(subject: bytes, reply: bytes, header: bytes, payload: bytes) -> bool:
        if b".CONSUMER.DELETE.O.D" in subject:
            store = migration.copy.store
            requests.append(not store.dirty and store.committed_frame > frame_before)
        return False

    migration.pair.should_lose = observe
    migration.pair.connect()
    migration.create(D)
    migration.publish(5)
    migration.settle()
    assert requests == []
    frame_before = migration.copy.store.committed_frame
    if change == "source removed":
        migration.configure()
    else:
        migration.call(migration.copy, "STREAM.DELETE.A")
    migration.pair.run_until_idle()
    assert requests == [True]
    assert migration.consumers() == []


@pytest.mark.parametrize("change", ["source removed", "stream deleted"])
def test_a_consumer_in_use_again_is_not_deleted_by_a_late_request(change: str) -> None:
    """The source comes back before the frame of its removal is durable."""
    migration = Migration(f"back/{change}", retention="interest")
    migration.create(D)
    migration.publish(5)
    migration.settle()
    copied = migration.copied()
    copy, origin = migration.copy, migration.origin
    external = {"api": f"$JS.{origin.domain}.API", "deliver": ""}
    sources = [{"name": "O", "external": external, **D}]
    if change == "source removed":
        copy.call_nowait("STREAM.UPDATE.A", name="A")
        requests = [copy.call_nowait("STREAM.UPDATE.A", name="A", sources=sources)]
    else:
        copy.call_nowait("STREAM.DELETE.A")
        requests = [copy.call_nowait("STREAM.CREATE.A", name="A", sources=sources)]
        copied = []
    migration.pair.advance(3 * SECOND)
    assert all("error" not in copy.replies[each].json for each in requests)
    migration.publish(5)
    migration.pair.advance(3 * SECOND)  # less than until a missing heartbeat is noticed
    assert migration.consumers() == ["D"]
    assert migration.copied() == copied + [data for _, data in migration.published[5:]]
