"""`headrace mkpasswd`: bcrypt hashes for the passwords in a configuration."""

from __future__ import annotations

import getpass
import secrets
import string
import sys
from typing import Annotated

import typer

from headrace.cli import output
from headrace.cli.exit_codes import USAGE_ERROR, CliError
from headrace.cli.session import without_connection
from headrace.extras import require_extra

mkpasswd_app = typer.Typer(add_completion=False)
#: bcrypt ignores all bytes after these.
_BYTES_MAX = 72
_GENERATED_LENGTH = 22


@mkpasswd_app.command()
@without_connection
def mkpasswd(
    cost: Annotated[int, typer.Option(metavar="N", min=4, max=31, help="Each step doubles the time.")] = 11,
    generate: Annotated[
        bool, typer.Option("--generate", help="Make a random password, and print it.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Print the bcrypt hash of a password, for 'password' in a configuration.

    Asks for the password; in a pipe it is the first line of standard input. Requires the extra headrace[bcrypt].
    """
    require_extra("bcrypt", "bcrypt")
    import bcrypt

    password = _generate() if generate else _read()
    if not password:
        raise CliError("the password is empty", USAGE_ERROR)
    if len(password.encode()) > _BYTES_MAX:
        raise CliError(
            f"the password is longer than {_BYTES_MAX} bytes, which bcrypt cannot hash", USAGE_ERROR
        )
    # nats-server and Headrace read this prefix, whichever version they are.
    hashed = bcrypt.hashpw(password.encode(), bcrypt.gensalt(cost, prefix=b"2a")).decode()
    values = {"password": password, "hash": hashed} if generate else {"hash": hashed}
    output.print_result(json, values, "\n".join(values.values()))


def _generate() -> str:
    letters = string.ascii_letters + string.digits
    return "".join(secrets.choice(letters) for _ in range(_GENERATED_LENGTH))


def _read() -> str:
    if not sys.stdin.isatty():
        return sys.stdin.readline().rstrip("\r\n")
    password = getpass.getpass("Password: ")
    if getpass.getpass("Again: ") != password:
        raise CliError("the passwords differ", USAGE_ERROR)
    return password
