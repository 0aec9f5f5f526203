"""The error table of the JetStream API: `errors.json` is the table, this module fills its texts.

Owns the shape of an error in an answer. Knows nothing of what went wrong where.
"""

import importlib.resources
from functools import cache

import msgspec

from headrace.errors import RequestError
from headrace.jetstream_api.encode import dumps


class ErrorEntry(msgspec.Struct, frozen=True):
    """One line of the table; `{x}` in the description is a placeholder."""

    constant: str
    code: int
    error_code: int
    description: str


@cache
def load_table() -> dict[int | str, ErrorEntry]:
    """Every entry, by error code and by constant."""
    source = importlib.resources.files("headrace.jetstream_api").joinpath("errors.json").read_bytes()
    found: dict[int | str, ErrorEntry] = {}
    for entry in msgspec.json.decode(source, type=list[ErrorEntry]):
        found[entry.error_code] = found[entry.constant] = entry
    return found


def error(which: int | str, **placeholders: object) -> RequestError:
    """The error of that code or constant, placeholders filled: `error(10052, err="invalid subject")`."""
    entry = load_table()[which]
    text = entry.description
    for name, value in placeholders.items():
        text = text.replace("{" + name + "}", str(value))
    return RequestError(entry.code, entry.error_code, text)


def invalid_config(text: str) -> RequestError:
    """10052, the error of most configuration rules."""
    return error(10052, err=text)


def pedantic_error(text: str) -> RequestError:
    """10157: a value that would otherwise have been corrected silently."""
    return error(10157, err=text)


def error_to_plain(api_error: RequestError) -> dict[str, int | str]:
    """The `error` object of an answer."""
    return {"code": api_error.code, "err_code": api_error.err_code, "description": api_error.description}


def encode_error(api_error: RequestError) -> bytes:
    """The `error` object of an answer, encoded."""
    return dumps(error_to_plain(api_error))


def encode_pub_ack_error(stream: str, api_error: RequestError) -> bytes:
    """The answer to a refused publish."""
    return b'{"error":%b,"stream":%b,"seq":0}' % (encode_error(api_error), dumps(stream))
