"""Errors have named classes, advice, and the parents that users of nats-py catch."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import nats.errors
import nats.js.errors as theirs
import pytest

from headrace.client import errors
from headrace.client.errors import JetStreamError, Member, make_error, translate_error, translate_nats_errors
from headrace.errors import HeadraceError

CODES = json.loads((Path(errors.__file__).parents[1] / "jetstream_api" / "errors.json").read_text())


def answer(err_code: int, code: int = 400, description: str = "no") -> dict[str, object]:
    return {"code": code, "err_code": err_code, "description": description}


@pytest.mark.parametrize(
    ("code", "err_code", "name", "caught_as"),
    [
        (400, 10071, "WrongLastSequence", theirs.BadRequestError),
        (400, 10164, "WrongLastSequence", theirs.BadRequestError),
        (400, 10165, "InvalidTTL", theirs.BadRequestError),
        (400, 10166, "TTLDisabled", theirs.BadRequestError),
        (400, 10054, "MessageTooLarge", theirs.BadRequestError),
        (503, 10077, "StreamFull", theirs.ServiceUnavailableError),
        (404, 10059, "StreamNotFound", theirs.NotFoundError),
        (404, 10014, "ConsumerNotFound", theirs.NotFoundError),
        (400, 10058, "StreamExists", theirs.BadRequestError),
        (400, 10174, "AtomicDisabled", theirs.BadRequestError),
        (400, 10176, "BatchIncomplete", theirs.BadRequestError),
        (400, 10199, "BatchTooLarge", theirs.BadRequestError),
        (400, 10201, "DuplicateInBatch", theirs.BadRequestError),
        (429, 10210, "TooManyBatches", theirs.APIError),
        (400, 10204, "InvalidReset", theirs.ConsumerInvalidResetError),
        (412, 10185, "LevelTooLow", theirs.APIError),
        (400, 10025, "BadRequest", theirs.BadRequestError),
        (404, 10037, "NotFound", theirs.NotFoundError),
        (500, 10012, "ServerFault", theirs.ServerError),
        (503, 10023, "Unavailable", theirs.ServiceUnavailableError),
        (409, 10134, "JetStreamError", theirs.APIError),
    ],
)
def test_names_of_codes(code: int, err_code: int, name: str, caught_as: type[Exception]) -> None:
    error = make_error(answer(err_code, code))
    assert type(error).__name__ == name
    assert isinstance(error, HeadraceError)
    assert isinstance(error, caught_as)
    assert (error.code, error.err_code, error.description) == (code, err_code, "no")


def test_names_agree_with_the_servers_table() -> None:
    known = {entry["error_code"]: entry["code"] for entry in CODES}
    named = {kind.ERR_CODE: kind.CODE for kind in every_kind() if kind.ERR_CODE}
    assert len(named) > 15
    assert named == {err_code: known[err_code] for err_code in named}


def test_a_message_says_what_and_what_to_do() -> None:
    error = make_error(answer(10166, description="per-message TTL is disabled"))
    assert str(error).startswith("per-message TTL is disabled [400/10166]; set allow_msg_ttl")


def test_a_batch_names_its_member_or_the_candidates() -> None:
    error = make_error(answer(10071, description="wrong last sequence: 4"))
    error.candidates = (Member(2, "a"), Member(7, "b"))
    assert str(error).startswith("batch member 2, 7: wrong last sequence: 4")
    error.member = Member(7, "b")
    assert str(error).startswith("batch member 7 (b): wrong")


def test_wrong_last_sequence_knows_the_actual_one() -> None:
    told, untold = (
        make_error(answer(10071, description=f"wrong last sequence{end}")) for end in (": 17", "")
    )
    assert isinstance(told, errors.WrongLastSequence)
    assert isinstance(untold, errors.WrongLastSequence)
    assert (told.actual, untold.actual) == (17, None)


def test_recast_keeps_the_answer() -> None:
    error = make_error(answer(10071, description="wrong last sequence: 4"))
    error.member = Member(1, "a")
    special = translate_error(error, errors.WrongRevision)
    assert isinstance(special, theirs.KeyWrongLastSequenceError)
    assert (special.err_code, special.description, special.member) == (10071, error.description, error.member)


def every_kind() -> list[type[JetStreamError]]:
    found = [
        kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, JetStreamError)
    ]
    return sorted(found, key=lambda kind: kind.__name__)


@pytest.mark.parametrize("kind", every_kind(), ids=lambda kind: kind.__name__)
def test_errors_travel_between_processes(kind: type[JetStreamError]) -> None:
    error = kind.refuse("why")
    error.member = Member(3, "s")
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is kind
    assert str(copy) == str(error)
    assert copy.member == error.member


@pytest.mark.parametrize(
    ("raised", "name"),
    [
        (theirs.BadRequestError(code=400, err_code=10165, description="x"), errors.InvalidTTL),
        (theirs.NoStreamResponseError(), errors.NoStream),
        (nats.errors.NoRespondersError(), errors.NoStream),
        (nats.errors.TimeoutError(), errors.NoAnswer),
        (ValueError("mine"), ValueError),
        (errors.NoStream("s"), errors.NoStream),
    ],
)
def test_what_nats_py_raises_gets_its_name(raised: Exception, name: type[Exception]) -> None:
    with pytest.raises(name), translate_nats_errors("orders"):
        raise raised
