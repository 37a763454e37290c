"""Groups of commands, options in groups, and their help as click's plain text.

Typer's default, tables of Rich, has six columns, which at 80 characters cut names and leave texts a fifth of a line.
"""

from __future__ import annotations

import functools
import inspect
import re
import textwrap
from dataclasses import MISSING, fields, is_dataclass
from typing import TYPE_CHECKING, Any, TypeVar, cast, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup

from wids.errors import WidsError
from wids.tools.cli.advice import with_advice
from wids.tools.cli.format import is_debug

if TYPE_CHECKING:
    from collections.abc import Callable

_Function = TypeVar("_Function", bound="Callable[..., Any]")
_MAX_WIDTH, _MAX_NAMES = 100, 30
_BOUNDS = re.compile(r"(\S+<=?)?x([<>]=?\S+)?")


class PlainCommand(TyperCommand):
    """A command with such a help; an error that names a parameter is wrong usage, exit code 2."""

    def invoke(self, ctx: Any) -> Any:
        """Run it."""
        try:
            return super().invoke(ctx)
        except WidsError as error:
            if error.parameter is None or is_debug():
                raise
            raise typer.BadParameter(" ".join(with_advice(error).split()), ctx=ctx) from None

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write arguments and options, under the headings that they have."""
        _write_parameters(self, ctx, formatter)


class CommandGroup(TyperGroup):
    """A group of commands with such a help."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write options, then the commands."""
        _write_parameters(self, ctx, formatter)
        self.format_commands(ctx, formatter)


class App(typer.Typer):
    """A group of commands, to which functions are added, with plain help for all; alone, its name shows its help."""

    def __init__(self, **options: Any) -> None:
        settings = {"help_option_names": ["-h", "--help"], "max_content_width": _MAX_WIDTH}
        defaults = {"cls": CommandGroup, "rich_markup_mode": None, "context_settings": settings}
        super().__init__(**{**defaults, **options}, invoke_without_command=True)
        self.callback()(show_help)

    def command(self, name: str | None = None, **options: Any) -> Callable[[_Function], _Function]:
        """The `command` of typer with `with_option_groups`."""
        return lambda function: super(App, self).command(
            name,
            **{"cls": PlainCommand, "short_help": (function.__doc__ or "").partition("\n\n")[0], **options},
        )(with_option_groups(function))


def with_option_groups(command: _Function) -> _Function:
    """Let a command take groups of options: of a parameter that is a dataclass, each field becomes an option.

    Args:
        command: its parameters and the fields of its dataclasses are annotated for typer, and named differently.
    """
    hints = inspect.get_annotations(command, eval_str=True)  # get_type_hints hides Annotated in Optional on Python 3.10
    groups: dict[str, Any] = {name: kind for name, kind in hints.items() if is_dataclass(kind)}
    if not groups:
        return command
    parameters = []
    for parameter in inspect.signature(command).parameters.values():
        own = [(parameter.name, hints[parameter.name], parameter.default)]
        if parameter.name in groups:
            kind = groups[parameter.name]
            types = get_type_hints(kind, include_extras=True)
            own = [
                (field.name, types[field.name], inspect.Parameter.empty if field.default is MISSING else field.default)
                for field in fields(kind)
            ]
        parameters += [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default)
            for name, annotation, default in own
        ]

    @functools.wraps(command)
    def run(**values: Any) -> None:
        for name, kind in groups.items():
            values[name] = kind(**{field.name: values.pop(field.name) for field in fields(kind)})
        command(**values)

    del run.__wrapped__
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return cast("_Function", run)


def examples(*commands: str) -> str:
    """The end of a command's help, with the line breaks that its examples have."""
    title = f"Example{'s' * (len(commands) > 1)}:"
    return "\n\n".join((title, *("\b\n" + textwrap.indent(command, "  ") for command in commands)))


def show_help(ctx: typer.Context) -> None:
    """Show the help of a group whose name stands alone."""
    if ctx.invoked_subcommand is None:
        print(ctx.get_help(), end="")


def _write_parameters(command: Any, ctx: Any, formatter: Any) -> None:
    """Write arguments and options under their headings (``rich_help_panel``), which click does not know.

    The name of an argument stands without its type, and no number has its bounds, which the errors say.
    """
    sections: dict[str, list[tuple[str, str]]] = {}
    for parameter in command.get_params(ctx):
        if record := parameter.get_help_record(ctx):
            names, text = record[0], _without_bounds(record[1])
            if parameter.param_type_name == "argument":
                title, names = "Arguments", names.split()[0]
            else:
                title = getattr(parameter, "rich_help_panel", None) or "Options"
            sections.setdefault(title, []).append((names, text))
    for title, records in sections.items():
        with formatter.section(title):
            formatter.write_dl(records, col_max=min(formatter.width // 3, _MAX_NAMES))


def _without_bounds(text: str) -> str:
    """The text of a parameter without the bounds of its number: ``[default: 1; x>=1]``."""
    head, bracket, bounds = text.removesuffix("]").rpartition("[")
    if not bracket or not text.endswith("]"):
        return text
    kept = [fact for fact in bounds.split("; ") if not _BOUNDS.fullmatch(fact)]
    return f"{head}[{'; '.join(kept)}]" if kept else head.rstrip()
