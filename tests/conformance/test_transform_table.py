"""Our subject transforms give the subjects that nats-server stores."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from conformance.client import Client
from conformance.servers import NATS_SERVER, Server
from headrace.jetstream_api.subject_transform import BadTransform, check_transform, compile_transform

SUBJECTS = ["foo.bar", "a-b.c", "-x-y--z-.12345", "1.22", "abcdefg.0", "é.ü"]
DESTS = [
    "x.$2.$1",
    "x.{{wildcard(2)}}.$x",
    "x.{{partition(10,1,2)}}",
    "x.{{partition(7,2)}}.{{partition(1000)}}",
    "x.{{split(1,-)}}",
    "x.{{split(1,)}}",
    "x.{{splitfromleft(1,2)}}.{{SplitFromRight(2,2)}}",
    "x.{{slicefromleft(1,2)}}.{{ slicefromright( 2 , 2 ) }}",
    "x.{{left(1,2)}}.{{right(1,3)}}",
    "x.{{left(1,9)}}.{{slicefromleft(2,-1)}}",
    # Numbers at the ends of what 32 and 64 bits can hold.
    "x.{{partition(-4294967296,1)}}.{{partition(-4294967297,1)}}.{{partition(-3,2)}}",
    "x.{{partition(-9223372036854775808,1)}}.{{partition(-2147483648,1)}}.{{partition(2147483647,1)}}",
    "x.{{random(-4294967296)}}.{{random(-4294967295)}}.{{random(-9223372036854775808)}}",
    "x.{{partition(3,-9223372036854775808)}}.{{partition(00003,1)}}.{{wildcard(-1)}}",
    "x.{{left(1,-2147483648)}}.{{slicefromright(2,2147483647)}}",
]
REFUSED = [
    "x.{{partition(2147483648,1)}}",
    "x.{{partition(-9223372036854775809,1)}}",
    "x.{{partition(3,9223372036854775808)}}",
    "x.{{random(99999999999999999999)}}",
    "x.{{wildcard(99999999999999999999)}}",
    "x.{{left(1,-2147483649)}}",
    "x.{{slicefromleft(1,4294967297)}}",
    f"x.{{{{partition({'9' * 5000},1)}}}}",
    f"x.{{{{split({'9' * 5000},-)}}}}",
]


@pytest.fixture(scope="module")
def nats_server() -> Iterator[Client]:
    with Server(NATS_SERVER) as running, Client(running.port) as client:
        yield client


@pytest.mark.parametrize("dest", DESTS)
def test_a_transform_gives_the_stored_subject(nats_server: Client, dest: str, name: str) -> None:
    """Each case has its own stream: nats-server may find messages of a stream that was just deleted."""
    transform = compile_transform(f"{name}.*.*", dest)
    mapping = {"src": f"{name}.*.*", "dest": dest}
    config = {"name": name, "subjects": [f"{name}.>"], "subject_transform": mapping}
    assert "error" not in nats_server.api(f"STREAM.CREATE.{name}", config)
    for seq, rest in enumerate(SUBJECTS, start=1):
        subject = f"{name}.{rest}"
        nats_server.request(subject)
        stored = nats_server.api(f"STREAM.MSG.GET.{name}", {"seq": seq})["message"]["subject"]
        assert stored == transform(subject.encode()).decode()


@pytest.mark.parametrize("dest", REFUSED, ids=range(len(REFUSED)))
def test_a_number_out_of_range_is_refused(nats_server: Client, dest: str, name: str) -> None:
    mapping = {"src": f"{name}.*.*", "dest": dest}
    config = {"name": name, "subjects": [f"{name}.>"], "subject_transform": mapping}
    with pytest.raises(BadTransform) as refused:
        check_transform(f"{name}.*.*", dest)
    answer = nats_server.api(f"STREAM.CREATE.{name}", config)
    assert str(refused.value) in answer["error"]["description"]
