"""`headrace stream backup` and `restore`: a stream as a folder, in the layout of the `nats` tool.

The folder has `backup.json` (configuration and state) and `stream.tar.s2` (the server's own bytes, opaque here). It is
complete as soon as `backup.json` is there, because that is written last.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

import typer

from headrace.cli import show
from headrace.cli.arguments import Stream
from headrace.cli.failures import CONFLICT, NO_ANSWER, NOT_FOUND, Failure, no_jetstream
from headrace.cli.link import Link, connected

if TYPE_CHECKING:
    from nats.aio.msg import Msg

backup_commands = typer.Typer()

ABOUT, CONTENT = "backup.json", "stream.tar.s2"
_CHUNK_BYTES = 128 * 1024


@backup_commands.command()
@connected
async def backup(
    link: Link,
    stream: Stream,
    folder: Annotated[Path, typer.Argument(help="Where to put it; must not hold a backup yet.")],
    consumers: Annotated[bool, typer.Option("--consumers/--no-consumers", help="With its consumers.")] = True,
    check: Annotated[bool, typer.Option("--check", help="Let the server check all messages first.")] = False,
) -> None:
    """Copy a stream into a folder, with its consumers; it goes on meanwhile."""
    if (folder / ABOUT).exists():
        raise Failure(f"{folder} holds a backup already; choose another folder", CONFLICT)
    folder.mkdir(parents=True, exist_ok=True)
    inbox = link.nc.new_inbox()
    pieces = await link.nc.subscribe(inbox, pending_bytes_limit=-1)
    wanted = {
        "deliver_subject": inbox,
        "no_consumers": not consumers,
        "jsck": check,
        "chunk_size": _CHUNK_BYTES,
    }
    about = await _asked(link, f"STREAM.SNAPSHOT.{stream}", wanted)
    part = folder / f"{CONTENT}.part"
    with part.open("wb") as file, show.progress(f"backing up {stream}", about["state"]["bytes"]) as step:
        size = await _receive(link, pieces, file, step)
        file.flush()
        os.fsync(file.fileno())
    part.rename(folder / CONTENT)
    (folder / ABOUT).write_text(json.dumps(about, indent=2) + "\n")
    messages = about["state"]["messages"]
    facts = {"stream": stream, "folder": str(folder), "messages": messages, "bytes": size}
    show.done(link.json, facts, f"{messages:,} messages of {stream} are in {folder}, {show.size(size)}")


async def _asked(link: Link, call: str, wanted: dict[str, Any]) -> dict[str, Any]:
    from headrace.client.errors import JetStreamError

    try:
        return await link.api(call, wanted)
    except JetStreamError as error:
        if no_jetstream(error):
            raise Failure("this server keeps no backups: nobody answers there", NO_ANSWER) from None
        raise


async def _receive(link: Link, pieces: Any, file: BinaryIO, step: show.Progress) -> int:
    """Every piece, each acknowledged; an empty one is the last."""
    from nats.errors import TimeoutError as Late

    size = 0
    while True:
        try:
            piece: Msg = await pieces.next_msg(timeout=max(link.timeout, 10))
        except Late:
            raise Failure("the server stopped sending; the backup is incomplete", NO_ANSWER) from None
        status = (piece.headers or {}).get("Status", "204")
        if status != "204":
            said = (piece.headers or {}).get("Description", "")
            raise Failure(f"the server gave up: {status} {said}".strip())
        if not piece.data:
            return size
        file.write(piece.data)
        size += len(piece.data)
        step(len(piece.data))
        if piece.reply:
            await link.nc.publish(piece.reply)


@backup_commands.command()
@connected
async def restore(
    link: Link,
    folder: Annotated[Path, typer.Argument(help="The folder of a backup.")],
    replicas: Annotated[int | None, typer.Option(help="Copies in a cluster, if not as before.")] = None,
) -> None:
    """Make a stream again from a backup; it must not exist."""
    try:
        about = json.loads((folder / ABOUT).read_text())
        size = (folder / CONTENT).stat().st_size
    except FileNotFoundError as error:
        raise Failure(f"{folder} holds no backup: {error.filename} is missing", NOT_FOUND) from None
    config, state = about["config"], about["state"]
    if replicas is not None:
        config["num_replicas"] = replicas
    name = config["name"]
    wanted = {"config": config, "state": state}
    subject = (await _asked(link, f"STREAM.RESTORE.{name}", wanted))["deliver_subject"]
    with (folder / CONTENT).open("rb") as file, show.progress(f"restoring {name}", size) as step:
        while chunk := file.read(_CHUNK_BYTES):
            answer = await link.nc.request(subject, chunk, timeout=max(link.timeout, 10))
            if answer.data:
                _refused(json.loads(answer.data))
            step(len(chunk))
    found = json.loads((await link.nc.request(subject, b"", timeout=max(link.timeout, 60))).data)
    _refused(found)
    messages = found["state"]["messages"]
    show.done(link.json, {"stream": name, "messages": messages}, f"{name} is back with {messages:,} messages")


def _refused(answer: dict[str, Any]) -> None:
    from headrace.client.errors import error_of

    if "error" in answer:
        raise error_of(answer["error"])
