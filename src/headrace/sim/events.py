"""What can happen in a world: every kind of event by its name.

Owns what clients do, what fails and when; what follows from it is the world's, what may follow the ledger's. An event
only begins something: bytes are put on their way, a fault waits for its call.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from headrace.sim.clients import SimClient
from headrace.sim.clock import SECOND_NS
from headrace.sim.faults import Fault
from headrace.sim.pair import SimPair
from headrace.sim.parts import PARTS
from headrace.sim.setting import CONSUMERS, EXTRA, HEEDED, MARKER_TTL_S, PULLED, STREAMS, SUBJECTS

if TYPE_CHECKING:
    from headrace.sim.ledger import Sent
    from headrace.sim.world import World


# Publishing


def send(world: World, client: SimClient, stream: str, subject: str, header: dict[str, str]) -> Sent:
    """One message on its way; what a guest may not send counts as refused."""
    message = world.ledger.send(stream, subject.encode(), client.cid, world.now_ns)
    message.filler = world.rng.randrange(world.options.payload_max)
    message.message_id = header.get("Nats-Msg-Id", "")
    ttl_s = int(header.get("Nats-TTL", "0").rstrip("s"))
    message.ttl_ns = max(ttl_s, MARKER_TTL_S) * SECOND_NS if ttl_s else 0
    message.refused = client.who.denied(subject)
    client.request(subject, message.payload, world.reader.published(message, world), header)
    return message


def _plain(world: World) -> None:
    for _ in range(world.rng.randrange(1, 8)):
        stream = world.rng.choice("PPKWLN" + ("Q" if world.options.pair else ""))
        send(world, world.client(), stream, f"{stream.lower()}.{world.rng.randrange(SUBJECTS)}", {})


def _with_id(world: World) -> None:
    number = max(world.ledger.order - world.rng.choice((0, 0, 3, 10)), 0) // 4
    header = {"Nats-Msg-Id": f"m{number}"}
    if world.rng.random() < 0.2:
        header["Nats-Expected-Last-Msg-Id"] = f"m{number - world.rng.choice((0, 1))}"
    send(world, world.client(), "P", f"p.{world.rng.randrange(SUBJECTS)}", header)


def _expecting(world: World) -> None:
    """A put that hopes to know the last sequence of its key, or of all; it may be wrong."""
    log = world.near.jetstream.streams["K"].log
    key = f"k.{world.rng.randrange(SUBJECTS)}"
    if world.rng.random() < 0.7:
        name, guess = "Nats-Expected-Last-Subject-Sequence", log.last_of(key.encode())
    else:
        name, guess = "Nats-Expected-Last-Sequence", log.last_seq
    guess -= world.rng.choice((0, 0, 1))
    send(world, world.client(), "K", key, {name: str(max(guess, 0))})


def _with_ttl(world: World) -> None:
    for _ in range(world.rng.randrange(1, 5)):
        header = {"Nats-TTL": f"{world.rng.choice((1, 2, 5, 30))}s"}
        send(world, world.client(), "T", f"t.{world.rng.randrange(SUBJECTS)}", header)


def _batch(world: World, streams: str = "PK") -> None:
    """A batch, perhaps never finished, perhaps with a member lost or with an id that is known."""
    rng, ledger, client = world.rng, world.ledger, world.client()
    stream, size = rng.choice(streams + ("Q" if world.options.pair else "")), rng.randrange(1, 9)
    finished, gap, known = rng.random() < 0.8, rng.random() < 0.1, rng.random() < 0.2
    name = f"b{ledger.order}"
    members = []
    lost = False
    for position in range(1, size + 1):
        subject = f"{stream.lower()}.{position if stream == 'K' else rng.randrange(SUBJECTS)}"
        member = ledger.send(stream, subject.encode(), client.cid, world.now_ns)
        member.batch, member.filler = name.encode(), rng.randrange(world.options.payload_max)
        members.append(member)
        header = {"Nats-Batch-Id": name, "Nats-Batch-Sequence": str(position)}
        if known and stream == "P":
            member.message_id = header["Nats-Msg-Id"] = f"m{ledger.order // 4}"
        last = position == size and finished
        lost = lost or client.who.denied(subject) or (gap and position == 2)
        if gap and position == 2:
            continue
        if last:
            header["Nats-Batch-Commit"] = "1"
            client.request(subject, member.payload, world.reader.committed(members, world), header)
        else:
            client.publish(subject, member.payload, header)
        if rng.random() < 0.3:
            world.step()
    for member in members:
        member.refused = member.refused or lost


def _talk(world: World) -> None:
    """Messages that nobody stores: to listeners, and to one of a queue group."""
    world.crowd.talk(world.client(), world.rng.randrange(SUBJECTS))


# Reading


def _pull(world: World) -> None:
    stream, consumer = world.rng.choice(PULLED)
    for _ in range(world.rng.choice((1, 1, 1, 4))):
        world.reader.pull(world.user(consumer), stream, consumer, world.rng.randrange(1, 8), picky=True)


def _reset(world: World) -> None:
    """Somebody sends a consumer back: what it confirmed may come again."""
    if world.rng.random() < 0.3:
        body = world.rng.choice((b'{"seq":1}', b'{"seq":1}', b"", b'{"seq":0}'))
        world.reader.reset(world.user("pull"), "P", "pull", body)
    elif world.options.pair and world.rng.random() < 0.5:
        world.client().request("$JS.API.CONSUMER.RESET.Q.D", b"", lambda arrival: None)


def _look(world: World) -> None:
    stream = world.rng.choice([name for name in STREAMS if name in world.near.jetstream.streams])
    world.client().request(f"$JS.API.STREAM.INFO.{stream}", b"", world.reader.informed(stream))


def _get(world: World) -> None:
    """One message by its key or its sequence, straight from the stream."""
    if world.rng.random() < 0.5:
        key = f"k.{world.rng.randrange(SUBJECTS)}"
        world.client().request(f"$JS.API.DIRECT.GET.K.{key}", b"", world.reader.got("K"))
    elif seqs := world.seqs("P"):
        seq = world.rng.choice(seqs)
        body = b'{"seq":%d}' % seq
        world.client().request("$JS.API.STREAM.MSG.GET.P", body, world.reader.fetched("P", seq))


# Removing, making


def _delete(world: World) -> None:
    apart = isinstance(world.site, SimPair) and not world.site.joined
    stream = world.rng.choice("PKTLN" + "Q" * 3 * apart)
    if seqs := world.seqs(stream):
        seq = world.rng.choice(seqs)
        world.ledger.removals[stream].deleted.add(seq)
        body = b'{"seq":%d}' % seq
        answered = world.reader.removed(stream, {seq})
        world.client().request(f"$JS.API.STREAM.MSG.DELETE.{stream}", body, answered)


def _purge(world: World) -> None:
    if world.rng.random() < 0.3:
        stream, client = world.rng.choice("PKTWLN"), world.client()
        pattern, keep = world.rng.choice((("", 0), (f"{stream.lower()}.1", 0), ("", 2)))
        fields = [b'"filter":"%b"' % pattern.encode()] if pattern else []
        fields += [b'"keep":%d' % keep] if keep else []
        body, subject = b"{%b}" % b",".join(fields) if fields else b"", f"$JS.API.STREAM.PURGE.{stream}"
        if client.who.denied(subject):
            client.request(subject, body, lambda arrival: None)
            return
        purge = world.ledger.purge(stream, pattern.encode(), client.cid)
        doomed = set() if keep else purge.doomed
        client.request(subject, body, world.reader.removed(stream, doomed, purge))


def _extra(world: World) -> None:
    """A stream comes or goes, or gets some messages."""
    rng, client, extra = world.rng, world.client(), world.extra
    luck = rng.random()
    if luck < 0.15:
        body = b'{"name":"%b","subjects":["x.>"]}' % EXTRA.encode()
        client.request(f"$JS.API.STREAM.CREATE.{EXTRA}", body, extra.made)
    elif luck < 0.25:
        client.request(f"$JS.API.STREAM.DELETE.{EXTRA}", b"", extra.deleting(client))
    else:
        for _ in range(rng.randrange(1, 6)):
            payload = extra.next(client) + bytes(rng.randrange(world.options.payload_max))
            client.request(f"x.{rng.randrange(SUBJECTS)}", payload, lambda arrival: None)


def _heed(world: World) -> None:
    """Messages for whoever needs them, somebody who takes some, or one more who needs some for a while."""
    rng, luck = world.rng, world.rng.random()
    passing = [name for name in world.near.jetstream.streams[HEEDED].consumers if name.startswith("passing")]
    if luck < 0.4:
        for _ in range(rng.randrange(1, 6)):
            send(world, world.client(), HEEDED, f"i.{rng.randrange(SUBJECTS)}", {})
    elif luck < 0.9:
        consumer = rng.choice(["one", "other", *passing])
        world.reader.pull(world.user(consumer), HEEDED, consumer, rng.randrange(1, 8), picky=True)
    elif passing:
        world.client().request(f"$JS.API.CONSUMER.DELETE.{HEEDED}.{passing[0]}", b"", lambda arrival: None)
    else:
        name = f"passing{world.ledger.order}"
        config = {
            "durable_name": name,
            "ack_policy": "explicit",
            "filter_subject": rng.choice(("i.1", "i.3")),
        }
        body = json.dumps({"stream_name": HEEDED, "config": config}).encode()
        world.client().request(f"$JS.API.CONSUMER.CREATE.{HEEDED}.{name}", body, lambda arrival: None)


def _rearrange(world: World) -> None:
    """The consumer of the queue is to want something else, or to go on elsewhere: nothing leaves by that."""
    if world.rng.random() < 0.5:
        wanted = world.rng.choice((["w.0"], ["w.0", "w.1"], ["w.>"]))
        world.client().request("$JS.API.CONSUMER.CREATE.W.worker", worker(wanted), lambda arrival: None)
    elif seqs := world.seqs("W"):
        body = b'{"seq":%d}' % world.rng.choice(seqs)
        world.client().request("$JS.API.CONSUMER.RESET.W.worker", body, lambda arrival: None)


def worker(wanted: list[str]) -> bytes:
    """The request that makes the consumer of the queue want these subjects."""
    ((name, config),) = CONSUMERS["W"]
    full = {"durable_name": name, **config, "filter_subjects": wanted}
    return json.dumps({"stream_name": "W", "config": full}).encode()


def _part(name: str) -> Callable[[World], None]:
    return lambda world: world.parts[name].act(world)


# Time and faults


def _time(world: World) -> None:
    world.site.pass_time(world.rng.choice((SECOND_NS // 100, SECOND_NS // 2, 3 * SECOND_NS, 11 * SECOND_NS)))


def _rest(world: World) -> None:
    world.settle()
    world.site.advance(world.rng.randrange(2 * SECOND_NS))
    world.settle()
    if world.near.store.poisoned is None and not world.near.store.waits:
        world.judge("rest", calm=False)


def _clock(world: World) -> None:
    """Somebody sets the clock while nothing is under way."""
    if world.rng.random() < 0.1:
        world.settle()
        world.ledger.latest_ns = max(world.ledger.latest_ns, world.now_ns)
        world.near.clock.set_by(world.rng.choice((-20, -2, 5, 40)) * SECOND_NS)


def _reconnect(world: World) -> None:
    client = world.client()
    world.part(client)
    world.clients[world.clients.index(client)] = world.connect()


def _stall(world: World) -> None:
    client = world.client()
    client.stalled = not client.stalled


def _fail(world: World) -> None:
    """A call of the disk fails, once; a failing sync poisons."""
    if world.rng.random() < 0.2:
        kinds = world.rng.choice((("sync",), ("write",), ("create",), ()))
        lost = world.rng.choice(("no", "cached", "gone"))
        world.near.disk.faults.add(Fault(kinds=kinds, nth=world.rng.randrange(1, 9), lost=lost))


def _fill(world: World) -> None:
    """The disk is full for a while."""
    disk, most = world.near.disk, world.rng.choice((20_000, 100_000))
    disk.capacity = None if disk.capacity is not None else disk.used() + world.rng.randrange(most)


def _kill(world: World) -> None:
    if world.rng.random() < 0.2:
        if world.rng.random() < 0.5:  # with something overdue that nobody has asked for yet
            world.site.pass_time(5 * SECOND_NS)
            for _ in range(20):
                world.near.step()
        world.crash(killed=True)


def _leaf(world: World) -> None:
    """The connection between the servers breaks or comes back, or the other server dies."""
    site, luck = world.site, world.rng.random()
    if isinstance(site, SimPair):
        if luck < 0.1:
            _tear(world, site)
        elif luck < 0.2:
            site.crash_far()
        elif luck < 0.3:
            disk = site.far.disk
            disk.capacity = None if disk.capacity is not None else disk.used()
        elif site.joined and luck < 0.6:
            site.cut()
        elif luck < 0.7:
            site.join(unnoticed=True)
        else:
            site.join()


def _tear(world: World, site: SimPair) -> None:
    """The connection breaks while a batch crosses it; perhaps the other server dies with a part of it."""
    _batch(world, "Q")
    for _ in range(world.rng.randrange(80)):
        world.step()
    site.cut()
    site.far.settle()
    if world.rng.random() < 0.7:
        site.crash_far()


#: What has to do with something that only some worlds have.
FURTHER: dict[str, Callable[[Any], None]] = {
    "heed": _heed,
    **{name: _part(name) for name in PARTS},
    "rearrange": _rearrange,
}
#: Every kind of event that can be switched off.
ACTIONS: dict[str, Callable[[Any], None]] = {
    "publish": _plain,
    "id": _with_id,
    "expect": _expecting,
    "ttl": _with_ttl,
    "batch": _batch,
    "talk": _talk,
    "pull": _pull,
    "reset": _reset,
    "look": _look,
    "get": _get,
    "delete": _delete,
    "purge": _purge,
    "extra": _extra,
    "time": _time,
    "rest": _rest,
    "clock": _clock,
    "reconnect": _reconnect,
    "stall": _stall,
    "fail": _fail,
    "fill": _fill,
    "kill": _kill,
    "leaf": _leaf,
}
