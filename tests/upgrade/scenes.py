"""Contents of the directories of the upgrade test; used by `generate.py` only.

Whatever must expire does so within seconds; everything else has a deadline in decades.
"""

from __future__ import annotations

import asyncio
import json
import time
from datetime import UTC, datetime

from .world import FAR, S, World, text

FAR_TTL = "438000h"
FAR_TIME = "2100-01-01T00:00:00Z"


async def streams(world: World) -> None:
    """Create every kind of stream, with gaps, purges, rollups, large messages, ids, TTLs and markers."""
    await world.stream("LIMITS", max_msgs=20, max_bytes=1 << 20, max_msgs_per_subject=8, max_msg_size=2000)
    await world.fill("LIMITS", 30)
    await world.stream("INTEREST", retention="interest")
    await world.consumer("INTEREST", "some", filter_subject="INTEREST.1")
    await world.fill("INTEREST", 9)
    await world.stream("WORK", retention="workqueue", allow_direct=True)
    await world.fill("WORK", 6)
    await world.stream("MEMORY", storage="memory")
    await world.fill("MEMORY", 3)
    await world.stream("NEW", discard="new", discard_new_per_subject=True, max_msgs_per_subject=1, max_msgs=4)
    await world.fill("NEW", 3)
    world.goes_on("NEW.0", "NEW.7", "NEW.8")  # a full subject, space for one more, a full stream
    await world.stream("PACKED", compression="s2")
    await world.fill("PACKED", 5, 4000)
    await world.stream(
        "TURNED", subjects=["turn.*"], subject_transform={"src": "turn.*", "dest": "turned.{{wildcard(1)}}"}
    )
    await world.pub("turn.a", b"1")
    await world.stream("SAID", republish={"src": "SAID.>", "dest": "again.>", "headers_only": True})
    await world.fill("SAID", 2)
    await world.stream("SUMS", allow_msg_counter=True, allow_direct=True)
    for step in ("1", "+40", "-7", "123456789012345678901234567890"):
        await world.pub("SUMS.a", Nats_Incr=step)
    world.plan["publishes"].append([0, "SUMS.a", "", {"Nats-Incr": "+6"}])
    await world.stream("IDS", duplicate_window=FAR)
    for name in ("one", "two"):
        await world.pub("IDS.x", name.encode(), Nats_Msg_Id=name)
    world.goes_on("IDS.x", Nats_Msg_Id="two")
    world.goes_on("IDS.x", Nats_Msg_Id="three")
    await world.stream("SHORT", duplicate_window=S)
    await world.pub("SHORT.x", b"1", Nats_Msg_Id="one")
    world.goes_on("SHORT.x", Nats_Msg_Id="one")  # its window is over
    await world.stream("SEALED")
    await world.fill("SEALED", 2)
    await world.api("STREAM.UPDATE.SEALED", {"name": "SEALED", "subjects": ["SEALED.>"], "sealed": True})
    await world.stream("FIRST", first_seq=1000, deny_delete=True, deny_purge=True, metadata={"a": "b"})
    await world.fill("FIRST", 2)
    await world.stream("EMPTY")
    await gaps(world)
    await lifetimes(world)
    world.goes_on("LIMITS.0", "INTEREST.1", "INTEREST.2", "WORK.0", "PACKED.0", "turn.b", "SAID.0", "SEALED.0",
                  "FIRST.0", "EMPTY.0")  # fmt: skip
    world.pulls("INTEREST", "some")
    world.plan["reads"] += [[name, ""] for name in ("LIMITS", "TURNED", "GAPS", "LARGE", "TTL", "MEMORY")]


async def gaps(world: World) -> None:
    await world.stream("GAPS", allow_rollup_hdrs=True)
    await world.fill("GAPS", 40, subjects=5)
    for seq in (3, 4, 9, 39):
        await world.api("STREAM.MSG.DELETE.GAPS", {"seq": seq})
    await world.api("STREAM.PURGE.GAPS", {"filter": "GAPS.4"})
    await world.pub("GAPS.1", b"rolled up", Nats_Rollup="sub")
    await world.stream("PURGED")
    await world.fill("PURGED", 10)
    await world.api("STREAM.PURGE.PURGED", {"seq": 5})
    await world.api("STREAM.PURGE.PURGED", {"keep": 2})
    await world.stream("NOTHING")
    await world.fill("NOTHING", 10)
    await world.api("STREAM.PURGE.NOTHING")
    await world.stream("ROLLED", allow_rollup_hdrs=True)
    await world.fill("ROLLED", 5)
    await world.pub("ROLLED.x", b"all", Nats_Rollup="all")
    await world.stream("LARGE")
    for number in range(3):
        await world.pub("LARGE.x", text(number, 200_000))
    await world.pub("LARGE.x", b"small")
    await world.api("STREAM.MSG.DELETE.LARGE", {"seq": 2})
    await world.stream("DELETED")
    await world.fill("DELETED", 3)
    await world.api("STREAM.DELETE.DELETED")
    world.goes_on("GAPS.4", "PURGED.0", "NOTHING.0", "LARGE.x", "ROLLED.x")


async def lifetimes(world: World) -> None:
    await world.stream("OLD", max_age=S, duplicate_window=S)
    await world.fill("OLD", 5)
    await world.stream("AGED", max_age=FAR)
    await world.fill("AGED", 5)
    await world.stream("TTL", allow_msg_ttl=True)
    for number, ttl in enumerate(("1s", FAR_TTL, "never", "1s", "")):
        await world.pub(f"TTL.{number}", b"ttl", **({"Nats_TTL": ttl} if ttl else {}))
    await world.stream("MARKED", allow_msg_ttl=True, subject_delete_marker_ttl=FAR, max_msgs_per_subject=1)
    await world.pub("MARKED.soon", b"x", Nats_TTL="1s")
    await world.pub("MARKED.far", b"x", Nats_TTL=FAR_TTL)
    await world.stream("LATER", allow_msg_schedules=True, allow_msg_ttl=True, allow_rollup_hdrs=True)
    await world.pub("LATER.far", b"far", Nats_Schedule=f"@at {FAR_TIME}", Nats_Schedule_Target="LATER.out")
    await world.pub("LATER.each", b"each", Nats_Schedule="@every 438000h", Nats_Schedule_Target="LATER.out")
    world.goes_on("AGED.0", "TTL.0", "MARKED.soon", "LATER.far")


async def due(world: World) -> None:
    """Create deadlines that pass while no server runs."""
    await world.stream("LATER", allow_msg_schedules=True, allow_msg_ttl=True)
    at = datetime.fromtimestamp(time.time() + 2, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    await world.pub("LATER.due", b"due", Nats_Schedule=f"@at {at}", Nats_Schedule_Target="LATER.out")
    await world.stream("MARKED", allow_msg_ttl=True, subject_delete_marker_ttl=FAR, max_msgs_per_subject=1)
    for number in range(3):
        await world.pub(f"MARKED.{number}", b"x", Nats_TTL="2s")
    await world.pub("MARKED.2", b"x")
    await world.stream("OLD", max_age=2 * S, duplicate_window=2 * S, subject_delete_marker_ttl=FAR)
    await world.fill("OLD", 5)
    world.goes_on("LATER.x", "MARKED.0")


async def consumers(world: World) -> None:
    """Create every kind of consumer, with pending messages."""
    await world.stream("C")
    await world.fill("C", 40, subjects=4)
    for policy in ("none", "all", "explicit"):
        await world.consumer("C", f"pull_{policy}", ack_policy=policy)
        messages = await world.pull("C", f"pull_{policy}", 10)
        if policy == "all":
            await world.answer(messages[4], b"+ACK")
        if policy == "explicit":
            for number, said in ((0, b"+ACK"), (1, b"+ACK"), (4, b"+ACK"), (6, b"+TERM"), (8, b"+WPI")):
                await world.answer(messages[number], said)
    await world.consumer("C", "again", max_deliver=5)
    for message in await world.pull("C", "again", 5):
        await world.answer(message, b"-NAK")
    for message in (await world.pull("C", "again", 5))[:3]:
        await world.answer(message, b"-NAK")
    await world.consumer("C", "late", ack_wait=5 * S, max_deliver=10, backoff=[5 * S, 6 * S])
    await world.pull("C", "late", 4)
    await world.consumer("C", "given_up", ack_wait=S, max_deliver=1)
    await world.pull("C", "given_up", 3)
    await world.consumer("C", "paused", pause_until=FAR_TIME)
    await world.consumer(
        "C", "was_paused", pause_until=datetime.fromtimestamp(time.time() + 1, UTC).isoformat()
    )
    await world.consumer("C", "last", deliver_policy="last_per_subject", filter_subject="C.>")
    await world.pull("C", "last", 2)
    await world.consumer("C", "filters", filter_subjects=["C.0", "C.2"])
    await world.answer((await world.pull("C", "filters", 6))[1], b"+ACK")
    await world.consumer("C", "from", deliver_policy="by_start_sequence", opt_start_seq=30, headers_only=True)
    await world.consumer("C", "new", deliver_policy="new")
    await world.consumer("C", "reset")
    for message in await world.pull("C", "reset", 10):
        await world.answer(message, b"+ACK")
    await world.api("CONSUMER.RESET.C.reset", {"seq": 4})
    await world.pull("C", "reset", 2)
    for policy in ("overflow", "pinned_client", "prioritized"):
        timeout = {"priority_timeout": FAR} if policy == "pinned_client" else {}
        await world.consumer("C", policy, priority_policy=policy, priority_groups=["g"], **timeout)
        await world.pull("C", policy, 3, group="g")
    for name, threshold in (("stays", FAR), ("goes", S)):
        config = {"name": name, "ack_policy": "explicit", "ack_wait": FAR, "inactive_threshold": threshold}
        await world.api(f"CONSUMER.CREATE.C.{name}", {"stream_name": "C", "config": config})
    await world.pull("C", "stays", 3)
    await pushes(world)
    world.goes_on("C.0", "C.1")
    world.pulls("C", "pull_none", "pull_all", "pull_explicit", "again", "late", "given_up", "paused", "was_paused",
                "last", "filters", "from", "new", "reset", "stays")  # fmt: skip
    world.pulls("C", "overflow", "prioritized", group="g")
    world.pulls("C", "pinned_client", group="g", expires=S // 2, no_wait=False)
    world.plan["gone"].append([0, "C", "goes"])


async def pushes(world: World) -> None:
    await world.stream("P")
    await world.fill("P", 12)
    for name, config in (("all", {"ack_policy": "all"}), ("explicit", {"max_ack_pending": 5}),
                         ("group", {"deliver_group": "g"}), ("none", {"ack_policy": "none"}),
                         ("late", {"ack_wait": 5 * S})):  # fmt: skip
        policy = {"ack_policy": "explicit", **config}
        heard = await world.nc.subscribe(f"to.{name}", "g" if name == "group" else "")
        await world.consumer("P", name, deliver_subject=f"to.{name}", **policy)
        messages = [await heard.next_msg(60) for _ in range(5)]
        if name != "none":
            await world.answer(messages[1], b"+ACK")
        await heard.unsubscribe()
        await world.nc.flush()
        if name != "group":
            world.plan["pushes"].append({"user": 0, "subject": f"to.{name}"})
    await asyncio.sleep(0.5)
    world.goes_on("P.0", "P.1")


async def batches(world: World) -> None:
    """Create complete atomic batches, an abandoned one, and a fast batch."""
    await world.stream("B", allow_atomic=True, allow_batched=True, allow_msg_ttl=True)
    for batch in range(2):
        for number in range(1, 5):
            end = {"Nats_Batch_Commit": "1"} if number == 4 else {}
            said = await world.pub(
                f"B.{number}",
                text(number, 50),
                Nats_Batch_Id=f"whole{batch}",
                Nats_Batch_Sequence=str(number),
                **end,
            )
        assert said["count"] == 4, said
    inbox = world.nc.new_inbox()
    answers = await world.nc.subscribe(f"{inbox}.>")
    for number in range(1, 8):
        reply = f"{inbox}.fast.3.ok.{number}.{0 if number == 1 else 1}.$FI"
        await world.nc.publish(f"B.fast.{number}", b"fast", reply)
    while json.loads((await answers.next_msg(60)).data).get("seq", 0) < 6:
        pass
    await world.api("STREAM.INFO.B")
    for number in range(1, 3):  # never committed
        await world.pub("B.left", b"x", Nats_Batch_Id="left", Nats_Batch_Sequence=str(number))
    world.goes_on("B.1")
    world.plan["publishes"].append(
        [0, "B.left", "x", {"Nats-Batch-Id": "left", "Nats-Batch-Sequence": "3", "Nats-Batch-Commit": "1"}]
    )
    world.plan["reads"].append(["B", ""])


async def copies(world: World) -> None:
    """Create mirrors and sources: ephemeral, with server-managed and with user-managed consumers."""
    await world.stream("O", allow_direct=True)
    await world.stream("Q", retention="workqueue")
    await world.stream("U")
    await world.fill("O", 20)
    await world.fill("Q", 6)
    await world.fill("U", 6)
    await world.stream("MIRROR", mirror={"name": "O"}, mirror_direct=True)
    await world.stream("PART", mirror={"name": "O", "opt_start_seq": 5, "filter_subject": "O.1"})
    transforms = [{"src": "O.2", "dest": "two"}]
    await world.stream("ALL", sources=[{"name": "O", "subject_transforms": transforms}], subjects=["ALL.>"])
    await world.stream("TAKEN", sources=[{"name": "Q", "consumer": {"name": "copy", "server_managed": True}}])
    config = {"durable_name": "mine", "ack_policy": "flow_control", "flow_control": True,
              "idle_heartbeat": S, "deliver_subject": "mine.deliver", "max_ack_pending": 1000}  # fmt: skip
    await world.api("CONSUMER.DURABLE.CREATE.U.mine", {"stream_name": "U", "config": config})
    source = {"name": "U", "consumer": {"name": "mine", "deliver_subject": "mine.deliver"}}
    await world.stream("USED", sources=[source])
    await world.stream("LOST", sources=[{"name": "ELSEWHERE", "external": {"api": "$JS.AWAY.API"}}])
    for name, count in (("MIRROR", 20), ("ALL", 6), ("TAKEN", 6), ("USED", 6)):
        await until(world, name, count)
    await world.fill("ALL", 2)
    await world.api("STREAM.MSG.DELETE.ALL", {"seq": 2})
    world.goes_on("O.1", "Q.x", "U.x", "ALL.x")
    world.plan["quiet_s"] = 4.0


async def until(world: World, stream: str, messages: int) -> None:
    deadline = time.monotonic() + 90
    while (await world.api(f"STREAM.INFO.{stream}"))["state"]["messages"] < messages:
        assert time.monotonic() < deadline, stream
        await asyncio.sleep(0.05)
    await asyncio.sleep(1.5)  # positions and acks follow


async def held(world: World) -> None:
    """Create members of an incomplete sourced batch: its last message was removed at the upstream."""
    await world.stream("O", allow_atomic=True)
    for number in range(1, 4):
        end = {"Nats_Batch_Commit": "1"} if number == 3 else {}
        await world.pub("O.x", b"member", Nats_Batch_Id="b", Nats_Batch_Sequence=str(number), **end)
    await world.api("STREAM.MSG.DELETE.O", {"seq": 3})
    await world.stream("COPY", sources=[{"name": "O"}], allow_atomic=True)
    await asyncio.sleep(0.3)
    assert (await world.api("STREAM.INFO.COPY"))["state"]["messages"] == 0
    journal = b"".join(path.read_bytes() for path in (world.folder / "headrace/journal").glob("*.jnl"))
    assert b"held/" in journal
    world.goes_on("O.y")
    world.plan["quiet_s"] = 4.0


async def buckets(world: World) -> None:
    """Create key-value buckets with history and TTLs, and an object store."""
    js = world.nc.jetstream()
    kv = await js.create_key_value(bucket="kv", history=5)
    for number in range(8):
        await kv.put(f"key.{number % 3}", b"%d" % number)
    await kv.delete("key.1")
    await kv.purge("key.2")
    await world.stream(
        "KV_timed", subjects=["$KV.timed.>"], max_msgs_per_subject=1, allow_msg_ttl=True, allow_direct=True,
        subject_delete_marker_ttl=FAR, allow_rollup_hdrs=True, deny_delete=True, discard="new", max_age=FAR,
    )  # fmt: skip
    await world.pub("$KV.timed.soon", b"x", Nats_TTL="1s")
    await world.pub("$KV.timed.far", b"x", Nats_TTL=FAR_TTL)
    await world.pub("$KV.timed.plain", b"x")
    objects = await js.create_object_store("things")
    await objects.put("big", b"".join(text(number, 100_000) for number in range(3)))
    await objects.put("small", b"small")
    await objects.put("gone", b"gone")
    await objects.delete("gone")
    world.goes_on("$KV.kv.key.1", "$KV.timed.soon")
    world.goes_on("$KV.timed.new", Nats_TTL=FAR_TTL)
    world.plan["reads"].append(["KV_kv", ""])


async def claims(world: World) -> None:
    """Create claims in a folder: registry, audit trail, a lease, and one that expired long ago."""
    from headrace.claims import ClaimConfig, Claims  # noqa: I001 (as the old version has them)
    from headrace.claims.config import Ttl
    from headrace.claims.floors import register_reader

    await world.stream("V", allow_msg_ttl=True, subjects=["V.>"])
    # The parts of a claim expire at different times, so all of them get TTLs of decades.
    ttl = {"max_age": FAR // S, "delete_after_read": True, "retention_after_read": 300, "grace_period": 60}
    spaces = []
    for name, compression in (("packed", "zstd"), ("plain", "none")):
        store = {"path": str(world.folder / "objects")}
        config = ClaimConfig(name, threshold=1000, compression=compression, ttl=Ttl(**ttl), store=store)
        opened = await Claims.open(world.nc, config)
        for number in range(3):
            await opened.producer.publish(f"V.{name}", text(number, 3000), msg_id=f"{name}{number}")
        await world.consumer("V", f"reads_{name}", filter_subject=f"V.{name}")
        await register_reader(opened.wire, "V", f"reader_{name}", 1, FAR // S if name == "plain" else 1)
        await opened.close()
        spaces.append({"name": name, "compression": compression, "ttl": ttl, "subject": f"V.{name}"})
        spaces[-1]["consumer"] = f"reads_{name}"
    world.plan["ageing"].append("CLAIMS_AUDIT")  # it keeps messages for a while only
    world.plan["claims"] = {"stream": "V", "namespaces": spaces}


ACCOUNTS = """accounts {
  A { jetstream: enabled, users: [{user: a, password: secret}], exports: [{stream: "shared.>"}] }
  B { jetstream: {max_file: 10MB}, users: [{user: b, password: secret}],
      imports: [{stream: {account: A, subject: "shared.>"}}] }
  C.odd { jetstream: enabled, users: [{user: c, password: secret}] }
}
"""


async def accounts(world: World) -> None:
    """Create several accounts with streams of the same name."""
    for user in range(3):
        await world.stream("S", user, subjects=["s.>"])
        for number in range(3 + user):
            await world.pub(f"s.{number}", b"%d" % user, user)
        await world.consumer("S", "c", user)
        world.goes_on("s.x", user=user)
        world.pulls("S", "c", user=user)


async def compacted(world: World) -> None:
    """Create segments over several starts, remove most of their messages, and merge them."""
    await world.stream("M")
    for _ in range(4):
        for number in range(150):
            await world.pub(f"M.{number % 4}", text(number, 1500))
        last = (await world.api("STREAM.INFO.M"))["state"]["last_seq"]
        for seq in range(last - 149, last + 1):
            if seq % 8:
                await world.api("STREAM.MSG.DELETE.M", {"seq": seq})
        await world.restart(kill=True)
    await asyncio.sleep(1)
    world.goes_on("M.0")
    world.plan["reads"].append(["M", ""])


async def pinned(world: World) -> None:
    """Create a pinned snapshot whose stream has changed since."""
    await world.stream("S")
    await world.fill("S", 60, 4000)
    await world.restart(kill=True)
    await world.fill("S", 10)
    pin = (await world.api("STREAM.PIN.S", {"lease": 2.0}))["pin"]
    await world.api("STREAM.PURGE.S", {"keep": 5})
    world.goes_on("S.0")
    world.plan["reads"] += [["S", pin], ["S", ""]]


async def rows(world: World) -> None:
    """Create blocks and columns in files, a checkpoint, and frames after it."""
    await world.stream("D")
    await world.stream("E")
    for number in range(120):
        await world.pub(f"D.{number % 5}", text(number, 3000))
    await world.restart(kill=True)
    await world.fill("E", 5)
    await world.restart(kill=False)
    await world.fill("E", 5)
    world.goes_on("D.0", "E.0")
    world.plan["reads"] += [["D", ""], ["E", ""]]
