"""`headrace events`: JetStream's advisories and metrics as they happen."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Annotated, Any

import typer

from headrace.cli import output
from headrace.cli.session import CliSession, with_connection
from headrace.cli.shared_options import Count

events_app = typer.Typer(add_completion=False)
_API_AUDIT = "$JS.EVENT.ADVISORY.API"
_KNOWN = {"type", "id", "timestamp", "client", "domain"}


@events_app.command()
@with_connection
async def events(
    session: CliSession,
    kind: Annotated[str, typer.Argument(help="Only kinds with this text, such as max_deliver.")] = "",
    api: Annotated[bool, typer.Option("--api", help="Also show every JetStream API request.")] = False,
    count: Count = 0,
) -> None:
    """Show JetStream advisories and metrics live: created streams, failed deliveries, API requests."""
    session.enable_reconnect()
    subscription = await session.nc.subscribe("$JS.EVENT.>")
    await session.nc.flush()
    output.print_note("waiting for events; Ctrl-C ends")
    shown = 0
    async for message in subscription.messages:
        if message.subject.startswith(_API_AUDIT) and not api:
            continue
        event = _parse(message.data)
        if kind not in get_kind(event):
            continue
        if session.json:
            output.print_json_line({"subject": message.subject, **event})
        else:
            typer.echo(output.escape_control(format_event(event)))
        shown += 1
        if shown == count:
            return


def _parse(data: bytes) -> dict[str, Any]:
    """Parse an event; return anything else that is published there as it is."""
    try:
        event = json.loads(data)
    except ValueError:
        event = None
    return event if isinstance(event, dict) else {"data": data.decode(errors="backslashreplace")}


def get_kind(event: dict[str, Any]) -> str:
    """Return the last part of an event's type: `io.nats.jetstream.advisory.v1.max_deliver` is `max_deliver`."""
    return str(event.get("type", "unknown")).rpartition(".")[2]


def format_event(event: dict[str, Any]) -> str:
    """Return an event as one line."""
    kind = get_kind(event)
    describe = _TEXTS.get(kind, _list_fields)
    try:
        text = describe(event)
    except (KeyError, TypeError):
        text = _list_fields(event)
    who = _format_client(event.get("client"))
    return " ".join(filter(None, (output.format_time(event.get("timestamp")), f"[{kind}]", text, who)))


def _format_client(client: Any) -> str:
    if not isinstance(client, dict):
        return ""
    name = client.get("user") or client.get("name") or client.get("host")
    return f"(by {name})" if name else ""


def _list_fields(event: dict[str, Any]) -> str:
    return " ".join(
        f"{name}={value if isinstance(value, str) else json.dumps(value)}"
        for name, value in event.items()
        if name not in _KNOWN
    )


def _format_action(event: dict[str, Any]) -> str:
    past = {"create": "created", "modify": "changed", "delete": "removed", "pause": "paused"}
    action = past.get(event["action"], event["action"])
    owner = (
        f"consumer {event['consumer']} of {event['stream']}"
        if "consumer" in event
        else f"stream {event['stream']}"
    )
    return f"{owner} {action}"


def _format_delivery(event: dict[str, Any], text: str) -> str:
    place = f"message {event['stream_seq']} of {event['stream']}, consumer {event['consumer']}"
    reason = f": {event['reason']}" if event.get("reason") else ""
    return f"{place}, {text} {event.get('deliveries', 0)} deliveries{reason}"


_TEXTS: dict[str, Callable[[dict[str, Any]], str]] = {
    "stream_action": _format_action,
    "consumer_action": _format_action,
    "max_deliver": lambda event: _format_delivery(event, "not delivered again after"),
    "terminated": lambda event: _format_delivery(event, "terminated after"),
    "nak": lambda event: _format_delivery(event, "rejected (nak) after"),
    "api_audit": lambda event: str(event["subject"]),
}
