"""Arguments and options that several command groups share."""

from __future__ import annotations

from typing import Annotated

import typer

from headrace.cli import completion_names


def check_name(name: str) -> str:
    """Return a valid name. A name with dots or wildcards would change the subject of the API request."""
    if not name or not name.isprintable() or set(name) & set(" .*>/\\"):
        raise typer.BadParameter(f"invalid name {name!r}: spaces, dots, slashes, * and > are not allowed")
    return name


Stream = Annotated[
    str,
    typer.Argument(
        help="Stream name.", autocompletion=completion_names.complete_streams, callback=check_name
    ),
]
Consumer = Annotated[
    str,
    typer.Argument(
        help="Consumer name.", autocompletion=completion_names.complete_consumers, callback=check_name
    ),
]
NewName = Annotated[
    str, typer.Argument(help="Name, without spaces, dots, slashes, * and >.", callback=check_name)
]
Bucket = Annotated[str, typer.Argument(help="Bucket name.", autocompletion=completion_names.complete_buckets)]
Key = Annotated[str, typer.Argument(help="Key.")]
Value = Annotated[str | None, typer.Argument(help="Value; default: standard input.")]
Subject = Annotated[str, typer.Argument(help="Subject.")]
SubjectPattern = Annotated[
    str, typer.Argument(metavar="SUBJECT", help="Subject; * matches one token, > all remaining tokens.")
]
Payload = Annotated[str | None, typer.Argument(help="Payload; default: standard input.")]
Headers = Annotated[
    list[str] | None, typer.Option("--header", "-H", metavar="NAME:VALUE", help="Header; repeatable.")
]
Force = Annotated[bool, typer.Option("--force", "-f", help="Do not ask for confirmation.")]
Raw = Annotated[bool, typer.Option("--raw", "-r", help="Print only the payload, unchanged.")]
Count = Annotated[
    int,
    typer.Option(
        "--count", "-n", metavar="N", min=0, help="Stop after this many messages; 0: run until Ctrl-C."
    ),
]
