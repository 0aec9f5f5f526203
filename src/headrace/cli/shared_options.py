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


def check_subjects(subjects: list[str] | None) -> list[str] | None:
    """Return valid subject filters. A server would close the connection of a request with an invalid one."""
    from headrace.protocol.subjects import is_valid

    for subject in subjects or ():
        if not is_valid(subject.encode()):
            raise typer.BadParameter(
                f"invalid subject {subject!r}: use tokens without spaces, separated by dots"
            )
    return subjects


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
Since = Annotated[str, typer.Option(metavar="WHEN", help="From a time, a duration ago (1h) or a sequence.")]
Until = Annotated[str, typer.Option(metavar="WHEN", help="Before a time, a duration ago or a sequence.")]
Subjects = Annotated[
    list[str] | None,
    typer.Option(
        "--subject",
        metavar="SUBJECT",
        help="Only this subject; wildcards allowed; repeatable.",
        callback=check_subjects,
    ),
]
Limit = Annotated[int, typer.Option(metavar="N", min=0, help="At most this many messages; 0: all.")]
