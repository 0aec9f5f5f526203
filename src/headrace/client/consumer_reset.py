"""Resets a consumer's delivery to its ack floor, or to a sequence of the stream."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from nats.js import api

from headrace.client.configs import ConsumerInfo
from headrace.client.errors import NoAnswer

if TYPE_CHECKING:
    from headrace.client.context import JetStream


@dataclass
class ConsumerReset(api.ConsumerReset):
    """The consumer after the reset; `reset_seq` is the sequence from which it delivers."""

    info: ConsumerInfo


async def reset_consumer(
    js: JetStream, stream: str, consumer: str, seq: int | None = None, timeout: float | None = None
) -> ConsumerReset:
    if seq is not None and seq < 1:
        raise ValueError(f"seq={seq}: sequences start at 1; omit seq to reset the consumer to its ack floor")
    body = {} if seq is None else {"seq": seq}
    try:
        response = await js.api_request(f"CONSUMER.RESET.{stream}.{consumer}", body, timeout=timeout)
    except NoAnswer:
        # nats-server does not reply to a reset of something that does not exist; an info request shows what is missing.
        await js.consumer_info(stream, consumer)
        raise
    reset_seq = response.pop("reset_seq")
    return ConsumerReset(info=ConsumerInfo.from_response(response), reset_seq=reset_seq)
