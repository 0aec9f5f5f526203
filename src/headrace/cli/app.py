"""Table of commands, on typer. A command's module is imported only when the command or its help is called.

`serve` is in `headrace.cli.serve` instead, so that it does not pay for the framework. See ADR 80.
"""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections.abc import Sequence
from typing import Any

import typer
from typer._completion_classes import completion_init
from typer.core import TyperCommand

from headrace.cli import connection_target as targets
from headrace.cli.exit_codes import CLOSED_PIPE, to_cli_error
from headrace.cli.help_layout import HelpGroup, use_layout
from headrace.cli.output import print_note
from headrace.cli.session import discard_stdout, get_root_flags

#: Help panels and their commands: name, module, the typer application in it, purpose.
COMMANDS: dict[str, list[tuple[str, str, str, str]]] = {
    "Server": [
        (
            "serve",
            "local_commands",
            "serve_app",
            "Run the server. Accepts nats-server's flags; see 'headrace serve --help'.",
        ),
        (
            "fsck",
            "local_commands",
            "fsck_app",
            "Check or repair (--accept-loss) the store of a stopped server.",
        ),
        (
            "archive",
            "archive",
            "archive_app",
            "Check, list, verify, restore and promote the archive of a server.",
        ),
        ("backup", "backup", "backup_app", "Back up a whole server; list and verify backups."),
        ("restore", "backup", "restore_app", "Restore a backup of a server into an empty directory."),
        ("mkpasswd", "mkpasswd", "mkpasswd_app", "Print the bcrypt hash of a password."),
    ],
    "Streams": [
        ("stream", "stream", "stream_app", "Create, inspect, change and remove streams."),
        (
            "consumer",
            "consumer",
            "consumer_app",
            "Create, read, pause, reset and remove consumers of a stream.",
        ),
        ("kv", "kv", "kv_app", "Key-value buckets."),
        ("object", "objects", "objects_app", "Object store buckets."),
        ("batch", "batch", "batch_app", "Store lines, JSON objects or files as one atomic batch."),
        ("migrate", "migrate", "migrate_app", "Move streams to a NATS cluster or another server, and back."),
    ],
    "Messages": [
        ("pub", "messages", "pub_app", "Publish messages."),
        ("sub", "messages", "sub_app", "Subscribe to a subject and print its messages."),
        ("req", "messages", "req_app", "Send a request and print the reply."),
        ("reply", "messages", "reply_app", "Reply to requests on a subject."),
        ("counter", "counter", "counter_app", "Increment, read and list counters."),
        ("schedule", "schedule", "schedule_app", "Add, list and remove scheduled messages."),
        ("trace", "trace", "trace_app", "Show where a message goes."),
    ],
    "Data": [
        (
            "claims",
            "claims",
            "claims_app",
            "Inspect, check and collect claims: payloads in object stores.",
        ),
        ("export", "export", "export_app", "Write messages of a stream to Parquet, CSV or JSON lines."),
        ("sql", "sql", "sql_app", "Query streams with SQL; without a query, an interactive shell."),
        ("pipeline", "spark_jobs", "pipeline", "Run Apache Spark jobs on streams."),
        ("table", "table", "table_app", "Write streams to Apache Iceberg tables."),
    ],
    "Monitoring": [
        ("top", "top", "top_app", "Show streams and consumers live: rates, sizes, lag."),
        ("events", "events", "events_app", "Show JetStream advisories as they happen."),
        ("bench", "bench", "bench_app", "Benchmark a server."),
        ("server", "server", "server_app", "Ping, inspect and check a server."),
        ("account", "server", "account_app", "Show an account's JetStream usage and limits."),
    ],
    "This tool": [
        ("context", "context", "context_app", "Manage saved connections, shared with the nats tool."),
        (
            "completion",
            "local_commands",
            "completion_app",
            "Print a shell completion script.",
        ),
        (
            "version",
            "local_commands",
            "version_app",
            "Print the version and the compatible nats-server version.",
        ),
    ],
}
_COMPLETE_VARIABLE = "_HEADRACE_COMPLETE"
_LOCATIONS = {name: (module, app) for group in COMMANDS.values() for name, module, app, _ in group}
#: Groups that read --server and NATS_URL themselves; other ways to name a server become their default.
_OWN_SERVER_OPTION = {"pipeline"}


class LazyGroup(HelpGroup):
    """The commands by name and purpose; a command is loaded when it is called."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self._loaded: dict[str, Any] = {}
        for panel, group in COMMANDS.items():
            for name, _, _, purpose in group:
                stub = TyperCommand(name, help=purpose, rich_help_panel=panel)
                stub.rich_markup_mode = self.rich_markup_mode
                self.commands[name] = stub

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Format the help from names and purposes, without loading any command."""
        ctx.meta["headrace.names"] = True
        super().format_help(ctx, formatter)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in self.commands or ctx.meta.get("headrace.names"):
            return self.commands.get(cmd_name)
        if cmd_name not in self._loaded:
            self._loaded[cmd_name] = load_command(cmd_name, self.rich_markup_mode)
        if cmd_name in _OWN_SERVER_OPTION and not ctx.resilient_parsing:
            _set_default_server(ctx, self._loaded[cmd_name])
        return self._loaded[cmd_name]


def _set_default_server(ctx: Any, group: Any) -> None:
    """Let a group's own --server default to the option given before it, to HEADRACE_URL or to a context."""
    import logging

    logging.getLogger("nats").addHandler(logging.NullHandler())
    server = targets.resolve_target(get_root_flags(ctx)).server
    if server != targets.DEFAULT_SERVER:
        defaults = {name: {"server": server} for name in group.commands}
        ctx.default_map = {**(ctx.default_map or {}), group.name: defaults}


def load_command(name: str, markup: Any = None) -> Any:
    """Load the command or group of a name."""
    module, attribute = _LOCATIONS[name]
    instance: typer.Typer = getattr(importlib.import_module(f"headrace.cli.{module}"), attribute)
    instance.rich_markup_mode = markup
    use_layout(instance)
    is_single = len(instance.registered_commands) == 1 and not instance.registered_callback
    command = typer.main.get_command(instance) if is_single else typer.main.get_group(instance)
    command.name = name
    return command


def root(**flags: Any) -> None:
    """Durable streams for NATS/JetStream clients and Apache Spark.

    Commands that connect to a server accept --server, credentials and --context, before or after the command name.
    Without --server they use HEADRACE_URL, NATS_URL, or the selected context.
    """


def make_command() -> Any:
    """Make the whole command line; drawn with rich on a terminal."""
    is_interactive = sys.stdout.isatty() and sys.stderr.isatty()
    app = typer.Typer(
        name="headrace",
        cls=LazyGroup,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich" if is_interactive else None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    option_types = targets.OPTIONS
    root.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=kind, default=None)
            for name, kind in option_types.items()
        ]
    )
    root.__annotations__ = dict(option_types)
    app.callback()(root)
    return typer.main.get_command(app)


def run(arguments: Sequence[str]) -> int:
    """Run a command line; return the exit code. User errors are explained, without a traceback."""
    if _COMPLETE_VARIABLE in os.environ:
        # The framework registers the shells only in this call, or with its own install options.
        completion_init()
    elif not arguments or arguments[0] == "help":
        arguments = [*arguments[1:], "--help"]
    elif list(arguments) == ["--version"]:
        arguments = ["version"]
    try:
        make_command()(list(arguments), prog_name="headrace", complete_var=_COMPLETE_VARIABLE)
        sys.stdout.flush()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BrokenPipeError:
        discard_stdout()
        return CLOSED_PIPE
    except Exception as error:
        cli_error = to_cli_error(error)
        print_note(f"headrace: {cli_error}")
        return cli_error.code
    return 0
