"""The help of commands as plain text, which is whole at any width: a column of names, one of texts.

Typer's default, tables of Rich, has six columns, which at 80 characters cut names and leave texts a fifth of a line.
"""

from __future__ import annotations

import functools
import inspect
import re
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
_MAX_WIDTH, _MAX_NAMES, _MIN_NAMES = 100, 30, 14
# Bounds of a number beside a default: only the errors of refused numbers need them.
_BOUNDS = re.compile(r"(\S+<=?)?x([<>]=?\S+)?")
# Typer's words for values whose option has none of its own, of all its releases.
_KINDS = (
    (re.compile(r"<int( range)?>|\bINTEGER( RANGE)?\b"), "N"),
    (re.compile(r"<float( range)?>|\bFLOAT( RANGE)?\b"), "X"),
    (re.compile(r"<str>"), "TEXT"),
)
_WORD = r"""(?:[^\s"']|"[^"]*"|'[^']*')+"""
_WORDS = re.compile(rf"-\S+\s+(?!-){_WORD}|{_WORD}")  # an option is not parted from its value


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

    def format_help_text(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002 - overrides
        """Write the description."""
        _write_paragraphs(self.help, formatter)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002 - overrides
        """Write the last part."""
        _write_paragraphs(self.epilog, formatter)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write arguments and options, under the headings that they have."""
        _write_parameters(self, ctx, formatter)


class CommandGroup(TyperGroup):
    """A group of commands with such a help."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write options, then the commands."""
        _write_parameters(self, ctx, formatter)
        self.format_commands(ctx, formatter)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write each command with the first paragraph of its help, which is not cut."""
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        rows = [(name, (each.help or "").partition("\n\n")[0]) for name, each in commands if each and not each.hidden]
        with formatter.section("Commands"):
            _write_rows(formatter, rows)


class App(typer.Typer):
    """A group of commands, to which functions are added, with plain help for all; alone, its name shows its help."""

    def __init__(self, **options: Any) -> None:
        settings = {"help_option_names": ["-h", "--help"], "max_content_width": _MAX_WIDTH}
        defaults = {"cls": CommandGroup, "rich_markup_mode": None, "context_settings": settings}
        super().__init__(**{**defaults, **options}, invoke_without_command=True)
        self.callback()(show_help)

    def command(self, name: str | None = None, **options: Any) -> Callable[[_Function], _Function]:
        """As typer's, with `with_option_groups`."""
        add = super().command(name, **{"cls": PlainCommand, **options})
        return lambda function: add(with_option_groups(function))


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
    """The end of a command's help."""
    lines = "\n\n".join(f"`{command}`" for command in commands)
    return f"Example{'s' * (len(commands) > 1)}:\n\n{lines}"


def show_help(ctx: typer.Context) -> None:
    """Show the help of a group whose name stands alone."""
    if ctx.invoked_subcommand is None:
        print(ctx.get_help(), end="")


def _write_paragraphs(text: str | None, formatter: Any) -> None:
    """Write paragraphs; one that is an example, in backticks, can be copied at any width."""
    for paragraph in text.split("\n\n") if text else ():
        formatter.write_paragraph()
        with formatter.indentation():
            if re.fullmatch(r"`[^`]+`", paragraph):
                _write_example(formatter, paragraph.strip("`"))
            else:
                formatter.write_text(paragraph)


def _write_parameters(command: Any, ctx: Any, formatter: Any) -> None:
    sections: dict[str, list[tuple[str, str]]] = {}
    for parameter in command.get_params(ctx):
        record = parameter.get_help_record(ctx)
        if record is None:
            continue
        names, text = record
        if parameter.param_type_name == "argument":
            title, names = "Arguments", names.split()[0]  # without its type
        else:
            title = getattr(parameter, "rich_help_panel", None) or "Options"
            for kind, word in _KINDS:
                names = kind.sub(word, names)
        sections.setdefault(title, []).append((names, _without_bounds(text)))
    for title, rows in sections.items():
        with formatter.section(title):
            _write_rows(formatter, rows)


def _write_rows(formatter: Any, rows: list[tuple[str, str]]) -> None:
    formatter.write_dl(rows, col_max=min(max(formatter.width // 3, _MIN_NAMES), _MAX_NAMES))


def _without_bounds(text: str) -> str:
    """The text of a parameter without the bounds of its number: ``[default: 1; x>=1]``."""
    text = text.replace("\\[", "[")  # as older releases of typer have it for Rich
    head, bracket, extra = text.rpartition("  [")
    if not bracket:
        return "" if _BOUNDS.fullmatch(text.strip("[]")) else text
    facts = [fact for fact in extra.removesuffix("]").split("; ") if not _BOUNDS.fullmatch(fact)]
    return f"{head}  [{'; '.join(facts)}]" if facts else head


def _write_example(formatter: Any, command: str) -> None:
    """Write a command, continued on further lines as a shell reads it."""
    indent = " " * (formatter.current_indent + 2)
    line = indent
    for word in (" ".join(words.split("\n")) for words in _WORDS.findall(command)):
        if line.strip() and len(line) + len(word) + 3 > formatter.width:
            formatter.write(f"{line.rstrip()} \\\n")
            line = f"{indent}  "
        line += f"{word} "
    formatter.write(f"{line.rstrip()}\n")
