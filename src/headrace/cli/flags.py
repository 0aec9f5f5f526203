"""The command line of `headrace serve`: nats-server's flags, by Go's rules, into Options.

One or two dashes, `-flag value` or `-flag=value`; a switch is bare or `=true`/`=false`; the first word
without a dash ends the flags. Owns the table of flags and their refusals. It must not import anything slow: a
server that stands in for `nats-server` starts with this module.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from enum import Enum
from typing import Any

from headrace.durations import duration_ns, size_bytes
from headrace.net.options import LogFormat, Options, OptionsError, from_keywords

USAGE = """\
Usage: headrace serve [flags]        the flags of nats-server, with one or two dashes

Where it listens
    -a, --addr, --net <host>         address (default: 127.0.0.1)
    -p, --port <port>                port for clients (default: 4222; -1 is any free one)
    -n, --name, --server_name <name> name of the server
    -m, --http_port <port>           port for monitoring (-1 is any free one)
    -ms, --https_port <port>         the same over TLS
        --http_admin_token <token>   who has it may change things on the web page
        --client_advertise <h:p>     address that clients are told
        --allow_insecure             listen beyond this machine without authentication

Who may connect
        --user <user>                a user, with
        --pass <password>            its password
        --auth <token>               or a token instead

TLS
        --tls                        TLS, with
        --tlscert <file>             the server's certificate
        --tlskey <file>              and its key
        --tlsverify                  client certificates are asked for and checked against
        --tlscacert <file>           this authority

Streams
    -js, --jetstream                 durable streams
    -sd, --store_dir <dir>           where they are kept
        --claims <file>              collect the claims of the namespaces in this YAML file

        --domain <name>              their JetStream domain

Other servers (more in the configuration file, section leafnodes)
        --leaf_listen <[host:]port>  let leafnodes dial in (-1 is any free port)
        --leaf_remotes <url,...>     join these servers as a leafnode

Limits and patience (the configuration file's keys, as flags; sizes like 64MB, durations like 2s)
        --max_payload <size>         --max_control_line <size>      --max_pending <size>
        --max_connections <n>        --max_subscriptions <n>        --max_subscription_tokens <n>
        --ping_interval <duration>   --ping_max <n>                 --write_deadline <duration>
        --auth_timeout <duration>    --tls_timeout <duration>       --tls_handshake_first
        --lame_duck_duration <duration>    --lame_duck_grace_period <duration>

Logs
    -l, --log, --log_file <file>     into a file instead of stderr
        --log_format <text|json>     form of the lines (default: text)
    -T, --logtime                    time in each line (default: true)
        --logtime_utc                in UTC
    -D, --debug    -V, --trace    -DV  say more

Running it
    -c, --config <file>              configuration file
    -t                               check the settings and exit
    -P, --pid <file>                 file for the process id
        --ports_file_dir <dir>       folder for a file that names the ports in use
    -sl, --signal <signal>=<pid>     tell a running server: stop, quit, ldm, reload, reopen
    -v, --version    -h, --help
"""

#: The one setting that is no option: where the others are.
CONFIG = "config"

NO_CLUSTER = (
    "Headrace is a single server and cannot form a cluster: leave the flag out. "
    "For a cluster run nats-server; clients, claims and jobs work with it unchanged."
)


class UsageError(OptionsError):
    """The command line cannot be understood; the usage text helps."""


class Action(Enum):
    """What `headrace serve` was asked to do."""

    RUN = "run"
    CHECK = "check"
    VERSION = "version"
    HELP = "help"
    SIGNAL = "signal"


@dataclass(frozen=True, slots=True)
class CommandLine:
    """A command line, understood."""

    action: Action = Action.RUN
    settings: dict[str, Any] = field(default_factory=dict)
    signal: str = ""
    warnings: tuple[str, ...] = ()

    def resolve(self) -> tuple[Options, tuple[str, ...]]:
        """The options, those of the configuration file overridden by flags, and what is worth a warning."""
        settings, warnings = dict(self.settings), self.warnings
        path = settings.pop(CONFIG, "")
        if path:
            from headrace.net.settings import load

            draft = load(path, os.environ)
            settings = draft.settings | settings
            warnings += tuple(draft.warnings)
        options = from_keywords(**settings)
        options.check()
        return options, warnings


def _text(text: str) -> str:
    return text


def _number(text: str) -> int:
    return int(text, 0) if not text.lstrip("+-").isdigit() else int(text)


def _seconds(text: str) -> float:
    text = text.strip('"')  # as a configuration file would have it
    return float(text) if text.replace(".", "", 1).isdigit() else duration_ns(text) / 1e9


_TRUE = {"1", "t", "T", "TRUE", "true", "True"}
_FALSE = {"0", "f", "F", "FALSE", "false", "False"}


def _switch(text: str) -> bool:
    if text in _TRUE:
        return True
    if text in _FALSE:
        return False
    raise ValueError(text)


def _urls(text: str) -> tuple[str, ...]:
    return tuple(url.strip() for url in text.split(",") if url.strip())


def _log_format(text: str) -> LogFormat:
    return LogFormat(text.lower())


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag: which option(s) it sets, how its value is read; or why it is refused or has no effect."""

    read: Callable[[str], Any] = _text
    sets: tuple[str, ...] = ()
    action: Action | None = None
    refusal: str = ""
    ignored: bool = False

    @property
    def is_switch(self) -> bool:
        return self.read is _switch


def _sets(read: Callable[[str], Any], *options: str) -> Flag:
    return Flag(read=read, sets=options)


_CLUSTER = Flag(refusal=NO_CLUSTER)
_ROWS: tuple[tuple[str, Flag], ...] = (
    ("a addr net", _sets(_text, "host")),
    ("p port", _sets(_number, "port")),
    ("n name server_name", _sets(_text, "server_name")),
    ("m http_port", _sets(_number, "http_port")),
    ("ms https_port", _sets(_number, "https_port")),
    ("http_admin_token", _sets(_text, "http_admin_token")),
    ("client_advertise", _sets(_text, "client_advertise")),
    ("allow_insecure", _sets(_switch, "allow_remote_without_auth")),
    ("max_payload", _sets(size_bytes, "max_payload")),
    ("max_control_line", _sets(size_bytes, "max_control_line")),
    ("max_pending", _sets(size_bytes, "max_pending")),
    ("max_connections", _sets(_number, "max_connections")),
    ("max_subscriptions", _sets(_number, "max_subscriptions")),
    ("max_subscription_tokens", _sets(_number, "max_subscription_tokens")),
    ("ping_interval", _sets(_seconds, "ping_interval_s")),
    ("ping_max", _sets(_number, "ping_max")),
    ("write_deadline", _sets(_seconds, "write_deadline_s")),
    ("auth_timeout", _sets(_seconds, "auth_timeout_s")),
    ("lame_duck_duration", _sets(_seconds, "lame_duck_duration_s")),
    ("lame_duck_grace_period", _sets(_seconds, "lame_duck_grace_s")),
    ("user", _sets(_text, "user")),
    ("pass", _sets(_text, "password")),
    ("auth", _sets(_text, "token")),
    ("tls", _sets(_switch, "tls")),
    ("tlscert", _sets(_text, "tls_cert")),
    ("tlskey", _sets(_text, "tls_key")),
    ("tlsverify", _sets(_switch, "tls_verify")),
    ("tlscacert", _sets(_text, "tls_ca")),
    ("tls_timeout", _sets(_seconds, "tls_timeout_s")),
    ("tls_handshake_first", _sets(_switch, "tls_handshake_first")),
    ("js jetstream", _sets(_switch, "jetstream")),
    ("sd store_dir", _sets(_text, "store_dir")),
    ("claims", _sets(_text, "claims")),
    ("domain", _sets(_text, "domain")),
    ("leaf_listen", _sets(_text, "leaf_listen")),
    ("leaf_remotes", _sets(_urls, "leaf_remotes")),
    ("l log log_file", _sets(_text, "log_file")),
    ("log_format", _sets(_log_format, "log_format")),
    ("T logtime", _sets(_switch, "log_time")),
    ("logtime_utc", _sets(_switch, "log_time_utc")),
    ("D debug", _sets(_switch, "debug")),
    ("V VV trace", _sets(_switch, "trace")),
    ("DV DVV", _sets(_switch, "debug", "trace")),
    ("P pid", _sets(_text, "pid_file")),
    ("ports_file_dir", _sets(_text, "ports_file_dir")),
    ("t", Flag(read=_switch, action=Action.CHECK)),
    ("v version", Flag(read=_switch, action=Action.VERSION)),
    ("h help help_tls", Flag(read=_switch, action=Action.HELP)),
    ("sl signal", Flag(action=Action.SIGNAL)),
    ("c config", _sets(_text, CONFIG)),
    ("cluster cluster_listen cluster_name cluster_advertise routes connect_retries", _CLUSTER),
    ("no_advertise", Flag(read=_switch, refusal=NO_CLUSTER)),
    (
        "s syslog",
        Flag(read=_switch, refusal="logs go to stderr or a file (-l): let your system pick them up."),
    ),
    ("r remote_syslog", Flag(refusal="logs go to stderr or a file (-l): let your system pick them up.")),
    ("profile log_size_limit max_traced_msg_len", Flag(ignored=True)),
)

FLAGS = {name: flag for names, flag in _ROWS for name in names.split()}


def parse(arguments: Sequence[str]) -> CommandLine:
    """What the arguments ask for; UsageError for what is not understood, OptionsError for what is refused."""
    settings: dict[str, Any] = {}
    warnings: list[str] = []
    action, signal = Action.RUN, ""
    rest = list(arguments)
    while rest and len(rest[0]) > 1 and rest[0].startswith("-"):
        word = rest.pop(0)
        if word == "--":
            break
        name, flag, text = _take(word, rest)
        if flag.refusal:
            raise OptionsError(f"-{name}: {flag.refusal}")
        if flag.ignored:
            warnings.append(f"-{name} has no effect here")
            continue
        value = _read(name, flag, text)
        for option in flag.sets:
            settings[option] = value
        if flag.action is not None and value is not False:
            action, signal = flag.action, text if flag.action is Action.SIGNAL else signal
    if rest:
        action = _word(rest[0])
    return CommandLine(action, settings, signal, tuple(warnings))


def _take(word: str, rest: list[str]) -> tuple[str, Flag, str]:
    """The flag that a word names, with its value, taken from the word or from the words that follow."""
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


def _read(name: str, flag: Flag, text: str) -> Any:
    try:
        return flag.read(text)
    except ValueError:
        raise UsageError(f'invalid value "{text}" for flag -{name}') from None


def _suggestion(name: str) -> str:
    close = get_close_matches(name, FLAGS, n=1, cutoff=0.7)
    return f" (did you mean -{close[0]}?)" if close else ""


def _word(word: str) -> Action:
    """`nats-server version` and `nats-server help` are flags without dashes."""
    try:
        return {"version": Action.VERSION, "help": Action.HELP}[word.lower()]
    except KeyError:
        raise UsageError(f'unrecognized command: "{word}"') from None
