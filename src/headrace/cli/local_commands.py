"""Commands that need no server: `serve`, `fsck`, `completion`, `version`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from headrace.cli.session import without_connection

serve_app, fsck_app, completion_app, version_app = (typer.Typer(add_completion=False) for _ in range(4))


@serve_app.command(
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []},
    add_help_option=False,
)
def serve(context: typer.Context) -> None:
    """Run a broker; takes nats-server's flags (headrace serve --help)."""
    from headrace.cli.serve import serve

    raise typer.Exit(serve(context.args))


@version_app.command()
def version() -> None:
    """Say which version this is, and which nats-server it is compatible with."""
    from headrace.cli.serve import format_version

    print(format_version())


@fsck_app.command()
@without_connection
def fsck(
    directory: Annotated[
        Path, typer.Argument(help="The store's folder, or that of -sd with all its accounts.")
    ],
    accept_loss: Annotated[
        bool, typer.Option("--accept-loss", help="Let go of what is damaged, so that the rest can start.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="The report as JSON.")] = False,
) -> int:
    """Check a store that no broker has open; report damage, and repair only when told to accept the loss.

    Ends with 0 if all is well, 1 if something is damaged, 2 if there is no store, a broker has it open,
    or a newer version wrote it.
    """
    from headrace.net.jetstream_setup import find_stores
    from headrace.storage.fsck.check import main as check

    return max(check(str(store), accept_loss, json) for store in find_stores(directory))


@completion_app.command()
@without_connection
def completion(
    shell: Annotated[
        Literal["bash", "zsh", "fish"], typer.Argument(metavar="bash|zsh|fish", help="The shell.")
    ],
) -> None:
    """Print the script that completes commands, options, streams and buckets in a shell.

    bash: headrace completion bash > ~/.local/share/bash-completion/completions/headrace
    """
    from typer._completion_shared import get_completion_script

    typer.echo(get_completion_script(prog_name="headrace", complete_var="_HEADRACE_COMPLETE", shell=shell))
