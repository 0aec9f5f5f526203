"""`headrace stream backup` and `restore`: a stream as a directory, in the layout of the `nats` tool.

It has `backup.json` (configuration and state) and `stream.tar.s2` (the server's own bytes, opaque here). The
backup is complete once `backup.json` exists, because that is written last.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

import typer

from headrace.cli import output
from headrace.cli.exit_codes import CONFLICT, NO_ANSWER, NOT_FOUND, CliError, is_jetstream_missing
from headrace.cli.session import CliSession, with_connection
from headrace.cli.shared_options import Stream

if TYPE_CHECKING:
    from nats.aio.msg import Msg

backup_commands = typer.Typer()

METADATA_FILE, CONTENT_FILE = "backup.json", "stream.tar.s2"
_CHUNK_BYTES = 128 * 1024


@backup_commands.command(rich_help_panel="Backups")
@with_connection
async def backup(
    session: CliSession,
    stream: Stream,
    folder: Annotated[Path, typer.Argument(help="Directory to write to; must not contain a backup.")],
    consumers: Annotated[bool, typer.Option("--consumers/--no-consumers", help="Include consumers.")] = True,
    check: Annotated[bool, typer.Option("--check", help="Verify all messages first.")] = False,
) -> None:
    """Back up a stream and its consumers to a directory. The stream stays available meanwhile."""
    if (folder / METADATA_FILE).exists():
        raise CliError(f"{folder} already contains a backup; choose another directory", CONFLICT)
    folder.mkdir(parents=True, exist_ok=True)
    inbox = session.nc.new_inbox()
    chunks = await session.nc.subscribe(inbox, pending_bytes_limit=-1)
    request = {
        "deliver_subject": inbox,
        "no_consumers": not consumers,
        "jsck": check,
        "chunk_size": _CHUNK_BYTES,
    }
    backup_metadata = await _request_backup(session, f"STREAM.SNAPSHOT.{stream}", request)
    partial_file = folder / f"{CONTENT_FILE}.part"
    with (
        partial_file.open("wb") as file,
        output.progress_bar(f"backing up {stream}", backup_metadata["state"]["bytes"]) as step,
    ):
        size = await _receive(session, chunks, file, step)
        file.flush()
        os.fsync(file.fileno())
    partial_file.rename(folder / CONTENT_FILE)
    (folder / METADATA_FILE).write_text(json.dumps(backup_metadata, indent=2) + "\n")
    messages = backup_metadata["state"]["messages"]
    values = {"stream": stream, "folder": str(folder), "messages": messages, "bytes": size}
    output.print_result(
        session.json,
        values,
        f"backed up {messages:,} messages of {stream} to {folder}, {output.format_size(size)}",
    )


async def _request_backup(session: CliSession, call: str, request: dict[str, Any]) -> dict[str, Any]:
    from headrace.client.errors import JetStreamError

    try:
        return await session.api_request(call, request)
    except JetStreamError as error:
        if is_jetstream_missing(error):
            raise CliError(
                "the server does not support backups: the API does not respond", NO_ANSWER
            ) from None
        raise


async def _receive(session: CliSession, chunks: Any, file: BinaryIO, step: output.ProgressCallback) -> int:
    """Receive every chunk and acknowledge it; an empty one is the last."""
    from nats.errors import TimeoutError as Late

    size = 0
    while True:
        try:
            chunk_msg: Msg = await chunks.next_msg(timeout=max(session.timeout, 10))
        except Late:
            raise CliError(
                "timeout: the server stopped sending; the backup is incomplete", NO_ANSWER
            ) from None
        status = (chunk_msg.headers or {}).get("Status", "204")
        if status != "204":
            description = (chunk_msg.headers or {}).get("Description", "")
            raise CliError(f"the server aborted the backup: {status} {description}".strip())
        if not chunk_msg.data:
            return size
        file.write(chunk_msg.data)
        size += len(chunk_msg.data)
        step(len(chunk_msg.data))
        if chunk_msg.reply:
            await session.nc.publish(chunk_msg.reply)


@backup_commands.command(rich_help_panel="Backups")
@with_connection
async def restore(
    session: CliSession,
    folder: Annotated[Path, typer.Argument(help="Directory with a backup.")],
    replicas: Annotated[
        int | None, typer.Option(metavar="N", help="Replicas in a cluster; default: as in the backup.")
    ] = None,
) -> None:
    """Restore a stream from a backup; the stream must not exist."""
    try:
        backup_metadata = json.loads((folder / METADATA_FILE).read_text())
        size = (folder / CONTENT_FILE).stat().st_size
    except FileNotFoundError as error:
        raise CliError(
            f"{folder} does not contain a backup: {error.filename} is missing", NOT_FOUND
        ) from None
    config, state = backup_metadata["config"], backup_metadata["state"]
    if replicas is not None:
        config["num_replicas"] = replicas
    name = config["name"]
    request = {"config": config, "state": state}
    subject = (await _request_backup(session, f"STREAM.RESTORE.{name}", request))["deliver_subject"]
    with (folder / CONTENT_FILE).open("rb") as file, output.progress_bar(f"restoring {name}", size) as step:
        while chunk := file.read(_CHUNK_BYTES):
            response = await session.nc.request(subject, chunk, timeout=max(session.timeout, 10))
            if response.data:
                _raise_on_error(json.loads(response.data))
            step(len(chunk))
    found = json.loads((await session.nc.request(subject, b"", timeout=max(session.timeout, 60))).data)
    _raise_on_error(found)
    messages = found["state"]["messages"]
    output.print_result(
        session.json, {"stream": name, "messages": messages}, f"restored {name} with {messages:,} messages"
    )


def _raise_on_error(response: dict[str, Any]) -> None:
    from headrace.client.errors import make_error

    if "error" in response:
        raise make_error(response["error"])
