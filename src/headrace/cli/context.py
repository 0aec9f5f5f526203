"""`headrace context ...`: saved connections, in the `nats` tool's files."""

from __future__ import annotations

import inspect
from typing import Annotated, Any

import typer

from headrace.cli import connection_target, contexts, output
from headrace.cli.exit_codes import CONFLICT, CliError
from headrace.cli.session import passed_options, without_connection
from headrace.cli.shared_options import Force

context_app = typer.Typer(help="Manage saved connections, shared with the nats tool.", no_args_is_help=True)

_SECRETS = {"password", "token", "user_jwt", "user_seed"}
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def _complete_context(incomplete: str) -> list[str]:
    return [name for name in contexts.list_names() if name.startswith(incomplete)]


Name = Annotated[str, typer.Argument(help="Context name.", autocompletion=_complete_context)]


@context_app.command("ls")
@without_connection
def ls(json: Json = False) -> None:
    """List the saved connections; * marks the selected one."""
    selected_name = contexts.get_selected()
    found = {name: contexts.load(name) for name in contexts.list_names()}
    if json:
        documents = [
            {"name": name, "selected": name == selected_name, **_hide_secrets(values)}
            for name, values in found.items()
        ]
        output.print_json(documents)
    elif not found:
        output.print_note("no contexts; create one with 'headrace context add'")
    else:
        rows = [
            ("*" if name == selected_name else "", name, values.get("url", ""), values.get("description", ""))
            for name, values in found.items()
        ]
        output.print_table(("", "name", "url", "description"), rows)


@context_app.command("show")
@without_connection
def show_one(name: Name, json: Json = False) -> None:
    """Show a saved connection, without its secrets."""
    values = _hide_secrets(contexts.load(name))
    if json:
        output.print_json(values)
    else:
        output.print_fields(f"Context {name}", values)


def _hide_secrets(values: dict[str, Any]) -> dict[str, Any]:
    return {key: "(hidden)" if key in _SECRETS and value else value for key, value in values.items()}


def add(name: str, description: str | None, select: bool, force: bool, json: bool, **flags: Any) -> None:
    """Save a connection under a name."""
    if name in contexts.list_names() and not force:
        raise CliError(f"context {name!r} already exists; use --force to replace it", CONFLICT)
    values = {
        connection_target.CONTEXT_FIELDS[option]: value for option, value in passed_options(flags).items()
    }
    values.setdefault("url", connection_target.DEFAULT_SERVER)
    if description:
        values["description"] = description
    contexts.save(name, values)
    if select:
        contexts.select(name)
    output.print_result(
        json,
        {"name": name, **_hide_secrets(values)},
        f"saved {name}" + (" and selected it" if select else ""),
    )


def _make_add_signature() -> inspect.Signature:
    """Return the signature of `add`: its own options and the connection options."""
    own: dict[str, tuple[Any, Any]] = {
        "name": (Annotated[str, typer.Argument(help="Context name.")], inspect.Parameter.empty),
        "description": (Annotated[str | None, typer.Option(metavar="TEXT", help="Description.")], None),
        "select": (Annotated[bool, typer.Option("--select", help="Select it.")], False),
        "force": (Annotated[bool, typer.Option("--force", "-f", help="Replace an existing context.")], False),
        "json": (Json, False),
    }
    saved = {
        name: (kind, None)
        for name, kind in connection_target.OPTIONS.items()
        if name in connection_target.CONTEXT_FIELDS
    }
    return inspect.Signature(
        [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=kind, default=default)
            for name, (kind, default) in {**own, **saved}.items()
        ]
    )


_add = without_connection(add)
_add.__signature__ = _make_add_signature()  # type: ignore[attr-defined]
_add.__annotations__ = {name: each.annotation for name, each in _make_add_signature().parameters.items()}
context_app.command("add")(_add)


@context_app.command("select")
@without_connection
def select(
    name: Annotated[
        str,
        typer.Argument(
            help="Context name; without it, print the selected one.", autocompletion=_complete_context
        ),
    ] = "",
) -> None:
    """Select the default connection of headrace and the nats tool."""
    if name:
        contexts.select(name)
    print(contexts.get_selected() or "no context is selected")


@context_app.command("rm")
@without_connection
def rm(name: Name, force: Force = False) -> None:
    """Remove a saved connection."""
    contexts.load(name)
    output.confirm(f"Remove context {name}?", force)
    contexts.remove(name)
    print(f"removed {name}")
