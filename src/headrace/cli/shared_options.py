"""Arguments and options that several command groups share."""

from __future__ import annotations

from typing import Annotated

import typer

from headrace.cli import completion_names


def check_name(name: str) -> str:
    """Return a valid name; an invalid one would change the subject of a request."""
    if not name or not name.isprintable() or set(name) & set(" .*>/\\"):
        raise typer.BadParameter(f"{name!r} cannot be a name: no spaces, dots, slashes, * or >")
    return name


Stream = Annotated[
    str,
    typer.Argument(help="The stream.", autocompletion=completion_names.complete_streams, callback=check_name),
]
Consumer = Annotated[
    str,
    typer.Argument(
        help="The consumer.", autocompletion=completion_names.complete_consumers, callback=check_name
    ),
]
NewName = Annotated[str, typer.Argument(help="Its name.", callback=check_name)]
Bucket = Annotated[str, typer.Argument(help="The bucket.", autocompletion=completion_names.complete_buckets)]
Key = Annotated[str, typer.Argument(help="The key.")]
Value = Annotated[str | None, typer.Argument(help="The value; standard input when left out.")]
Subject = Annotated[str, typer.Argument(help="The subject; * stands for a token, > for the rest.")]
Payload = Annotated[str | None, typer.Argument(help="The payload; standard input when left out.")]
Headers = Annotated[
    list[str] | None, typer.Option("--header", "-H", metavar="NAME:VALUE", help="A header; repeatable.")
]
Force = Annotated[bool, typer.Option("--force", "-f", help="Do not ask.")]
Raw = Annotated[bool, typer.Option("--raw", "-r", help="Only the payload, as it is.")]
Count = Annotated[
    int, typer.Option("--count", "-n", min=0, help="End after so many; 0 goes on until Ctrl-C.")
]
