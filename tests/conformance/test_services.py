"""Micro services through an unmodified nats-py: a convention on top of requests and queue groups."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import nats.micro
import pytest
from nats.aio.client import Client as NatsClient
from nats.micro.request import Request, ServiceError
from nats.micro.service import EndpointConfig, ServiceConfig


async def _double(request: Request) -> None:
    if request.data == b"fail":
        raise ServiceError("400", "no number")
    await request.respond(str(2 * int(request.data)).encode())


async def _serve(nc: NatsClient, name: str, version: str = "1.0.0") -> Any:
    service = await nats.micro.add_service(
        nc, ServiceConfig(name=name, version=version, description="doubles")
    )
    await service.add_endpoint(EndpointConfig(name="double", subject=f"{name}.double", handler=_double))
    group = service.add_group(name=f"{name}.group")
    await group.add_endpoint(name="inner", handler=_double)
    await nc.flush()
    return service


async def test_requests_are_answered(nc: NatsClient, name: str) -> None:
    service = await _serve(nc, name)
    assert (await nc.request(f"{name}.double", b"21", timeout=60)).data == b"42"
    assert (await nc.request(f"{name}.group.inner", b"4", timeout=60)).data == b"8"
    failed = await nc.request(f"{name}.double", b"fail", timeout=60)
    assert (failed.headers["Nats-Service-Error-Code"], failed.headers["Nats-Service-Error"]) == (
        "400",
        "no number",
    )
    await service.stop()


@pytest.mark.parametrize("verb", ["PING", "INFO", "STATS"])
async def test_services_answer_ping_info_and_stats(nc: NatsClient, name: str, verb: str) -> None:
    services = [await _serve(nc, name) for _ in range(2)]
    inbox = nc.new_inbox()
    answers = await nc.subscribe(inbox)
    for subject, count in ((f"$SRV.{verb}.{name}", 2), (f"$SRV.{verb}.{name}.{services[0].id}", 1)):
        await nc.publish(subject, b"", reply=inbox)
        found = [json.loads((await answers.next_msg(timeout=60)).data) for _ in range(count)]
        assert {each["id"] for each in found} <= {service.id for service in services}
        assert {each["type"] for each in found} == {f"io.nats.micro.v1.{verb.lower()}_response"}
    for service in services:
        await service.stop()


async def test_instances_share_the_work(nc: NatsClient, name: str) -> None:
    services = [await _serve(nc, name) for _ in range(3)]
    answers = await asyncio.gather(*(nc.request(f"{name}.double", b"%d" % n, timeout=60) for n in range(90)))
    assert [int(answer.data) for answer in answers] == [2 * number for number in range(90)]
    counts = [service.stats().endpoints[0].num_requests for service in services]
    assert sum(counts) == 90
    assert min(counts) > 0
    for service in services:
        await service.stop()


async def test_a_stopped_service_is_not_found(nc: NatsClient, name: str) -> None:
    service = await _serve(nc, name)
    await service.stop()
    await nc.flush()
    with pytest.raises(nats.errors.NoRespondersError):
        await nc.request(f"{name}.double", b"1", timeout=60)
