"""The owner of a consumer at an upstream, by its metadata."""

from __future__ import annotations

import pytest

from headrace.broker.sourcing.consumer_ownership import ConsumerOwner, consumer_in_use_error, parse_owner

MINE = ConsumerOwner("$G", "EDGE", "A", "s1")


@pytest.mark.parametrize("mirror", [False, True])
def test_the_metadata_names_the_owner(mirror: bool) -> None:
    assert parse_owner(MINE.metadata(mirror=mirror)) == MINE
    bare = ConsumerOwner("$G", "", "A")
    assert parse_owner(bare.metadata(mirror=mirror)) == bare
    assert parse_owner({"note": "made by hand"}) is None


def test_a_stream_owns_what_its_server_made_for_it() -> None:
    assert MINE.owns(MINE)
    assert MINE.owns(MINE._replace(domain="OLD")), "a domain may get another name"
    assert MINE.owns(MINE._replace(server="")), "earlier versions did not say which server it was"
    for other in (MINE._replace(stream="B"), MINE._replace(account="X"), MINE._replace(server="s2")):
        assert not MINE.owns(other)
    assert not MINE.owns(MINE._replace(server="", domain="OLD"))


def test_a_successor_waits_until_there_is_no_subscriber() -> None:
    before = MINE._replace(server="s0")
    assert MINE.may_take_over_from(before, is_bound=False)
    assert not MINE.may_take_over_from(before, is_bound=True)
    assert not MINE.may_take_over_from(before._replace(stream="B"), is_bound=False)


def test_the_error_names_the_owner_and_what_to_do() -> None:
    error = consumer_in_use_error("D", "O", MINE)
    assert error.err_code == 10013
    assert "stream 'A' of account $G in domain EDGE reads stream 'O' with consumer 'D'" in error.description
