"""Direct gets on both servers: a block that lacks replies is not taken for a complete one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from conformance.client import Client
from conformance.servers import KINDS, Server
from headrace.reader.batch_cast import SeqRange
from headrace.reader.blocking_connection import connection_for, drop_connection
from headrace.reader.options import ReadOptions, parse_read_options
from headrace.reader.range_reader import read_seq_range
from headrace.reader.read_method import ReadMethod
from headrace.tables.claim_rows import STREAM_SCHEMA

COUNT = 100


@pytest.fixture(params=KINDS)
def options(request: pytest.FixtureRequest) -> Iterator[ReadOptions]:
    with Server(request.param) as server, Client(server.port) as client:
        config = {"name": "S", "subjects": ["s"], "retention": "workqueue", "allow_direct": True}
        client.api("STREAM.CREATE.S", config)
        for number in range(COUNT):
            client.store("s", b"%d" % number)
        given = {"servers": server.url, "stream": "S", "batchRows": "20", "timeout": "60s"}
        options = parse_read_options(given)
        yield options
        drop_connection(options.address)


@pytest.mark.parametrize("taken", [1, 5, 19])
def test_a_block_whose_replies_something_else_took_is_requested_again(
    options: ReadOptions, taken: int
) -> None:
    found: list[int] = []
    for batch in read_seq_range(
        options, SeqRange(1, COUNT + 1, 1), STREAM_SCHEMA, ReadMethod.DIRECT_GET.fetch
    ):
        found += batch.column("seq").to_pylist()
        if len(found) == 40:
            replies = connection_for(options.address).iter_messages(60.0)
            for _ in range(taken):
                next(replies)
    assert found == list(range(1, COUNT + 1))
