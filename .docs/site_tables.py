"""Parts of the reference that are made of the code: the commands, the types of arguments, events and metrics."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import logging
import re
from typing import TYPE_CHECKING, Any

import msgspec
import typer
import typer.main
from docutils import nodes
from sphinx.util.docutils import SphinxDirective

from wids import errors, events
from wids.otel import _COUNTERS, _SPANS
from wids.tools import cli
from wids.tools.cli.cache.daemon import _HELP

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from sphinx.application import Sphinx


class _Recorder:
    """Takes the parts of a command's help in the place of the formatter that writes them to a terminal."""

    width, current_indent = 100, 0

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.examples: list[str] = []
        self.sections: dict[str, list[tuple[str, str]]] = {}
        self._title = ""

    def write_paragraph(self) -> None:
        """A paragraph begins."""

    @contextlib.contextmanager
    def indentation(self) -> Iterator[None]:
        """Its text follows."""
        yield

    def write_text(self, text: str) -> None:
        """A paragraph."""
        self.texts.append(text)

    def write(self, line: str) -> None:
        """A line of an example."""
        self.examples.append(line.removeprefix("  "))

    @contextlib.contextmanager
    def section(self, title: str) -> Iterator[None]:
        """Rows follow."""
        self._title = title
        yield

    def write_dl(self, rows: Sequence[tuple[str, str]], **_: Any) -> None:
        """Names and texts."""
        self.sections.setdefault(self._title, []).extend(rows)


def _text(text: str) -> list[nodes.Node]:
    """Words with code between backticks."""
    parts = re.split(r"(`+)(.+?)\1", " ".join(text.split()))
    found: list[nodes.Node] = []
    for words, _, code in zip(parts[::3], [*parts[1::3], ""], [*parts[2::3], ""], strict=True):
        found += [nodes.Text(words), *([nodes.literal(code, code)] if code else [])]
    return found


def _table(heads: Sequence[str], rows: Iterable[Sequence[list[nodes.Node]]]) -> nodes.table:
    """A table of cells of inline nodes."""
    body = [[nodes.Text(head)] for head in heads]
    group = nodes.tgroup("", *(nodes.colspec(colwidth=1) for _ in heads), cols=len(heads))
    for kind, lines in ((nodes.thead, [body]), (nodes.tbody, rows)):
        group += kind("", *(_row(line) for line in lines))
    return nodes.table("", group)


def _row(cells: Sequence[list[nodes.Node]]) -> nodes.row:
    return nodes.row("", *(nodes.entry("", nodes.paragraph("", "", *cell)) for cell in cells))


def _codes(names: Iterable[str]) -> list[nodes.Node]:
    found: list[nodes.Node] = []
    for name in names:
        found += [nodes.Text(", ")] * bool(found) + [nodes.literal(name, name)]
    return found


class CommandList(SphinxDirective):
    """Every command with what it is for."""

    def run(self) -> list[nodes.Node]:
        """Make the table."""
        rows = [
            [self.parse_inline(f":ref:`wids {name} <wids-{name}>`")[0], _text(purpose)]
            for name, (_, purpose) in cli.COMMANDS.items()
        ]
        return [_table(("command", "what it is for"), rows)]


class Commands(SphinxDirective):
    """Commands with their arguments, options and examples, as their ``--help`` has them."""

    required_arguments = 1
    final_argument_whitespace = True

    def run(self) -> list[nodes.Node]:
        """Make a section for each command."""
        names = self.arguments[0].split()
        for name in names:
            self.env.domains["std"].note_hyperlink_target(
                f"wids-{name}", self.env.docname, f"wids-{name}", f"wids {name}"
            )
        return [section for name in names for section in self._describe(cli.load(name), f"wids {name}")]

    def _describe(self, command: Any, name: str) -> list[nodes.Node]:
        context = typer.Context(command, info_name=name)
        help_ = _Recorder()
        command.format_help_text(context, help_)
        described, help_.texts = help_.texts, []
        command.format_epilog(context, help_)
        commands = help_.sections.pop("Commands", [])
        command.format_options(context, help_)
        help_.sections.pop("Commands", commands)
        section = nodes.section("", nodes.title(name, name), ids=[name.replace(" ", "-")], names=[name])
        section += [nodes.paragraph("", "", *_text(text)) for text in described]
        usage = " ".join(["$", name, *command.collect_usage_pieces(context)])
        section += nodes.literal_block(usage, usage, language="console")
        for title, rows in help_.sections.items():
            section += nodes.paragraph("", "", nodes.strong(title, title))
            section += nodes.definition_list("", *(self._option(name, *row) for row in rows), classes=["options"])
        if help_.examples:
            code = "".join(help_.examples)
            section += nodes.paragraph("", "", nodes.strong("Examples", "Examples"))
            section += nodes.literal_block(code, code, language="sh")
        parts = [section]
        for word, each in getattr(command, "commands", {}).items():
            parts += self._describe(each, f"{name} {word}") if not each.hidden else []
        return parts

    def _option(self, command: str, names: str, text: str) -> nodes.definition_list_item:
        term = nodes.term("", "", nodes.literal(names, names))
        place = f"{command.replace(' ', '-')}-{re.split(r'[ ,]', names)[0]}"
        term["ids"].append(place)
        for option in re.findall(r"(?<!\S)--?[\w-]+", names):
            self.env.domains["std"].note_object("cmdoption", f"{command} {option}", place)
        return nodes.definition_list_item("", term, nodes.definition("", nodes.paragraph("", "", *_text(text))))


class Types(SphinxDirective):
    """What each named type of arguments stands for: lines of a module and its names."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        """Make an entry for each name."""
        lines = []
        for line in self.content:
            module, *names = line.split()
            source = inspect.getsource(importlib.import_module(module))
            for name in names:
                pattern = rf"((?:^ *# .*\n)*)^ *{name}(?:: TypeAlias)? = (?:\(\n *)?(.*)$"
                found = re.search(pattern, source, re.MULTILINE)
                if found is None:
                    raise self.error(f"{module} has no type {name}")
                words = " ".join(re.findall(r"# (.*)", found[1]))
                value = re.sub(r'^"(.*)"$', r"\1", found[2])
                lines += [f".. py:type:: {module}.{name}", f"   :canonical: {value}", "", f"   {words}", ""]
        return self.parse_text_to_nodes("\n".join(lines))


class Errors(SphinxDirective):
    """Each error with its bases, its kind and its meaning."""

    def run(self) -> list[nodes.Node]:
        """Make the table."""
        rows = [
            [
                self.parse_inline(f"`~wids.errors.{kind.__name__}`")[0],
                self.parse_inline(inspect.getdoc(kind).partition("\n\n")[0].replace("\n", " "))[0],
                _codes(base.__name__ for base in kind.__bases__),
            ]
            for kind in vars(errors).values()
            if isinstance(kind, type) and issubclass(kind, errors.WidsError)
        ]
        return [_table(("exception", "when", "is a"), rows)]


class Events(SphinxDirective):
    """Each event with its line in the log, its counts, its span."""

    def run(self) -> list[nodes.Node]:
        """Make the table."""
        kinds = [
            kind
            for kind in vars(events).values()
            if isinstance(kind, type) and issubclass(kind, events.Event) and kind is not events.Event
        ]
        rows = [
            [
                self.parse_inline(f"`~wids.events.{kind.__name__}`")[0],
                [nodes.Text(logging.getLevelName(kind.level))],
                _codes(name for name, _ in _example(kind).counts()),
                _codes([_SPANS[kind]] if kind in _SPANS else ()),
            ]
            for kind in kinds
        ]
        return [_table(("event", "line in the log", "fields of stats() that it adds to", "span"), rows)]


def _example(kind: type[events.Event]) -> events.Event:
    """An event with some value in each field."""
    values = {"str": "x", "int": 1, "float": 1.0, "bool": True}
    fields = {field.name: values.get(getattr(field.type, "__name__", ""), 1) for field in msgspec.structs.fields(kind)}
    return kind(**fields)


class Metrics(SphinxDirective):
    """The counters of OpenTelemetry and Prometheus."""

    def run(self) -> list[nodes.Node]:
        """Make the table."""
        rows = [
            [_codes([f"wids.{name}"]), [nodes.Text("OpenTelemetry")], [nodes.literal(unit, unit)], _text(words)]
            for name, (unit, words) in _COUNTERS.items()
        ]
        rows += [
            [_codes([f"wids_{name}"]), [nodes.Text("Prometheus")], [], _text(words)] for name, words in _HELP.items()
        ]
        return [_table(("metric", "of", "unit", "value"), rows)]


def setup(app: Sphinx) -> dict[str, Any]:
    """Add the directives."""
    for name, directive in (
        ("wids-command-list", CommandList),
        ("wids-commands", Commands),
        ("wids-types", Types),
        ("wids-errors", Errors),
        ("wids-events", Events),
        ("wids-metrics", Metrics),
    ):
        app.add_directive(name, directive)
    return {"parallel_read_safe": True, "version": "1"}
