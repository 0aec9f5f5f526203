"""`headrace consumer dlq ls` and `redrive`: the dead letters of a consumer."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from typing import Annotated, Any, NamedTuple

import typer

from headrace.cli import output
from headrace.cli.exit_codes import NOT_FOUND, USAGE_ERROR, CliError
from headrace.cli.session import CliSession, with_connection
from headrace.cli.shared_options import Consumer, Force, Stream
from headrace.client.errors import NotFound
from headrace.protocol import dead_letter_headers as dead
from headrace.protocol import headers

dead_letter_app = typer.Typer(help="List and redrive the dead letters of a consumer.", no_args_is_help=True)


@dead_letter_app.command("ls")
@with_connection
async def ls(
    session: CliSession,
    stream: Stream,
    consumer: Consumer,
    count: Annotated[int, typer.Option("--count", "-n", metavar="N", min=1, help="Show at most N.")] = 100,
) -> None:
    """List the dead letters of a consumer, the oldest first."""
    rows: list[dict[str, Any]] = []
    async for letter in _iter_dead_letters(session, stream, consumer):
        rows.append(letter)
        if len(rows) == count:
            break
    if session.json:
        output.print_json(rows)
    elif not rows:
        output.print_note(f"{consumer} of {stream} has no dead letters")
    else:
        names = ("dead letter", "stream sequence", "subject", "reason", "deliveries", "stored")
        output.print_table(names, (tuple(row.values())[: len(names)] for row in rows))


@dead_letter_app.command("redrive")
@with_connection
async def redrive(
    session: CliSession,
    stream: Stream,
    consumer: Consumer,
    sequences: Annotated[
        list[int] | None, typer.Argument(metavar="[SEQ]...", help="Sequences of dead letters, as in 'ls'.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Redrive all of them.")] = False,
    force: Force = False,
) -> None:
    """Publish dead letters to their original subjects and delete them, each in one step."""
    if bool(sequences) == everything:
        raise CliError("name the sequences of dead letters, or use --all", USAGE_ERROR)
    letters = await _find_letters(session, stream, consumer)
    wanted = list(dict.fromkeys(sequences or ()))
    for seq in wanted:
        message = await _read(session, letters, {"seq": seq})
        if message is None or _make_row(message, stream, consumer) is None:
            raise CliError(f"{seq} is not a dead letter of {consumer}", NOT_FOUND)
    if everything:
        wanted = [letter["sequence"] async for letter in _iter_dead_letters(session, stream, consumer)]
    output.confirm(f"Publish {len(wanted):,} dead letters of {consumer} to {stream} again?", force)
    values: list[dict[str, Any]] = []
    try:
        for seq in wanted:
            result = await session.api_request(f"STREAM.MSG.REDRIVE.{letters.name}", {"seq": seq})
            values.append({"dead_letter": seq, "stream": result["stream"], "seq": result["seq"]})
    except Exception:
        output.print_note(f"dead letter {wanted[len(values)]} was not redriven, nor were those after it")
        raise
    finally:
        text = f"redrove {len(values):,} of {len(wanted):,} dead letters of {consumer}"
        output.print_result(session.json, {"redriven": values}, text)


class _LetterStream(NamedTuple):
    """The stream that stores the dead letters of a consumer, and a pattern of their subjects there."""

    name: str
    pattern: str


async def _find_letters(session: CliSession, stream: str, consumer: str) -> _LetterStream:
    """Return the stream that stores the dead letters of a consumer, and on which subjects."""
    info = await session.api_request(f"CONSUMER.INFO.{stream}.{consumer}")
    wanted = info["config"].get("dead_letter")
    if not wanted:
        text = (
            f"{consumer} publishes no dead letters; set a subject with 'headrace consumer edit --dead-letter'"
        )
        raise CliError(text, NOT_FOUND)
    names = await session.api_request("STREAM.NAMES", {"subject": wanted["subject"]})
    if not names.get("streams"):
        raise CliError(f"no stream captures the dead letters on {wanted['subject']}", NOT_FOUND)
    target = str(names["streams"][0])
    config = (await session.api_request(f"STREAM.INFO.{target}"))["config"]
    # They may have been stored before and after a change of the transform: on any subject.
    return _LetterStream(target, ">" if config.get("subject_transform") else wanted["subject"])


async def _iter_dead_letters(
    session: CliSession, stream: str, consumer: str
) -> AsyncIterator[dict[str, Any]]:
    """Yield the dead letters of a consumer, the oldest first."""
    letters = await _find_letters(session, stream, consumer)
    seq = 1
    while True:
        body = {"seq": seq, "next_by_subj": letters.pattern}
        message = await _read(session, letters, body)
        if message is None:
            return
        if row := _make_row(message, stream, consumer):
            yield row
        seq = message["seq"] + 1


async def _read(session: CliSession, letters: _LetterStream, body: dict[str, Any]) -> dict[str, Any] | None:
    try:
        response = await session.api_request(f"STREAM.MSG.GET.{letters.name}", body)
    except NotFound:
        return None
    message: dict[str, Any] = response["message"]
    return message


def _make_row(message: dict[str, Any], stream: str, consumer: str) -> dict[str, Any] | None:
    """Return what is shown of a dead letter; None if a message is no dead letter of this consumer."""
    own = dict(headers.parse_pairs(base64.b64decode(message.get("hdrs") or "")))
    if own.get(dead.STREAM) != stream.encode() or own.get(dead.CONSUMER) != consumer.encode():
        return None
    return {
        "sequence": message["seq"],
        "stream_sequence": int(own[dead.SEQ]),
        "subject": own[dead.SUBJECT].decode("utf-8", "replace"),
        "reason": own[dead.REASON].decode("utf-8", "replace"),
        "deliveries": int(own[dead.DELIVERIES]),
        "time": own[dead.TIME].decode("utf-8", "replace"),
        "detail": own.get(dead.DETAIL, b"").decode("utf-8", "replace"),
    }
