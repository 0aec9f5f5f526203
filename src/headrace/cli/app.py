"""Every command but `serve`, on typer. Each imports what it needs when it runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from headrace.cli.claims import claims_app
from headrace.cli.pipeline import pipeline

app = typer.Typer(
    name="headrace",
    help="Durable streams that speak NATS/JetStream and feed Apache Spark.",
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(claims_app)
app.add_typer(pipeline, name="pipeline")


ServerUrl = Annotated[
    str,
    typer.Option(
        "--server", "-s", envvar="NATS_URL", help="Where the server is; nats://user:pass@host:port."
    ),
]
Subject = Annotated[str, typer.Argument(help="The subject; * stands for a token, > for the rest.")]
Payload = Annotated[str | None, typer.Argument(help="The payload; standard input when left out.")]
Headers = Annotated[list[str] | None, typer.Option("--header", "-H", help="Name:value, as often as needed.")]
LOCAL = "nats://127.0.0.1:4222"


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


@app.command()
def pub(
    subject: Subject,
    payload: Payload = None,
    header: Headers = None,
    count: Annotated[int, typer.Option(min=1, help="How often.")] = 1,
    server: ServerUrl = LOCAL,
) -> None:
    """Publish a message."""
    from headrace.cli import talk

    headers = talk.headers_of(header or ())
    talk.converse(talk.publish(server, subject, talk.payload_of(payload), headers, count))


@app.command()
def sub(
    subject: Subject,
    queue: Annotated[str, typer.Option(help="Share the messages with others of this queue group.")] = "",
    count: Annotated[int, typer.Option(min=0, help="End after so many; 0 goes on until Ctrl-C.")] = 0,
    server: ServerUrl = LOCAL,
) -> None:
    """Show the messages of a subject as they come."""
    from headrace.cli import talk

    talk.converse(talk.subscribe(server, subject, queue, count))


@app.command()
def req(
    subject: Subject,
    payload: Payload = None,
    header: Headers = None,
    timeout: Annotated[float, typer.Option(help="Seconds to wait for the answer.")] = 2.0,
    server: ServerUrl = LOCAL,
) -> None:
    """Ask, and show the answer."""
    from headrace.cli import talk

    headers = talk.headers_of(header or ())
    talk.converse(talk.request(server, subject, talk.payload_of(payload), headers, timeout))
