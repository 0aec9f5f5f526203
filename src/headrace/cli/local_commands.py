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
    """Run the server. Accepts nats-server's flags; see 'headrace serve --help'."""
    from headrace.cli.serve import serve

    raise typer.Exit(serve(context.args))


@version_app.command()
def version() -> None:
    """Print the version, and the nats-server version it is compatible with."""
    from headrace.cli.serve import format_version

    print(format_version())


@fsck_app.command()
@without_connection
def fsck(
    directory: Annotated[
        Path, typer.Argument(help="A store directory, or the server's --store_dir with all accounts.")
    ],
    accept_loss: Annotated[
        bool, typer.Option("--accept-loss", help="Remove damaged data so that the server can start.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> int:
    """Check the store of a stopped server and report damage; repair it with --accept-loss.

    Exits with 0 if the store is intact, 1 if it is damaged, 2 if there is no store, a server has it open,
    or a newer version wrote it.
    """
    from headrace.net.jetstream_setup import find_stores
    from headrace.storage.fsck.check import main as check

    return max(check(str(store), accept_loss, json) for store in find_stores(directory))


@completion_app.command()
@without_connection
def completion(
    shell: Annotated[Literal["bash", "zsh", "fish"], typer.Argument(metavar="bash|zsh|fish", help="Shell.")],
) -> None:
    """Print a shell completion script for commands, options, streams and buckets.

    bash: headrace completion bash > ~/.local/share/bash-completion/completions/headrace
    """
    from typer._completion_shared import get_completion_script

    typer.echo(get_completion_script(prog_name="headrace", complete_var="_HEADRACE_COMPLETE", shell=shell))
