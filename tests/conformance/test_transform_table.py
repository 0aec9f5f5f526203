"""Our subject transforms give the subjects that the reference stores."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from conformance.client import Client
from conformance.servers import REFERENCE, Server
from headrace.api.transforms import compile_transform

SUBJECTS = ["t.foo.bar", "t.a-b.c", "t.-x-y--z-.12345", "t.1.22", "t.abcdefg.0", "t.é.ü"]
DESTS = [
    "x.$2.$1",
    "x.{{wildcard(2)}}.$x",
    "x.{{partition(10,1,2)}}",
    "x.{{partition(7,2)}}.{{partition(1000)}}",
    "x.{{split(1,-)}}",
    "x.{{splitfromleft(1,2)}}.{{SplitFromRight(2,2)}}",
    "x.{{slicefromleft(1,2)}}.{{ slicefromright( 2 , 2 ) }}",
    "x.{{left(1,2)}}.{{right(1,3)}}",
    "x.{{left(1,9)}}.{{slicefromleft(2,-1)}}",
]


@pytest.fixture(scope="module")
def reference() -> Iterator[Client]:
    with Server(REFERENCE) as running, Client(running.port) as client:
        yield client


@pytest.mark.parametrize("dest", DESTS)
def test_a_transform_gives_the_stored_subject(reference: Client, dest: str) -> None:
    transform = compile_transform("t.*.*", dest)
    config = {"name": "T", "subjects": ["t.>"], "subject_transform": {"src": "t.*.*", "dest": dest}}
    assert "error" not in reference.api("STREAM.CREATE.T", config)
    for seq, subject in enumerate(SUBJECTS, start=1):
        reference.request(subject)
        stored = reference.api("STREAM.MSG.GET.T", {"seq": seq})["message"]["subject"]
        assert stored == transform(subject.encode()).decode()
    reference.api("STREAM.DELETE.T")
