"""Layout of `--help` on a terminal: one column for an option and its value, the rest of the line for its explanation.

typer's own layout has a column each for long names, short names, negated names and types, which leaves explanations
only 22 of 100 columns. Reads only the parameters of a command; output to pipes is typer's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperCommand, TyperGroup

from headrace.cli.connection_target import OPTIONS_PANEL
from headrace.cli.examples import find_example

if TYPE_CHECKING:
    from rich.console import Console

#: An option that is wider than this is wrapped, so that explanations keep most of the line.
_FLAGS_MAX_WIDTH = 38
#: Instead of a dozen options that all commands share.
_CONNECTION_HINT = "Connection: --server, --context, --timeout ...; see 'headrace --help'."


class HelpCommand(TyperCommand):
    """A command whose help has this layout."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        if self.rich_markup_mode is None:
            super().format_help(ctx, formatter)
        else:
            print_help(self, ctx)

    def format_usage(self, ctx: Any, formatter: Any) -> None:
        super().format_usage(ctx, formatter)
        if example := find_example(ctx.command_path):
            formatter.write(f"Example: {example}\n")


class HelpGroup(TyperGroup):
    """A group of commands whose help has this layout."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        if self.rich_markup_mode is None:
            super().format_help(ctx, formatter)
        else:
            print_help(self, ctx)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """List the commands with their whole summaries; those of click end at the end of the line."""
        with formatter.section("Commands"):
            formatter.write_dl(
                [(name, _summarize(command)) for name, command in _iter_commands(self, ctx)],
            )


def use_layout(app: typer.Typer) -> None:
    """Make an application, and those in it, use this layout."""
    app.info.cls = HelpGroup
    for command in app.registered_commands:
        command.cls = HelpCommand
    for group in app.registered_groups:
        if group.typer_instance is not None:
            group.cls = HelpGroup
            use_layout(group.typer_instance)


def print_help(command: Any, ctx: Any) -> None:
    """Print usage, description, arguments, options and commands."""
    from rich.console import Console
    from rich.padding import Padding

    console = Console(highlight=False)
    head = f"[yellow]Usage:[/] [bold]{_escape(_make_usage(command, ctx))}[/]"
    is_root = ctx.parent is None
    if not is_root and (example := find_example(ctx.command_path)):
        head += f"\n[yellow]Example:[/] {_escape(example)}"
    console.print(Padding(head, 1))
    paragraphs = [" ".join(text.split()) for text in (command.help or "").split("\n\n")]
    console.print(Padding(_escape("\n\n".join(paragraphs)), (0, 1, 1, 1)))
    visible = [each for each in command.get_params(ctx) if not getattr(each, "hidden", False)]
    arguments = [each for each in visible if each.param_type_name == "argument"]
    _print_panel(console, "Arguments", [(describe_argument(each), _explain(each)) for each in arguments])
    panels: dict[str, list[Any]] = {"Options": []}
    for each in visible:
        if each.param_type_name == "option":
            panels.setdefault(getattr(each, "rich_help_panel", None) or "Options", []).append(each)
    for name, options in panels.items():
        is_help_only = isinstance(command, TyperGroup) and [each.name for each in options] == ["help"]
        if not is_help_only and (name != OPTIONS_PANEL or is_root):
            _print_panel(console, name, [(_describe_option(each), _explain(each)) for each in options])
    _print_commands(console, command, ctx)
    if OPTIONS_PANEL in panels and not is_root:
        console.print(f" [dim]{_escape(_CONNECTION_HINT)}[/]")


def _print_commands(console: Console, group: Any, ctx: Any) -> None:
    if not isinstance(group, TyperGroup):
        return
    panels: dict[str, list[tuple[str, str]]] = {}
    for name, command in _iter_commands(group, ctx):
        panel = getattr(command, "rich_help_panel", None) or "Commands"
        panels.setdefault(panel, []).append((name, _summarize(command)))
    width = max(len(name) for rows in panels.values() for name, _ in rows)
    for panel, rows in panels.items():
        _print_panel(console, panel, [(name.ljust(width), summary) for name, summary in rows])


def _iter_commands(group: TyperGroup, ctx: Any) -> Iterator[tuple[str, Any]]:
    for name in group.list_commands(ctx):
        command = group.get_command(ctx, name)
        if command is not None and not command.hidden:
            yield name, command


def _summarize(command: Any) -> str:
    """Return the first sentence of a command's description on one line."""
    sentence, end, _ = " ".join((command.help or "").split("\n\n")[0].split()).partition(". ")
    return sentence + end.strip()


def _print_panel(console: Console, title: str, rows: Sequence[tuple[str, str]]) -> None:
    from rich.panel import Panel
    from rich.table import Table
    from rich.text import Text

    if not rows:
        return
    table = Table.grid(padding=(0, 2), expand=True)
    table.add_column(style="bold cyan", max_width=_FLAGS_MAX_WIDTH)
    table.add_column(ratio=1)
    for flags, explanation in rows:
        table.add_row(Text(flags), Text(explanation))
    console.print(Panel(table, title=title, title_align="left", border_style="dim"))


def _make_usage(command: Any, ctx: Any) -> str:
    """Return the usage line with the arguments in capitals, as in the command reference."""
    arguments = [each for each in command.get_params(ctx) if each.param_type_name == "argument"]
    usage = [ctx.command_path, "[OPTIONS]"]
    usage += [
        describe_argument(each) if each.required else f"[{describe_argument(each)}]" for each in arguments
    ]
    usage += ["COMMAND [ARGS]..."] if isinstance(command, TyperGroup) else []
    return " ".join(usage)


def describe_argument(argument: Any) -> str:
    """Return an argument's name as in a usage line: `STREAM`, `FILE...`."""
    name = str(argument.metavar or argument.name.upper()).strip("[].")
    return f"{name}..." if argument.nargs == -1 else name


def _describe_option(option: Any) -> str:
    """Return the names and value of an option: `-n, --count N`, `--[no-]ack`."""
    short = [name for name in option.opts if not name.startswith("--")]
    long = [name for name in option.opts if name.startswith("--")]
    if option.secondary_opts:
        long = [f"--[no-]{name.removeprefix('--')}" for name in long]
    names = ", ".join([*short, *long])
    if getattr(option, "is_flag", False):
        return names
    return f"{names} {option.metavar or option.name.upper()}"


def _explain(parameter: Any) -> str:
    """Return a parameter's help text, its default value and its environment variable."""
    value = parameter.default
    is_shown = getattr(parameter, "show_default", False) and not isinstance(value, bool)
    default = (
        f"(default: {getattr(value, 'value', value)})" if is_shown and value not in (None, "", 0, []) else ""
    )
    required = "(required)" if parameter.required and parameter.param_type_name == "option" else ""
    variable = f"(environment: {parameter.envvar})" if isinstance(parameter.envvar, str) else ""
    return " ".join(filter(None, (parameter.help, default, variable, required)))


def _escape(text: str) -> str:
    from rich.markup import escape

    return escape(text)
