"""`headrace context ...`: saved connections, in the files of the `nats` tool."""

from __future__ import annotations

import inspect
from typing import Annotated, Any

import typer

from headrace.cli import contexts, show, target
from headrace.cli.arguments import Force
from headrace.cli.failures import CONFLICT, Failure
from headrace.cli.link import given, plain

context_app = typer.Typer(help="Saved connections; shared with the nats tool.", no_args_is_help=True)

_SECRETS = {"password", "token", "user_jwt", "user_seed"}
Json = Annotated[bool, typer.Option("--json", help="JSON for programs.")]


def _complete(incomplete: str) -> list[str]:
    return [name for name in contexts.names() if name.startswith(incomplete)]


Name = Annotated[str, typer.Argument(help="The context.", autocompletion=_complete)]


@context_app.command("ls")
@plain
def ls(json: Json = False) -> None:
    """List the saved connections; * is the selected one."""
    chosen = contexts.selected()
    found = {name: contexts.load(name) for name in contexts.names()}
    if json:
        listed = [
            {"name": name, "selected": name == chosen, **_hidden(values)} for name, values in found.items()
        ]
        show.document(listed)
    elif not found:
        show.note("there are no contexts; 'headrace context add' makes one")
    else:
        rows = [
            ("*" if name == chosen else "", name, values.get("url", ""), values.get("description", ""))
            for name, values in found.items()
        ]
        show.table(("", "name", "url", "description"), rows)


@context_app.command("show")
@plain
def show_one(name: Name, json: Json = False) -> None:
    """Show a saved connection; its secrets stay hidden."""
    values = _hidden(contexts.load(name))
    if json:
        show.document(values)
    else:
        show.facts(f"Context {name}", values)


def _hidden(values: dict[str, Any]) -> dict[str, Any]:
    return {key: "(hidden)" if key in _SECRETS and value else value for key, value in values.items()}


def add(name: str, description: str | None, select: bool, force: bool, json: bool, **flags: Any) -> None:
    """Save a connection under a name."""
    if name in contexts.names() and not force:
        raise Failure(f"context {name!r} exists; --force replaces it", CONFLICT)
    values = {target.CONTEXT_FIELDS[option]: value for option, value in given(flags).items()}
    values.setdefault("url", target.LOCAL)
    if description:
        values["description"] = description
    contexts.save(name, values)
    if select:
        contexts.select(name)
    show.done(
        json, {"name": name, **_hidden(values)}, f"saved {name}" + (" and selected it" if select else "")
    )


def _add_signature() -> inspect.Signature:
    """Its own options, and those of the connection that it saves."""
    own: dict[str, tuple[Any, Any]] = {
        "name": (Annotated[str, typer.Argument(help="Its name.")], inspect.Parameter.empty),
        "description": (Annotated[str | None, typer.Option(help="What it is for.")], None),
        "select": (Annotated[bool, typer.Option("--select", help="Use it from now on.")], False),
        "force": (Annotated[bool, typer.Option("--force", "-f", help="Replace one that exists.")], False),
        "json": (Json, False),
    }
    saved = {name: (kind, None) for name, kind in target.OPTIONS.items() if name in target.CONTEXT_FIELDS}
    return inspect.Signature(
        [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=kind, default=default)
            for name, (kind, default) in {**own, **saved}.items()
        ]
    )


_add = plain(add)
_add.__signature__ = _add_signature()  # type: ignore[attr-defined]
_add.__annotations__ = {name: each.annotation for name, each in _add_signature().parameters.items()}
context_app.command("add")(_add)


@context_app.command("select")
@plain
def select(
    name: Annotated[
        str, typer.Argument(help="The context; none says which it is.", autocompletion=_complete)
    ] = "",
) -> None:
    """Use a saved connection from now on, here and in the nats tool."""
    if name:
        contexts.select(name)
    print(contexts.selected() or "none is selected")


@context_app.command("rm")
@plain
def rm(name: Name, force: Force = False) -> None:
    """Remove a saved connection."""
    contexts.load(name)
    show.confirm(f"Remove context {name}?", force)
    contexts.remove(name)
    print(f"removed {name}")
