"""The interactive shell of `headrace sql`: statements end with a semicolon, commands begin with a dot."""

from __future__ import annotations

from contextlib import suppress

from headrace.cli import output
from headrace.cli.exit_codes import to_cli_error
from headrace.cli.sql import run_query
from headrace.cli.sql_streams import StreamDatabase

_HELP = """\
Statements end with a semicolon and may have several lines; Ctrl-C discards one.
  .tables   list the streams
  .help     show this text
  .quit     leave; also Ctrl-D
Columns: seq, time, subject, headers, data
Functions: as_text(data), as_json(data)->>'$.field', header(headers, 'Name')"""
_PROMPT, _CONTINUED = "headrace> ", "     ...> "


def run_shell(database: StreamDatabase, file_format: str) -> None:
    """Read statements from the terminal until it ends; an error does not end the shell."""
    with suppress(ImportError):
        import readline  # noqa: F401 - gives `input` line editing and history

    output.print_note("SQL on streams; .help for help, .quit to leave")
    statement = ""
    while True:
        try:
            line = input(_CONTINUED if statement else _PROMPT)
        except EOFError:
            output.print_note("")
            return
        except KeyboardInterrupt:
            output.print_note("\ndiscarded")
            statement = ""
            continue
        if not statement and line.strip() in (".quit", ".exit", "exit", "quit"):
            return
        statement = f"{statement}\n{line}".strip()
        if statement.startswith(".") or statement.endswith(";"):
            _run(database, statement, file_format)
            statement = ""


def _run(database: StreamDatabase, statement: str, file_format: str) -> None:
    """Run one statement or command, and print errors."""
    try:
        if statement == ".tables":
            print("\n".join(database.list_streams()))
        elif statement.startswith("."):
            print(_HELP)
        else:
            run_query(database, statement, file_format)
    except KeyboardInterrupt:
        output.print_note("interrupted")
    except Exception as error:
        output.print_note(str(to_cli_error(error)))
