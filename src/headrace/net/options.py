"""Options: every setting of a server, in one frozen value.

Owns the names, the defaults (the reference server's, except for the address: loopback) and the checks that
need nothing but the values themselves. The command line, the configuration file and `headrace.Server` all end
here; nothing else keeps a default. It must not know where a value came from; secrets never show in its repr.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from headrace.errors import HeadraceError
from headrace.net.leaf_options import Leafnodes

if TYPE_CHECKING:
    from headrace.api.limits import Limits
    from headrace.broker import AccountLimits, Permissions
    from headrace.broker.exports import Export, Import
    from headrace.broker.redirects import Redirect

LOOPBACK_HOST = "127.0.0.1"
DEFAULT_PORT = 4222
ANY_PORT = -1


class OptionsError(HeadraceError):
    """A setting that cannot be used; the text names it, its value and the remedy."""


class LogFormat(StrEnum):
    TEXT = "text"
    JSON = "json"


@dataclass(frozen=True, slots=True)
class User:
    """One name that may connect; `password` is plain text or a bcrypt hash (`$2a$...`).

    With `nkey` the name is that public key, and a signature takes the place of the password. `connections` are
    the kinds of connection it may use, such as WEBSOCKET; empty is any.
    """

    name: str
    password: str = field(default="", repr=False)
    account: str = ""
    permissions: Permissions | None = None
    nkey: bool = False
    connections: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class AccountOptions:
    """One account: its streams' limits (None: it has no streams), its clients' limits, what it shows and takes."""

    name: str
    streams: Limits | None = None
    limits: AccountLimits | None = None
    exports: tuple[Export, ...] = ()
    imports: tuple[Import, ...] = ()
    redirects: tuple[Redirect, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """What a listener shows and whom it trusts; no certificate is no TLS."""

    cert: str = ""
    key: str = ""
    ca: str = ""
    verify: bool = False
    #: The user is found by what the client's certificate names.
    map_users: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class WebSocketOptions:
    """The door for WebSocket clients; port 0 is none."""

    host: str = ""
    port: int = 0
    advertise: str = ""
    no_tls: bool = False
    tls: TlsFiles = TlsFiles()
    compression: bool = False
    same_origin: bool = False
    allowed_origins: tuple[str, ...] = ()
    handshake_timeout_s: float = 2.0
    no_auth_user: str = ""
    jwt_cookie: str = ""
    user_cookie: str = ""
    pass_cookie: str = ""
    token_cookie: str = ""
    headers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The settings of one server. Durations end in `_s` (seconds), sizes are bytes, a limit of 0 is none."""

    # Where it listens
    host: str = LOOPBACK_HOST
    port: int = DEFAULT_PORT
    server_name: str = ""
    server_tags: tuple[str, ...] = ()
    client_advertise: str = ""
    allow_remote_without_auth: bool = False

    # Limits
    max_payload: int = 1024 * 1024
    max_control_line: int = 4096
    max_pending: int = 64 * 1024 * 1024
    max_connections: int = 64 * 1024
    max_subscriptions: int = 0
    max_subscription_tokens: int = 0

    # Patience
    ping_interval_s: float = 120.0
    ping_max: int = 2
    write_deadline_s: float = 10.0
    auth_timeout_s: float = 2.0
    lame_duck_duration_s: float = 120.0
    lame_duck_grace_s: float = 10.0

    # Who may connect
    user: str = ""
    password: str = field(default="", repr=False)
    token: str = field(default="", repr=False)
    users: tuple[User, ...] = ()
    no_auth_user: str = ""
    accounts: tuple[AccountOptions, ...] = ()
    system_account: str = ""
    #: Subject mappings of the global account.
    redirects: tuple[Redirect, ...] = ()

    # Operator mode: who may connect is said by signed tokens
    operators: tuple[str, ...] = field(default=(), repr=False)
    trusted_keys: tuple[str, ...] = ()
    resolver_preload: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    # TLS
    tls: bool = False
    tls_cert: str = ""
    tls_key: str = ""
    tls_ca: str = ""
    tls_verify: bool = False
    tls_timeout_s: float = 2.0
    tls_map: bool = False
    tls_handshake_first: bool = False
    #: How long to wait for the client to begin before it is greeted in plain text; 0 is for ever.
    tls_first_wait_s: float = 0.0
    allow_non_tls: bool = False

    # JetStream
    jetstream: bool = False
    store_dir: str = ""
    domain: str = ""
    strict: bool = True
    max_file_store: int = 0
    max_memory_store: int = 0
    batch_max_inflight_per_stream: int = 50
    batch_max_inflight_total: int = 1000
    batch_max_msgs: int = 1000
    batch_timeout_s: float = 10.0

    # Claims
    claims: str = ""

    # Monitoring
    http_host: str = ""
    http_port: int = 0
    https_port: int = 0
    http_admin_token: str = field(default="", repr=False)

    # Leafnodes
    leafnodes: Leafnodes = field(default_factory=Leafnodes)
    leaf_listen: str = ""
    leaf_remotes: tuple[str, ...] = field(default=(), repr=False)

    # WebSocket
    websocket: WebSocketOptions = WebSocketOptions()

    # Logs and files
    log_file: str = ""
    log_format: LogFormat = LogFormat.TEXT
    log_time: bool = True
    log_time_utc: bool = False
    debug: bool = False
    trace: bool = False
    pid_file: str = ""
    ports_file_dir: str = ""

    @property
    def auth_required(self) -> bool:
        """Whether a client has to prove who it is before it is heard."""
        return self.has_credentials and not self.no_auth_user

    @property
    def has_credentials(self) -> bool:
        """Whether anybody is known at all, whether or not strangers are let in as `no_auth_user`."""
        return bool(self.user or self.token or self.users or self.operator_mode)

    @property
    def operator_mode(self) -> bool:
        """Whether users are known by tokens that an operator's accounts signed."""
        return bool(self.operators or self.trusted_keys)

    @property
    def tls_files(self) -> TlsFiles:
        """The certificates of the door for clients."""
        return TlsFiles(
            cert=self.tls_cert,
            key=self.tls_key,
            ca=self.tls_ca,
            verify=self.tls_verify or self.tls_map,
            map_users=self.tls_map,
        )

    @property
    def leaf(self) -> Leafnodes:
        """Leafnodes as the configuration and the command line have them."""
        return self.leafnodes.extended(self.leaf_listen, self.leaf_remotes)

    @property
    def monitoring_host(self) -> str:
        """Where monitoring listens: it asks no password, so it stays on this machine unless told so."""
        if is_loopback(self.host) or self.allow_remote_without_auth:
            return self.http_host or self.host
        return self.http_host if is_loopback(self.http_host) else LOOPBACK_HOST

    @property
    def tls_enabled(self) -> bool:
        return self.tls or self.tls_verify or self.tls_map or bool(self.tls_cert)

    def check(self) -> None:
        """Raise OptionsError when the settings contradict each other or cannot be served."""
        for rule in _RULES:
            complaint = rule(self)
            if complaint:
                raise OptionsError(complaint)


def _port_in_range(o: Options) -> str:
    for name in ("port", "http_port", "https_port"):
        value = getattr(o, name)
        if not -1 <= value <= 65535:
            return f"{name} {value} is not a port: use 1 to 65535, or -1 for any free one"
    return ""


def _payload_fits(o: Options) -> str:
    if o.max_payload > o.max_pending:
        return f"max_payload ({o.max_payload}) cannot be larger than max_pending ({o.max_pending})"
    return ""


def _limits_positive(o: Options) -> str:
    for name in ("max_payload", "max_control_line", "max_pending"):
        value = getattr(o, name)
        if value <= 0:
            return f"{name} is {value}: it has to be positive"
    for name in ("max_subscriptions", "max_subscription_tokens", "max_connections", "ping_max"):
        value = getattr(o, name)
        if value < 0:
            return f"{name} is {value}: it cannot be negative"
    return ""


def _patience_positive(o: Options) -> str:
    for name in ("ping_interval_s", "write_deadline_s", "auth_timeout_s", "tls_timeout_s"):
        value = getattr(o, name)
        if value <= 0:
            return f"{name} is {value}: it has to be longer than nothing"
    return ""


def _one_way_in(o: Options) -> str:
    if o.token and (o.user or o.users):
        return "a token and users cannot be used together: choose --auth, or --user with --pass"
    if bool(o.user) != bool(o.password) and not o.users:
        return "a user needs a password and a password a user: give both --user and --pass"
    return ""


def _tls_complete(o: Options) -> str:
    if not o.tls_enabled:
        return "https_port needs TLS: give --tlscert and --tlskey" if o.https_port else ""
    if not o.tls_cert or not o.tls_key:
        return "TLS needs a certificate and its key: give --tlscert and --tlskey"
    if (o.tls_verify or o.tls_map) and not o.tls_ca:
        return "verifying client certificates needs an authority: give --tlscacert"
    return ""


def _websocket_complete(o: Options) -> str:
    door = o.websocket
    if not door.port:
        return ""
    if not door.tls.cert and not door.no_tls:
        return "websocket needs tls { cert_file, key_file }, or no_tls: true behind something that does TLS"
    if door.tls.cert and (not door.tls.key or (door.tls.verify and not door.tls.ca)):
        return "websocket tls needs key_file, and ca_file where certificates are verified"
    return ""


def _leafnodes_complete(o: Options) -> str:
    leaf = o.leaf
    known = leaf.has_credentials or o.has_credentials or (leaf.tls is not None and leaf.tls.verify)
    if leaf.port and not (known or is_loopback(leaf.host or o.host) or o.allow_remote_without_auth):
        return (
            f"refusing to let leafnodes dial in on {leaf.host or o.host!r} without authentication: give "
            "leafnodes { authorization { user, password } }, or say --allow_insecure if that is what you want"
        )
    return leaf.complaint()


def _operator_alone(o: Options) -> str:
    if o.operator_mode and (o.users or o.user or o.token or o.accounts):
        return "an operator and configured users or accounts cannot be used together"
    if o.resolver_preload and not o.operator_mode:
        return "resolver_preload needs an operator"
    return ""


def _users_once(o: Options) -> str:
    seen: set[str] = set()
    for user in o.users:
        if user.name in seen:
            return f"user {user.name!r} is there twice: names are unique across accounts"
        seen.add(user.name)
    return ""


def _claims_have_streams(o: Options) -> str:
    if o.claims and not o.jetstream:
        return f"claims {o.claims!r} are collected by what streams say: give -js too"
    return ""


def _name_without_blanks(o: Options) -> str:
    if any(c.isspace() for c in o.server_name):
        return f"server name {o.server_name!r} contains blanks: use a name without"
    return ""


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address."""
    return host in ("localhost", "::1") or host.startswith("127.")


def _remote_needs_auth(o: Options) -> str:
    if is_loopback(o.host) or o.has_credentials or o.tls_verify or o.allow_remote_without_auth:
        return ""
    return (
        f"refusing to listen on {o.host or 'all addresses'!r} without authentication: anybody who reaches it "
        "could read and write everything. Give --user and --pass, or --auth, or --tlsverify; "
        "or say --allow_insecure if that is what you want"
    )


_RULES = (
    _port_in_range,
    _limits_positive,
    _payload_fits,
    _patience_positive,
    _one_way_in,
    _tls_complete,
    _websocket_complete,
    _leafnodes_complete,
    _operator_alone,
    _users_once,
    _claims_have_streams,
    _name_without_blanks,
    _remote_needs_auth,
)


def option_names() -> frozenset[str]:
    """The names that may be set, for those who take them as keywords."""
    return frozenset(f.name for f in fields(Options))


def from_keywords(**values: Any) -> Options:
    """Options from keyword arguments; an unknown name is an error that says so."""
    unknown = sorted(set(values) - option_names())
    if unknown:
        raise OptionsError(
            f"unknown option {unknown[0]!r}; the options are: {', '.join(sorted(option_names()))}"
        )
    return Options(**values)
