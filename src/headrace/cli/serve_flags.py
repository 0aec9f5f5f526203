"""Command line of `headrace serve`: parses nats-server's flags, by Go's rules, to Options.

One or two dashes, `-flag value` or `-flag=value`; a switch is bare or `=true`/`=false`; the first word without a dash
ends the flags. Owns the table of flags and their errors. Imports nothing slow, because it delays the start of the
server. See ADR 3.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from enum import Enum
from typing import Any

from headrace.config.options import LogFormat, OptionsError, ServerOptions, from_keywords
from headrace.durations import parse_duration_ns, parse_size

USAGE = """\
Usage: headrace serve [flags]

Runs the server. Flags are those of nats-server, with one or two dashes.

Example: headrace serve --jetstream --store_dir ./data --http_port 8222

Server
    -a, --addr, --net <host>         address to listen on (default: 127.0.0.1)
    -p, --port <port>                client port (default: 4222; -1: any free)
    -n, --name, --server_name <name> server name (default: a generated ID)
    -m, --http_port <port>           monitoring port, web page (-1: any free)
    -ms, --https_port <port>         monitoring port over TLS
        --http_admin_token <token>   token that allows changes on the web page
        --client_advertise <h:p>     address to advertise to clients
        --allow_insecure             allow remote access without authentication
        --standalone                 run alone, whatever the configuration file
                                     says about clusters, gateways and MQTT
    -c, --config <file>              configuration file
    -t                               check the configuration and exit
    -P, --pid <file>                 write the process ID to this file
        --ports_file_dir <dir>       write a file with the listening ports here
    -sl, --signal <signal>=<pid>     send a signal to a running server: stop,
                                     quit, ldm, reload, reopen

JetStream
    -js, --jetstream                 enable JetStream
    -sd, --store_dir <dir>           store directory
        --domain <name>              JetStream domain
        --standby                    wait while another server uses the store
                                     directory, and take over when it is gone;
                                     with an archive and ack: remote, follow it
        --take_over                  start although another server writes the
                                     archive now, and replace it
        --claims <file>              collect claims as configured in this file
        --tables <file>              write streams to the Iceberg tables in this file

Authentication
        --user <user>                user name required of clients
        --pass <password>            password required of clients
        --auth <token>               token required of clients

TLS
        --tls                        enable TLS
        --tlscert <file>             server certificate
        --tlskey <file>              private key of the server certificate
        --tlsverify                  require and verify client certificates
        --tlscacert <file>           CA certificate to verify clients with

Leafnodes (the configuration file has more settings)
        --leaf_listen <[host:]port>  accept leafnode connections (-1: any free)
        --leaf_remotes <url,...>     connect to these servers as a leafnode

Limits and timeouts (sizes like 64MB, durations like 2s)
        --max_payload <size>         --max_control_line <size>
        --max_pending <size>         --max_connections <n>
        --max_subscriptions <n>      --max_subscription_tokens <n>
        --ping_interval <duration>   --ping_max <n>
        --write_deadline <duration>  --auth_timeout <duration>
        --tls_timeout <duration>     --tls_handshake_first
        --lame_duck_duration <duration>
        --lame_duck_grace_period <duration>

Logging
    -l, --log, --log_file <file>     log file (default: stderr)
        --log_format <text|json>     log format (default: text)
    -T, --logtime                    timestamp log lines (default: true)
        --logtime_utc                timestamps in UTC
    -D, --debug                      log debug messages
    -V, --trace                      log protocol messages
    -DV                              both

Other
    -v, --version                    print the version
    -h, --help                       print this help
"""

#: The only setting that is not a server option: the configuration file.
CONFIG_KEY = "config"

NO_CLUSTER = (
    "Headrace is a single server and does not support clusters: remove the flag. "
    "For a cluster use nats-server; clients, claims and Spark jobs work with it unchanged."
)


class UsageError(OptionsError):
    """The command line cannot be parsed; the usage text helps."""


class Action(Enum):
    """What `headrace serve` should do."""

    RUN = "run"
    CHECK = "check"
    VERSION = "version"
    HELP = "help"
    SIGNAL = "signal"


@dataclass(frozen=True, slots=True)
class CommandLine:
    """A parsed command line."""

    action: Action = Action.RUN
    settings: dict[str, Any] = field(default_factory=dict)
    signal: str = ""
    warnings: tuple[str, ...] = ()

    def resolve(self) -> tuple[ServerOptions, tuple[str, ...]]:
        """Return the options, with those of the configuration file overridden by flags, and warnings."""
        settings, warnings = dict(self.settings), self.warnings
        path = settings.pop(CONFIG_KEY, "")
        if path:
            from headrace.config.schema import load_config

            draft = load_config(path, os.environ)
            settings = draft.settings | settings
            if settings.get("standalone"):
                draft.allow_standalone()
            else:
                draft.reject_cluster_sections()
            warnings += tuple(draft.warnings)
        options = from_keywords(**settings)
        options.check()
        return options, warnings


def _read_text(text: str) -> str:
    return text


def _read_int(text: str) -> int:
    return int(text, 0) if not text.lstrip("+-").isdigit() else int(text)


def _read_seconds(text: str) -> float:
    text = text.strip('"')  # as in a configuration file
    return float(text) if text.replace(".", "", 1).isdigit() else parse_duration_ns(text) / 1e9


_TRUE = {"1", "t", "T", "TRUE", "true", "True"}
_FALSE = {"0", "f", "F", "FALSE", "false", "False"}


def _read_bool(text: str) -> bool:
    if text in _TRUE:
        return True
    if text in _FALSE:
        return False
    raise ValueError(text)


def _read_urls(text: str) -> tuple[str, ...]:
    return tuple(url.strip() for url in text.split(",") if url.strip())


def _read_log_format(text: str) -> LogFormat:
    return LogFormat(text.lower())


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag: which options it sets and how its value is parsed; or why it is rejected or has no effect."""

    read: Callable[[str], Any] = _read_text
    options: tuple[str, ...] = ()
    action: Action | None = None
    rejection: str = ""
    ignored: bool = False

    @property
    def is_switch(self) -> bool:
        return self.read is _read_bool


def _make_flag(read: Callable[[str], Any], *options: str) -> Flag:
    return Flag(read=read, options=options)


_CLUSTER_FLAG = Flag(rejection=NO_CLUSTER)
_FLAG_TABLE: tuple[tuple[str, Flag], ...] = (
    ("a addr net", _make_flag(_read_text, "host")),
    ("p port", _make_flag(_read_int, "port")),
    ("n name server_name", _make_flag(_read_text, "server_name")),
    ("m http_port", _make_flag(_read_int, "http_port")),
    ("ms https_port", _make_flag(_read_int, "https_port")),
    ("http_admin_token", _make_flag(_read_text, "http_admin_token")),
    ("client_advertise", _make_flag(_read_text, "client_advertise")),
    ("standalone", _make_flag(_read_bool, "standalone")),
    ("standby", _make_flag(_read_bool, "standby")),
    ("take_over", _make_flag(_read_bool, "take_over")),
    ("allow_insecure", _make_flag(_read_bool, "allow_remote_without_auth")),
    ("max_payload", _make_flag(parse_size, "max_payload")),
    ("max_control_line", _make_flag(parse_size, "max_control_line")),
    ("max_pending", _make_flag(parse_size, "max_pending")),
    ("max_connections", _make_flag(_read_int, "max_connections")),
    ("max_subscriptions", _make_flag(_read_int, "max_subscriptions")),
    ("max_subscription_tokens", _make_flag(_read_int, "max_subscription_tokens")),
    ("ping_interval", _make_flag(_read_seconds, "ping_interval_s")),
    ("ping_max", _make_flag(_read_int, "ping_max")),
    ("write_deadline", _make_flag(_read_seconds, "write_deadline_s")),
    ("auth_timeout", _make_flag(_read_seconds, "auth_timeout_s")),
    ("lame_duck_duration", _make_flag(_read_seconds, "lame_duck_duration_s")),
    ("lame_duck_grace_period", _make_flag(_read_seconds, "lame_duck_grace_s")),
    ("user", _make_flag(_read_text, "user")),
    ("pass", _make_flag(_read_text, "password")),
    ("auth", _make_flag(_read_text, "token")),
    ("tls", _make_flag(_read_bool, "tls")),
    ("tlscert", _make_flag(_read_text, "tls_cert")),
    ("tlskey", _make_flag(_read_text, "tls_key")),
    ("tlsverify", _make_flag(_read_bool, "tls_verify")),
    ("tlscacert", _make_flag(_read_text, "tls_ca")),
    ("tls_timeout", _make_flag(_read_seconds, "tls_timeout_s")),
    ("tls_handshake_first", _make_flag(_read_bool, "tls_handshake_first")),
    ("js jetstream", _make_flag(_read_bool, "jetstream")),
    ("sd store_dir", _make_flag(_read_text, "store_dir")),
    ("claims", _make_flag(_read_text, "claims")),
    ("tables", _make_flag(_read_text, "tables")),
    ("domain", _make_flag(_read_text, "domain")),
    ("leaf_listen", _make_flag(_read_text, "leaf_listen")),
    ("leaf_remotes", _make_flag(_read_urls, "leaf_remotes")),
    ("l log log_file", _make_flag(_read_text, "log_file")),
    ("log_format", _make_flag(_read_log_format, "log_format")),
    ("T logtime", _make_flag(_read_bool, "log_time")),
    ("logtime_utc", _make_flag(_read_bool, "log_time_utc")),
    ("D debug", _make_flag(_read_bool, "debug")),
    ("V VV trace", _make_flag(_read_bool, "trace")),
    ("DV DVV", _make_flag(_read_bool, "debug", "trace")),
    ("P pid", _make_flag(_read_text, "pid_file")),
    ("ports_file_dir", _make_flag(_read_text, "ports_file_dir")),
    ("t", Flag(read=_read_bool, action=Action.CHECK)),
    ("v version", Flag(read=_read_bool, action=Action.VERSION)),
    ("h help help_tls", Flag(read=_read_bool, action=Action.HELP)),
    ("sl signal", Flag(action=Action.SIGNAL)),
    ("c config", _make_flag(_read_text, CONFIG_KEY)),
    ("cluster cluster_listen cluster_name cluster_advertise routes connect_retries", _CLUSTER_FLAG),
    ("no_advertise", Flag(read=_read_bool, rejection=NO_CLUSTER)),
    (
        "s syslog",
        Flag(
            read=_read_bool, rejection="syslog is not supported; Headrace logs to stderr or to a file (-l)."
        ),
    ),
    (
        "r remote_syslog",
        Flag(rejection="syslog is not supported; Headrace logs to stderr or to a file (-l)."),
    ),
    ("profile log_size_limit max_traced_msg_len", Flag(ignored=True)),
)

FLAGS = {name: flag for names, flag in _FLAG_TABLE for name in names.split()}


def parse(arguments: Sequence[str]) -> CommandLine:
    """Parse the arguments; raise UsageError for unknown ones, OptionsError for rejected ones."""
    settings: dict[str, Any] = {}
    warnings: list[str] = []
    action, signal = Action.RUN, ""
    rest = list(arguments)
    while rest and len(rest[0]) > 1 and rest[0].startswith("-"):
        word = rest.pop(0)
        if word == "--":
            break
        name, flag, text = _split_flag(word, rest)
        if flag.rejection:
            raise OptionsError(f"-{name}: {flag.rejection}")
        if flag.ignored:
            warnings.append(f"-{name} has no effect in Headrace")
            continue
        value = _read_value(name, flag, text)
        for option in flag.options:
            settings[option] = value
        if flag.action is not None and value is not False:
            action, signal = flag.action, text if flag.action is Action.SIGNAL else signal
    if rest:
        action = _parse_command_word(rest[0])
    return CommandLine(action, settings, signal, tuple(warnings))


def _split_flag(word: str, rest: list[str]) -> tuple[str, Flag, str]:
    """Return the flag that a word names, with its value, from the word or from the words that follow."""
    body = word[2:] if word.startswith("--") else word[1:]
    name, equals, text = body.partition("=")
    if not name or name.startswith("-"):
        raise UsageError(f"bad flag syntax: {word}")
    flag = FLAGS.get(name)
    if flag is None:
        raise UsageError(f"flag provided but not defined: -{name}{_suggestion(name)}")
    if not equals and flag.is_switch:
        return name, flag, "true"
    if not equals:
        if not rest:
            raise UsageError(f"flag needs an argument: -{name}")
        text = rest.pop(0)
    return name, flag, text


def _read_value(name: str, flag: Flag, text: str) -> Any:
    try:
        return flag.read(text)
    except ValueError:
        raise UsageError(f'invalid value "{text}" for flag -{name}') from None


def _suggestion(name: str) -> str:
    close = get_close_matches(name, FLAGS, n=1, cutoff=0.7)
    return f" (did you mean -{close[0]}?)" if close else ""


def _parse_command_word(word: str) -> Action:
    """Parse `nats-server version` and `nats-server help`, which are flags without dashes."""
    try:
        return {"version": Action.VERSION, "help": Action.HELP}[word.lower()]
    except KeyError:
        raise UsageError(f'unrecognized command: "{word}"') from None
