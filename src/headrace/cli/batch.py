"""`headrace batch`: many messages stored as one atomic batch, all or none."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli import output
from headrace.cli.exit_codes import USAGE_ERROR, CliError
from headrace.cli.session import CliSession, with_connection

if TYPE_CHECKING:
    from headrace.client import Message

batch_app = typer.Typer(add_completion=False)

_FIELDS = {
    "subject",
    "headers",
    "ttl",
    "msg_id",
    "stream",
    "expect_last_sequence",
    "expect_last_subject_sequence",
    "expect_last_subject",
}
_PAYLOAD_FIELDS = {"payload", "payload_base64", "data"}


class InputFormat(StrEnum):
    """Format of the input."""

    LINES = "lines"
    NDJSON = "ndjson"
    FILES = "files"


@batch_app.command()
@with_connection
async def batch(
    session: CliSession,
    inputs: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[FILE]...", help="Input files; default: standard input."),
    ] = None,
    subject: Annotated[
        str,
        typer.Option(
            "--subject", metavar="SUBJECT", help="Subject; required unless every JSON line has its own."
        ),
    ] = "",
    form: Annotated[
        InputFormat,
        typer.Option(
            "--format",
            metavar="lines|ndjson|files",
            help="One message per line, per JSON line, or per file.",
        ),
    ] = InputFormat.LINES,
    ack_every: Annotated[
        int, typer.Option(metavar="N", min=1, help="Wait for an acknowledgement after this many messages.")
    ] = 100,
) -> None:
    """Store messages as one atomic batch: either all are stored, with consecutive sequences, or none.

    A JSON line has "subject" and "payload" (or "payload_base64"), and optionally "headers", "ttl", "msg_id",
    "expect_last_sequence" and "expect_last_subject_sequence". The stream must allow batches: stream add --allow-atomic.
    """
    messages = list(_READERS[form](inputs or [], subject))
    if not messages:
        raise CliError("the input is empty: nothing to store", USAGE_ERROR)
    ack = await session.js.publish_batch(messages, ack_every=ack_every, timeout=session.timeout)
    values = {"stream": ack.stream, "first_seq": ack.first_seq, "last_seq": ack.seq, "count": len(messages)}
    text = f"stored {len(messages):,} messages in {ack.stream}, sequences {ack.first_seq:,} to {ack.seq:,}"
    output.print_result(session.json, values, text)


def _iter_input_lines(paths: list[Path]) -> Iterator[tuple[str, int, bytes]]:
    """Yield every line with its position."""
    if not paths:
        for number, line in enumerate(sys.stdin.buffer, 1):
            yield "standard input", number, line.rstrip(b"\r\n")
    for path in paths:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                yield str(path), number, line.rstrip(b"\r\n")


def _require_subject(subject: str) -> str:
    if not subject:
        raise CliError("no subject given: add --subject", USAGE_ERROR)
    return subject


def _read_lines(paths: list[Path], subject: str) -> Iterator[Message]:
    from headrace.client import Message

    _require_subject(subject)
    for _, _, line in _iter_input_lines(paths):
        yield Message(subject, line)


def _read_files(paths: list[Path], subject: str) -> Iterator[Message]:
    from headrace.client import Message

    _require_subject(subject)
    if not paths:
        raise CliError("no files given: name them after the options", USAGE_ERROR)
    for path in paths:
        yield Message(subject, path.read_bytes(), {"File-Name": path.name})


def _read_ndjson(paths: list[Path], subject: str) -> Iterator[Message]:
    from headrace.client import Message

    for source, number, line in _iter_input_lines(paths):
        if not line.strip():
            continue
        try:
            values = _check_fields(json.loads(line))
            values.setdefault("subject", subject)
            yield Message(
                payload=_pop_payload(values), **{"subject": _require_subject(values.pop("subject")), **values}
            )
        except (ValueError, CliError) as error:
            raise CliError(f"{source}, line {number}: {error}", USAGE_ERROR) from None


def _check_fields(values: Any) -> dict[str, Any]:
    if not isinstance(values, dict):
        raise ValueError("expected a JSON object")
    if unknown := values.keys() - _FIELDS - _PAYLOAD_FIELDS:
        raise ValueError(
            f"unknown field {', '.join(sorted(unknown))}; known fields: {', '.join(sorted(_FIELDS | _PAYLOAD_FIELDS))}"
        )
    return values


def _pop_payload(values: dict[str, Any]) -> bytes:
    """Remove the payload from the values: text as it is, anything else as JSON."""
    encoded = values.pop("payload_base64", None)
    payload = values.pop("payload", None)
    data = values.pop("data", None)
    if encoded is not None:
        return base64.b64decode(encoded, validate=True)
    chosen = data if payload is None else payload
    if chosen is None:
        return b""
    return chosen.encode() if isinstance(chosen, str) else json.dumps(chosen).encode()


_READERS = {InputFormat.LINES: _read_lines, InputFormat.NDJSON: _read_ndjson, InputFormat.FILES: _read_files}
