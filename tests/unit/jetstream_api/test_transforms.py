"""Subject transforms, compiled and applied."""

import pytest

from headrace.jetstream_api.subject_transform import BadTransform, check_transform, compile_transform


@pytest.mark.parametrize(
    ("source", "dest", "subject", "result"),
    [
        ("a.*.*", "b.$2.$1", "a.x.y", "b.y.x"),
        ("a.*", "b.{{wildcard(1)}}", "a.x", "b.x"),
        ("a.>", "b.>", "a.x.y", "b.x.y"),
        ("a.*.>", "b.$1.c.>", "a.x.y.z", "b.x.c.y.z"),
        (">", "b.>", "x.y", "b.x.y"),
        ("", "b.>", "x.y", "b.x.y"),
        ("a", "b.c", "a", "b.c"),
        ("a.*", "", "a.x", "a.x"),
        (">", ">", "a.x", "a.x"),
        ("a.*", "b.$x.$", "a.x", "b.$x.$"),
        ("a.*", "b.{{split(1,-)}}", "a.-x-y--z-", "b.x.y.z"),
        ("a.*", "b.{{splitfromleft(1,2)}}", "a.12345", "b.12.345"),
        ("a.*", "b.{{splitfromright(1,2)}}", "a.12345", "b.123.45"),
        ("a.*", "b.{{slicefromleft(1,2)}}", "a.12345", "b.12.34.5"),
        ("a.*", "b.{{SliceFromRight(1,2)}}", "a.12345", "b.1.23.45"),
        ("a.*", "b.{{slicefromright(1,2)}}", "a.1234", "b.12.34"),
        ("a.*", "b.{{left(1,2)}}.{{right(1,3)}}", "a.12345", "b.12.345"),
        ("a.*", "b.{{left(1,9)}}", "a.12345", "b.12345"),
        ("a.*", "b.{{splitfromleft(1,5)}}", "a.12345", "b.12345"),
        ("a.*.*", "b.{{partition(10,1,2)}}", "a.foo.bar", "b.0"),
        ("a.*", "b.{{partition(0,1)}}.{{random(0)}}", "a.x", "b.0.0"),
        ("a.*", "b.{{random(1)}}", "a.x", "b.0"),
    ],
)
def test_a_subject_is_rewritten(source: str, dest: str, subject: str, result: str) -> None:
    check_transform(source, dest)
    assert compile_transform(source, dest)(subject.encode()) == result.encode()


def test_any_bytes_can_be_split_into_characters() -> None:
    split = compile_transform("a.*", "b.{{split(1,)}}")
    assert split(b"a.x\xff\xc3\xc3\xa9") == b"b.x.\xff.\xc3.\xc3\xa9"


def test_a_partition_without_positions_takes_the_whole_subject() -> None:
    whole = compile_transform("a.*", "b.{{partition(1000)}}")
    parts = compile_transform("*.*", "b.{{partition(1000,1,2)}}")
    assert whole(b"a.x") != parts(b"a.x")
    assert compile_transform("a", "b.{{partition(1)}}")(b"a") == b"b.0"


@pytest.mark.parametrize(
    ("source", "dest", "text"),
    [
        ("a.*", "b.$2", "invalid mapping destination: wildcard index out of range in $2: [2]"),
        ("a", "b.$1", "invalid mapping destination: wildcard index out of range in $1"),
        ("a.*", "b.{{foo(1)}}", "invalid mapping destination: unknown function in {{foo(1)}}"),
        ("a.*", "b.", "invalid mapping destination: invalid transform"),
        ("a.*", "b.>.c", "invalid mapping destination: invalid transform in c"),
        ("a.*", "b c", "invalid mapping destination: invalid transform"),
        ("a.>", "b", "invalid subject"),
        ("a", "b.>", "invalid subject"),
        ("a.*", "b.*", "invalid subject"),
        ("a..b", "b", "invalid subject"),
    ],
)
def test_a_bad_mapping_is_refused_in_the_words_of_nats_server(source: str, dest: str, text: str) -> None:
    with pytest.raises(BadTransform) as caught:
        check_transform(source, dest)
    assert str(caught.value) == text
