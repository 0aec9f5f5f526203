"""Two servers joined by a leafnode connection: a hub that listens and a leaf that dials, each of either kind."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

from conformance.client import Client
from conformance.consumer_client import eventually
from conformance.servers import KINDS, Server, Setup
from conformance.sourcing import Copying
from support.ports import free_port

PAIRINGS = [(hub, leaf) for hub in KINDS for leaf in KINDS]
HUB, LEAF = "HUB", "LEAF"


def hub_setup(leaf_port: int, *, extra: str = "", more: str = "", jetstream: bool = True) -> Setup:
    """Return the setup of a hub on this port; `extra` is added to its section, `more` to its configuration."""
    domain = f"jetstream {{ domain: {HUB} }}\n" if jetstream else ""
    config = f"{domain}leafnodes {{ listen: '127.0.0.1:{leaf_port}'\n {extra} }}\n{more}"
    return Setup(settings={"server_name": "the-hub"}, config=config, jetstream=jetstream)


def leaf_setup(
    url: str, *, remote: str = "", more: str = "", name: str = "the-leaf", domain: str = LEAF
) -> Setup:
    """Return the setup of a server that dials this URL."""
    config = (
        f"jetstream {{ domain: {domain} }}\n"
        f"leafnodes {{ reconnect: '250ms', remotes: [ {{ url: '{url}'\n {remote} }} ] }}\n{more}"
    )
    return Setup(settings={"server_name": name}, config=config)


class Side(NamedTuple):
    """One of the two servers, with a client."""

    server: Server
    client: Client
    domain: str

    @property
    def api(self) -> str:
        return f"$JS.{self.domain}.API"


class Joined(NamedTuple):
    """A hub and a leaf that are connected."""

    hub: Side
    leaf: Side

    def ways(self, up: bool) -> tuple[Side, Side]:
        """Return the sides of upstream and copy; "upward" copies the leaf's streams to the hub."""
        return (self.leaf, self.hub) if up else (self.hub, self.leaf)


def await_joined(leaf: Client, hub: Client) -> None:
    """Wait until a message crosses in both directions."""
    for one, other in ((leaf, hub), (hub, leaf)):
        sid = one.subscribe("joined.*")
        one.flush()
        try:
            eventually(lambda one=one, other=other, sid=sid: _crossed(one, other, sid), 90.0)
        finally:
            one.unsubscribe(sid)
            one.flush()


def _crossed(one: Client, other: Client, sid: str) -> bool:
    other.publish("joined.x", b"?")
    other.flush()
    one.flush()
    return bool(one.pending(sid))


@contextmanager
def joined(
    hub_kind: str,
    leaf_kind: str,
    *,
    proxy_port: int = 0,
    leaf_port: int = 0,
    user: str = "",
    hub: Mapping[str, str] | None = None,
    leaf: Mapping[str, str] | None = None,
) -> Iterator[Joined]:
    """Start both servers; the leaf dials the proxy if there is one.

    `user` is `name:password`; `hub` and `leaf` are added to their configurations, see the setups.
    """
    port = leaf_port or free_port()
    with ExitStack() as stack:
        at = f"{user}@127.0.0.1" if user else "127.0.0.1"
        upper = stack.enter_context(Server(hub_kind, hub_setup(port, **(hub or {}))))
        url = f"nats-leaf://{at}:{proxy_port or port}"
        lower = stack.enter_context(Server(leaf_kind, leaf_setup(url, **(leaf or {}))))
        sides = [
            Side(server, stack.enter_context(Client(server.port)), domain)
            for server, domain in ((upper, HUB), (lower, LEAF))
        ]
        await_joined(sides[1].client, sides[0].client)
        yield Joined(*sides)


class Across(NamedTuple):
    """The streams of one test on both sides, with a common prefix."""

    origin: Copying
    copy: Copying
    api: str

    def entry(self, tail: str, **more: Any) -> dict[str, Any]:
        """Return how the copy names the upstream stream."""
        return {
            "name": f"{self.origin.name}{tail}",
            "external": {"api": self.api, "deliver": ""},
            **more,
        }


@contextmanager
def across(pair: Joined, name: str, *, up: bool) -> Iterator[Across]:
    """Streams on both sides, deleted at the end, copies first."""
    origin, copy = pair.ways(up)
    streams = Across(Copying(origin.client, name), Copying(copy.client, name), origin.api)
    yield streams
    streams.copy.close()
    streams.origin.close()
