"""Every command but `serve`, on typer. Each imports what it needs when it runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    name="headrace",
    help="Durable streams that speak NATS/JetStream and feed Apache Spark.",
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def run(arguments: Sequence[str]) -> int:
    """Run a command line; the exit code. What the user got wrong is explained, never a traceback."""
    if not arguments:
        arguments = ["--help"]
    try:
        app(list(arguments), prog_name="headrace")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    return 0


@app.command(
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []},
    add_help_option=False,
)
def serve(context: typer.Context) -> None:
    """Run a broker; takes nats-server's flags (headrace serve --help)."""
    from headrace.cli.serve import serve

    raise typer.Exit(serve(context.args))


@app.command()
def version() -> None:
    """Say which version this is, and which nats-server it is compatible with."""
    from headrace.cli.serve import version_text

    print(version_text())


@app.command()
def fsck(
    directory: Annotated[Path, typer.Argument(help="The store's folder (-sd of serve).")],
    accept_loss: Annotated[
        bool, typer.Option(help="Let go of what is damaged, so that the rest can start.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="The report as JSON.")] = False,
) -> None:
    """Check a store that no broker has open; report damage, and repair only when told to accept the loss."""
    try:
        from headrace.store.fsck import main as check
    except ModuleNotFoundError:
        typer.echo("headrace fsck: this build has no store to check", err=True)
        raise typer.Exit(1) from None
    raise typer.Exit(check(str(directory), accept_loss, json))
