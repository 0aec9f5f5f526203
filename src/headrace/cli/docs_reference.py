"""Generates the command reference in docs/reference/cli.md from the commands themselves, so that the two cannot differ.

`python -m headrace.cli.docs_reference docs/reference/cli.md` rewrites it between the page's two marks; a test compares.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from headrace.cli import app
from headrace.cli.connection_target import OPTIONS_PANEL
from headrace.cli.examples import find_example
from headrace.cli.help_layout import describe_argument

BEGIN, END = "<!-- reference: begin -->", "<!-- reference: end -->"


#: Groups with their own pages.
SEPARATE_PAGES = {"claims", "pipeline"}


def iter_commands() -> Iterator[tuple[str, Any]]:
    """Yield every command that does something, by its full name."""
    for group in app.COMMANDS.values():
        for name in (name for name, *_ in group if name not in SEPARATE_PAGES):
            yield from _iter_leaf_commands(f"headrace {name}", app.load_command(name))


def _iter_leaf_commands(path: str, command: Any) -> Iterator[tuple[str, Any]]:
    inner = getattr(command, "commands", None)
    if inner is None:
        yield path, command
        return
    for name in inner:
        yield from _iter_leaf_commands(f"{path} {name}", inner[name])


def render_markdown() -> str:
    return "\n".join(line for path, command in iter_commands() for line in _render_command(path, command))


def _render_command(path: str, command: Any) -> Iterator[str]:
    arguments = [each for each in command.params if each.param_type_name == "argument"]
    options = [each for each in command.params if each.param_type_name == "option"]
    own = [each for each in options if getattr(each, "rich_help_panel", None) != OPTIONS_PANEL]
    words = " ".join(_render_argument(each) for each in arguments)
    yield f"### `{path}{f' {words}' if words else ''}`"
    yield ""
    yield " ".join((command.help or "").split())
    yield ""
    if example := find_example(path):
        yield f"Example: `{example}`"
        yield ""
    for each in arguments:
        yield f"- `{describe_argument(each).removesuffix('...')}`: {each.help}"
    for each in own:
        if each.help and not each.hidden:
            yield f"- `{_render_flags(each)}`: {each.help}{_render_default(each)}"
    if arguments or own:
        yield ""


def _render_argument(argument: Any) -> str:
    name = describe_argument(argument)
    return name if argument.required else f"[{name}]"


def _render_flags(option: Any) -> str:
    names = ", ".join(option.opts)
    if option.secondary_opts:
        names += f" / {', '.join(option.secondary_opts)}"
    takes_value = not getattr(option, "is_flag", False)
    return f"{names} {option.metavar or option.name.upper()}" if takes_value else names


def _render_default(option: Any) -> str:
    value = option.default
    if value in (None, "", False, True, 0) or callable(value) or isinstance(value, list | tuple):
        return ""
    return f" Default: `{getattr(value, 'value', value)}`."


def main(path: str) -> None:
    page = Path(path)
    before, _, rest = page.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    page.write_text(f"{before}{BEGIN}\n\n{render_markdown()}\n{END}{after}")


if __name__ == "__main__":
    main(sys.argv[1])
