"""Order per key and dead letters exist in Headrace only: elsewhere a request for them must fail, and say why."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Protocol

from nats.js import api

from headrace.client.errors import BadRequest, KeyedUnsupported

_FIELDS = ("max_ack_pending_per_subject", "key_tokens", "dead_letter")

Response = dict[str, Any]


class KeyedConsumerApi(Protocol):
    """What it uses of a JetStream context."""

    async def api_request(
        self, call: str, body: Mapping[str, Any] | None = None, *, timeout: float | None = None
    ) -> Response:
        """Call the JetStream API."""

    async def delete_consumer(self, stream: str, consumer: str) -> bool:
        """Delete a consumer."""


async def request_consumer(
    js: KeyedConsumerApi, call: str, config: api.ConsumerConfig, body: dict[str, Any], timeout: float | None
) -> Response:
    """Create or update a consumer.

    Raise `KeyedUnsupported` if the server refuses these fields, or ignores them; a consumer that was created without
    them is deleted again.
    """
    wanted = [field for field in _FIELDS if getattr(config, field, None)]
    start_s = time.monotonic()
    try:
        response = await js.api_request(call, body, timeout=timeout)
    except BadRequest as error:
        if wanted and "unknown field" in str(error.description):
            text = f"the server does not know {wanted[0]}: it is not Headrace, or too old"
            raise KeyedUnsupported.refuse(text) from error
        raise
    if ignored := [field for field in wanted if field not in response["config"]]:
        if _is_new(response, time.monotonic() - start_s):
            await js.delete_consumer(body["stream_name"], response["name"])
        raise KeyedUnsupported.refuse(f"the server ignores {ignored[0]}: it is not Headrace, or too old")
    return response


def _is_new(response: Response, elapsed_s: float) -> bool:
    """Return whether the consumer was created in this time, by the server's clock; False if that is not certain."""
    if "ts" not in response:  # nats-server before 2.10
        return False
    age = datetime.fromisoformat(response["ts"]) - datetime.fromisoformat(response["created"])
    return age <= timedelta(seconds=elapsed_s)
