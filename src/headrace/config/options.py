"""Options: every setting of a server, in one frozen value.

Owns the names, the defaults (those of nats-server, except for the address: loopback) and the checks that need only the
values themselves. The command line, the configuration file and `headrace.Server` all end here; nothing else defines a
default. It must not know where a value came from; secrets never show in its repr. See ADRs 1 and 2.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from headrace.config.archive_options import ArchiveOptions
from headrace.config.leafnode_options import LeafnodeOptions
from headrace.config.open_listeners import find_open_listener, is_loopback
from headrace.config.trace_options import NO_TRACE, TraceOptions
from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from headrace.broker import AccountLimits, Permissions
    from headrace.broker.routing.exports import Export, Import
    from headrace.broker.routing.subject_mapping import SubjectMapping
    from headrace.jetstream_api.account_limits import JetStreamLimits

LOOPBACK_HOST = "127.0.0.1"
DEFAULT_PORT = 4222
ANY_PORT = -1


class OptionsError(HeadraceError):
    """An invalid setting; the message has its name, its value and what to do."""


class LogFormat(StrEnum):
    TEXT = "text"
    JSON = "json"


@dataclass(frozen=True, slots=True)
class User:
    """One user; `password` is plain text or a bcrypt hash (`$2a$...`).

    With `nkey` the name is that public key, and a signature replaces the password. `connections` are the types of
    connection it may use, such as WEBSOCKET; empty is any.
    """

    name: str
    password: str = field(default="", repr=False)
    account: str = ""
    permissions: Permissions | None = None
    nkey: bool = False
    connections: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class AccountOptions:
    """One account: limits of JetStream (None: no JetStream), limits of its clients, exports and imports."""

    name: str
    jetstream_limits: JetStreamLimits | None = None
    limits: AccountLimits | None = None
    exports: tuple[Export, ...] = ()
    imports: tuple[Import, ...] = ()
    subject_mappings: tuple[SubjectMapping, ...] = ()
    trace: TraceOptions = NO_TRACE


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """The certificate of a listener and the CA it trusts; without a certificate there is no TLS."""

    cert: str = ""
    key: str = ""
    ca: str = ""
    verify: bool = False
    #: Find the user by the names in the client's certificate.
    map_users: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class WebSocketOptions:
    """The WebSocket listener; port 0 is none."""

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
class ServerOptions:
    """The settings of one server. Durations end in `_s` (seconds), sizes are bytes, a limit of 0 is none."""

    # Address
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

    # Timeouts
    ping_interval_s: float = 120.0
    ping_max: int = 2
    write_deadline_s: float = 10.0
    auth_timeout_s: float = 2.0
    lame_duck_duration_s: float = 120.0
    lame_duck_grace_s: float = 10.0

    # Authentication
    user: str = ""
    password: str = field(default="", repr=False)
    token: str = field(default="", repr=False)
    users: tuple[User, ...] = ()
    no_auth_user: str = ""
    accounts: tuple[AccountOptions, ...] = ()
    system_account: str = ""
    #: Subject mappings of the global account.
    redirects: tuple[SubjectMapping, ...] = ()

    # Operator mode: signed JWTs define users and accounts
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
    #: How long to wait for the client to start TLS before INFO is sent in plain text; 0 is forever.
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
    archive: ArchiveOptions | None = None

    # Claims and tables
    claims: str = ""
    tables: str = ""

    # Monitoring
    http_host: str = ""
    http_port: int = 0
    https_port: int = 0
    http_admin_token: str = field(default="", repr=False)

    # Leafnodes
    leafnodes: LeafnodeOptions = field(default_factory=LeafnodeOptions)
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
    standalone: bool = False
    standby: bool = False
    take_over: bool = False
    pid_file: str = ""
    ports_file_dir: str = ""

    @property
    def auth_required(self) -> bool:
        """Whether a client must authenticate."""
        return self.has_credentials and not self.no_auth_user

    @property
    def has_credentials(self) -> bool:
        """Whether there are any users or tokens, even if clients without credentials are accepted as `no_auth_user`."""
        return bool(self.user or self.token or self.users or self.operator_mode)

    @property
    def operator_mode(self) -> bool:
        """Whether users are authenticated by JWTs of an operator's accounts."""
        return bool(self.operators or self.trusted_keys)

    @property
    def tls_files(self) -> TlsFiles:
        """The certificates of the client listener."""
        return TlsFiles(
            cert=self.tls_cert,
            key=self.tls_key,
            ca=self.tls_ca,
            verify=self.tls_verify or self.tls_map,
            map_users=self.tls_map,
        )

    @property
    def effective_leafnodes(self) -> LeafnodeOptions:
        """The leafnode options of the configuration and the command line together."""
        return self.leafnodes.with_command_line(self.leaf_listen, self.leaf_remotes)

    @property
    def monitoring_host(self) -> str:
        """The address of the monitoring port: it needs no password, so it is local unless remote access is allowed."""
        if is_loopback(self.host) or self.allow_remote_without_auth:
            return self.http_host or self.host
        return self.http_host if is_loopback(self.http_host) else LOOPBACK_HOST

    @property
    def tls_enabled(self) -> bool:
        return self.tls or self.tls_verify or self.tls_map or bool(self.tls_cert)

    def check(self) -> None:
        """Raise OptionsError if settings contradict each other or are not supported."""
        for check in _CHECKS:
            error_text = check(self)
            if error_text:
                raise OptionsError(error_text)


def _check_ports(o: ServerOptions) -> str:
    for name in ("port", "http_port", "https_port"):
        value = getattr(o, name)
        if not -1 <= value <= 65535:
            return f"invalid {name} {value}: use 1 to 65535, or -1 for any free port"
    return ""


def _check_payload(o: ServerOptions) -> str:
    if o.max_payload > o.max_pending:
        return f"max_payload ({o.max_payload}) must not exceed max_pending ({o.max_pending})"
    return ""


def _check_limits(o: ServerOptions) -> str:
    for name in ("max_payload", "max_control_line", "max_pending"):
        value = getattr(o, name)
        if value <= 0:
            return f"invalid {name} {value}: must be greater than 0"
    for name in ("max_subscriptions", "max_subscription_tokens", "max_connections", "ping_max"):
        value = getattr(o, name)
        if value < 0:
            return f"invalid {name} {value}: must not be negative"
    return ""


def _check_timeouts(o: ServerOptions) -> str:
    for name in ("ping_interval_s", "write_deadline_s", "auth_timeout_s", "tls_timeout_s"):
        value = getattr(o, name)
        if value <= 0:
            return f"invalid {name} {value}: must be greater than 0"
    return ""


def _check_credentials(o: ServerOptions) -> str:
    if o.token and (o.user or o.users):
        return "a token and users cannot be combined: use either --auth, or --user with --pass"
    if bool(o.user) != bool(o.password) and not o.users:
        return "user and password must be given together: use both --user and --pass"
    return ""


def _check_tls(o: ServerOptions) -> str:
    if not o.tls_enabled:
        return "https_port requires TLS: add --tlscert and --tlskey" if o.https_port else ""
    if not o.tls_cert or not o.tls_key:
        return "TLS requires a certificate and its key: add --tlscert and --tlskey"
    if (o.tls_verify or o.tls_map) and not o.tls_ca:
        return "verifying client certificates requires a CA certificate: add --tlscacert"
    return ""


def _check_websocket(o: ServerOptions) -> str:
    websocket = o.websocket
    if not websocket.port:
        return ""
    if not websocket.tls.cert and not websocket.no_tls:
        return "websocket requires tls { cert_file, key_file }, or no_tls: true behind a TLS proxy"
    if websocket.tls.cert and (not websocket.tls.key or (websocket.tls.verify and not websocket.tls.ca)):
        return "websocket tls requires key_file, and ca_file if client certificates are verified"
    return ""


def _check_leafnodes(o: ServerOptions) -> str:
    return o.effective_leafnodes.find_error()


def _check_operator(o: ServerOptions) -> str:
    if o.operator_mode and (o.users or o.user or o.token or o.accounts):
        return "an operator cannot be combined with configured users or accounts"
    if o.resolver_preload and not o.operator_mode:
        return "resolver_preload requires an operator"
    return ""


def _check_unique_users(o: ServerOptions) -> str:
    seen: set[str] = set()
    for user in o.users:
        if user.name in seen:
            return f"duplicate user {user.name!r}: user names must be unique across accounts"
        seen.add(user.name)
    return ""


def _check_claims(o: ServerOptions) -> str:
    if o.claims and not o.jetstream:
        return f"claims {o.claims!r} requires JetStream: add -js"
    return ""


def _check_tables(o: ServerOptions) -> str:
    if o.tables and not o.jetstream:
        return f"tables {o.tables!r} requires JetStream: add -js"
    return ""


def _check_standby(o: ServerOptions) -> str:
    if o.standby and not (o.jetstream and o.store_dir):
        return "standby requires JetStream and a store directory that both servers share: add -js -sd DIR"
    if o.take_over and o.archive is None:
        return "take_over requires an archive: add the block archive to jetstream"
    return ""


def _check_archive(o: ServerOptions) -> str:
    return o.archive.find_error(bool(o.jetstream and o.store_dir)) if o.archive is not None else ""


def _check_server_name(o: ServerOptions) -> str:
    if any(c.isspace() for c in o.server_name):
        return f"invalid server name {o.server_name!r}: spaces are not allowed"
    return ""


_CHECKS = (
    _check_ports,
    _check_limits,
    _check_payload,
    _check_timeouts,
    _check_credentials,
    _check_tls,
    _check_websocket,
    _check_leafnodes,
    _check_operator,
    _check_unique_users,
    _check_claims,
    _check_tables,
    _check_standby,
    _check_archive,
    _check_server_name,
    find_open_listener,
)


def option_names() -> frozenset[str]:
    """Return the names of all options, for callers that take them as keywords."""
    return frozenset(f.name for f in fields(ServerOptions))


def from_keywords(**values: Any) -> ServerOptions:
    """Create options from keyword arguments; raise OptionsError for an unknown name."""
    unknown = sorted(set(values) - option_names())
    if unknown:
        raise OptionsError(
            f"unknown option {unknown[0]!r}; known options: {', '.join(sorted(option_names()))}"
        )
    return ServerOptions(**values)
