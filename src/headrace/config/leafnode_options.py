"""Leafnode options: the listener for other servers, and the remotes to dial.

Owns the names, the defaults (those of nats-server) and the checks that need only the values. Secrets never show in a
repr.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import unquote, urlsplit

if TYPE_CHECKING:
    from headrace.config.options import User

DEFAULT_LEAFNODE_PORT = 7422
#: Addresses to listen on that cannot be dialed.
WILDCARD_HOSTS = ("0.0.0.0", "::", "")
_SCHEMES = ("nats", "tls", "nats-leaf", "leaf")


@dataclass(frozen=True, slots=True, kw_only=True)
class LeafnodeTlsOptions:
    """Certificates for leafnode connections; `insecure` accepts any certificate, for tests only."""

    cert: str = ""
    key: str = ""
    ca: str = ""
    verify: bool = False
    insecure: bool = False
    handshake_first: bool = False
    timeout_s: float = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LeafnodeCompressionOptions:
    """How leafnode connections are compressed; up to the first of the round-trip times `s2_auto` does not compress."""

    mode: str = "s2_auto"
    rtt_thresholds_s: tuple[float, ...] = (0.01, 0.05, 0.1)


class LeafnodeAddress(NamedTuple):
    """Remote address and the credentials to use."""

    host: str
    port: int
    tls: bool
    user: str
    password: str | None

    @property
    def host_port(self) -> str:
        """The address without credentials."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_leafnode_url(url: str) -> LeafnodeAddress:
    """Parse a URL; raise ValueError if it is not valid."""
    parts = urlsplit(url if "://" in url else f"nats-leaf://{url}")
    if parts.scheme not in _SCHEMES:
        raise ValueError(f"{parts.scheme}:// is not supported: use one of {', '.join(_SCHEMES)}")
    if not parts.hostname:
        raise ValueError("the host is missing")
    password = None if parts.password is None else unquote(parts.password)
    user = unquote(parts.username or "")
    return LeafnodeAddress(
        parts.hostname, parts.port or DEFAULT_LEAFNODE_PORT, parts.scheme == "tls", user, password
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LeafnodeRemote:
    """A server, or the servers of one cluster, to connect to."""

    urls: tuple[str, ...] = field(repr=False)
    account: str = ""
    credentials: str = ""
    nkey: str = field(default="", repr=False)
    tls: LeafnodeTlsOptions | None = None
    hub: bool = False
    deny_imports: tuple[str, ...] = ()
    deny_exports: tuple[str, ...] = ()
    no_randomize: bool = False
    ignore_discovered: bool = False
    disabled: bool = False
    dial_timeout_s: float = 1.0
    first_info_timeout_s: float = 1.0
    compression: LeafnodeCompressionOptions = LeafnodeCompressionOptions()


@dataclass(frozen=True, slots=True, kw_only=True)
class LeafnodeOptions:
    """The section `leafnodes`; port 0 is no listener."""

    host: str = ""
    port: int = 0
    advertise: str = ""
    no_advertise: bool = False
    user: str = ""
    password: str = field(default="", repr=False)
    users: tuple[User, ...] = ()
    account: str = ""
    auth_timeout_s: float = 2.0
    tls: LeafnodeTlsOptions | None = None
    remotes: tuple[LeafnodeRemote, ...] = ()
    reconnect_s: float = 1.0
    compression: LeafnodeCompressionOptions = LeafnodeCompressionOptions()

    @property
    def enabled(self) -> bool:
        """Whether there is a listener or a remote."""
        return bool(self.port or self.remotes)

    @property
    def has_credentials(self) -> bool:
        """Whether it has users of its own; otherwise those of the server apply."""
        return bool(self.user or self.users)

    def with_command_line(self, listen: str, remotes: tuple[str, ...]) -> LeafnodeOptions:
        """Return the options with those of the command line added."""
        host, _, port = listen.rpartition(":")
        changed = replace(self, port=int(port), host=host.strip("[]") or self.host) if listen else self
        return replace(
            changed, remotes=changed.remotes + tuple(LeafnodeRemote(urls=(url,)) for url in remotes)
        )

    def find_error(self) -> str:
        """Return an error text, or ""."""
        if not -1 <= self.port <= 65535:
            return f"invalid leafnodes port {self.port}: use 1 to 65535, or -1 for any free port"
        if self.user and self.users:
            return "leafnodes authorization has both 'user' and 'users': use one of them"
        if self.port and self.tls is not None and not (self.tls.cert and self.tls.key):
            return "leafnodes tls requires cert_file and key_file"
        for remote in self.remotes:
            if error_text := _find_remote_error(remote):
                return error_text
        return ""


def _find_remote_error(remote: LeafnodeRemote) -> str:
    if not remote.urls:
        return "a leafnode remote has no url"
    if remote.credentials and remote.nkey:
        return "a leafnode remote has both credentials and an nkey: use one of them"
    for url in remote.urls:
        try:
            parse_leafnode_url(url)
        except ValueError as error:
            return f"a leafnode remote has an invalid url: {error}"
    return ""
