"""`headrace trace`: follow one message through servers, subscriptions, mappings and streams."""

from __future__ import annotations

import asyncio
import json
from typing import Annotated, Any

import typer

from headrace.cli import output
from headrace.cli.exit_codes import NO_ANSWER, CliError
from headrace.cli.messages import parse_headers
from headrace.cli.session import CliSession, with_connection
from headrace.cli.shared_options import Headers, Subject

trace_app = typer.Typer(add_completion=False)
_KINDS = {0: "client", 1: "router", 2: "gateway", 3: "system", 4: "leafnode", 5: "jetstream", 6: "account"}
_FIELDS = {"type", "ts"}


@trace_app.command()
@with_connection
async def trace(
    session: CliSession,
    subject: Subject,
    payload: Annotated[str, typer.Argument(help="Payload; default: empty.")] = "",
    deliver: Annotated[
        bool, typer.Option("--deliver", help="Also deliver and store the message; default: only trace it.")
    ] = False,
    header: Headers = None,
) -> None:
    """Show where a message goes: subscriptions, mappings, accounts, leafnodes and streams.

    Without --deliver nothing receives or stores the message. Exits with 6 if the server sends no trace.
    """
    inbox = session.nc.new_inbox()
    traces = await session.nc.subscribe(inbox)
    headers = {**(parse_headers(header) or {}), "Nats-Trace-Dest": inbox}
    headers |= {} if deliver else {"Nats-Trace-Only": "true"}
    await session.nc.publish(subject, payload.encode(), headers=headers)
    await session.nc.flush()
    found = await _collect(session, traces)
    if not found:
        raise CliError(
            f"no trace of {subject} within {session.timeout:g} s: the server does not trace", NO_ANSWER
        )
    if session.json:
        output.print_json(found)
        return
    for event in found:
        _print_trace(event)


async def _collect(session: CliSession, traces: Any) -> list[dict[str, Any]]:
    """Return the traces of all servers on the way, in order of arrival, or those that arrive before the timeout."""
    from nats.errors import TimeoutError as Late

    found: list[dict[str, Any]] = []
    expected = 1
    deadline = asyncio.get_running_loop().time() + session.timeout
    while len(found) < expected:
        remaining = deadline - asyncio.get_running_loop().time()
        try:
            message = await traces.next_msg(timeout=max(remaining, 0.001))
        except Late:
            if found:
                output.print_note(f"{expected - len(found)} more servers did not send a trace in time")
            break
        event: dict[str, Any] = json.loads(message.data)
        expected += event.get("hops", 0)
        found.append(event)
    return found


def _print_trace(trace: dict[str, Any]) -> None:
    hop = (trace.get("request", {}).get("header") or {}).get("Nats-Trace-Hop", [""])[0]
    name = trace.get("server", {}).get("name", "")
    typer.echo(output.bold(output.escape_control(f"Server {name}" + (f", hop {hop}" if hop else ""))))
    events = trace.get("events") or []
    for event in events:
        typer.echo(output.escape_control(f"  {describe(event)}"))
    if not any(event["type"] in ("eg", "js", "si", "se") for event in events):
        typer.echo("  nobody receives it: no subscription or stream has this subject")


def describe(event: dict[str, Any]) -> str:
    """Return one event of a trace as text."""
    kind = event["type"]
    if kind == "in":
        text = f"received {event['subj']} from {_name(event)}, account {event.get('acc', '')}"
    elif kind == "eg":
        queue = f", queue group {event['queue']}" if event.get("queue") else ""
        text = f"delivered to {_name(event)}, subscription {event.get('sub', '')}{queue}"
    elif kind == "js":
        text = f"stored in stream {event['stream']}, subject {event.get('subject', '')}"
        text += "; nobody is interested" if event.get("nointerest") else ""
    elif kind == "sm":
        text = f"mapped to {event['to']}"
    elif kind == "si":
        text = f"service import from account {event.get('acc', '')}: {event.get('from', '')} to {event.get('to', '')}"
    elif kind == "se":
        text = f"stream import of account {event.get('acc', '')}: to {event.get('to', '')}"
    else:
        text = " ".join(f"{name}={value}" for name, value in event.items() if name not in _FIELDS)
    return f"{text}; ERROR: {event['error']}" if event.get("error") else text


def _name(event: dict[str, Any]) -> str:
    kind = _KINDS.get(event.get("kind", 0), "connection")
    name = event.get("name") or (f"cid {event['cid']}" if event.get("cid") else "")
    return f"{kind} {name}".strip()
