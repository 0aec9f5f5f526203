"""Bugs planted in configuration, validation and HTTP; unit tests must catch each.

`python -m tests.unit.mutants [name ...]`
"""

from __future__ import annotations

import sys
from typing import Any

from headrace.config import open_listeners
from headrace.jetstream_api import subject_transform
from headrace.jetstream_api.validation import stream_fields
from headrace.monitor import http
from support.mutation import Mutant, Patch, main, trial_of
from unit.config.test_open_listeners import test_an_open_listener_is_refused
from unit.jetstream_api.test_transforms import test_any_bytes_can_be_split_into_characters
from unit.jetstream_api.validation.test_streams import test_copies_never_go_to_the_server
from unit.monitor.test_http import test_invalid_requests_get_their_status


def a_websocket_listener_is_never_open(patch: Patch) -> None:
    patch(open_listeners, "_check_websocket", lambda old: lambda options: "")


def a_certificate_counts_although_tls_may_be_left_out(patch: Patch) -> None:
    def is_open(old: Any) -> Any:
        return lambda options: old(options) and not options.tls_files.verify

    patch(open_listeners, "is_client_listener_open", is_open)


def a_repeated_header_counts_once(patch: Patch) -> None:
    patch(http, "_SINGLE_HEADERS", lambda old: frozenset())


def copies_may_go_to_the_api(patch: Patch) -> None:
    patch(stream_fields, "_SERVER_TOKENS", lambda old: ())


def characters_are_split_as_text(patch: Patch) -> None:
    def split(old: Any) -> Any:
        def strict(token: bytes, separator: bytes) -> bytes:
            found = token.decode("utf-8", "replace").encode()
            return bytes(old(found, separator))

        return strict

    patch(subject_transform, "_split", split)


MUTANTS: dict[str, Mutant] = {
    mutant.plant.__name__.replace("_", " "): mutant
    for mutant in (
        Mutant(a_websocket_listener_is_never_open, (trial_of(test_an_open_listener_is_refused),), True),
        Mutant(
            a_certificate_counts_although_tls_may_be_left_out,
            (trial_of(test_an_open_listener_is_refused),),
            True,
        ),
        Mutant(a_repeated_header_counts_once, (trial_of(test_invalid_requests_get_their_status),), True),
        Mutant(copies_may_go_to_the_api, (trial_of(test_copies_never_go_to_the_server),), True),
        Mutant(characters_are_split_as_text, (trial_of(test_any_bytes_can_be_split_into_characters),), True),
    )
}

if __name__ == "__main__":
    sys.exit(main(MUTANTS, sys.argv[1:]))
