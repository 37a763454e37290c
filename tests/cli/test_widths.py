"""Commands on terminals of 60, 80 and 120 columns: nothing that a user reads or copies is cut or broken."""

import re
import shlex

import pytest

from tests.support.cli import run_ok, run_on_terminal, whole_command
from wids.tools.cli.format import _fit

WIDTHS = (60, 80, 120)
SIMULATE = ("simulate", "--shards", 1000, "--samples", 1000, "--shard-size", "50MB", "--world-size", 16, "--workers", 8)


def commands(command, words=()):
    """Each command with the words that name it."""
    yield words, command
    for name, each in getattr(command, "commands", {}).items():
        yield from commands(each, (*words, name))


COMMANDS = dict(commands(whole_command()))


def plain(shown):
    """The lines that a terminal shows, without colours; of a line that was overwritten, the last state."""
    lines = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown).replace("\r\n", "\n").split("\n")
    return [line.rpartition("\r")[2].rstrip() for line in lines]


def faults_of_help(command, out, width):
    """What is wrong with the help of a command on a terminal."""
    for each in getattr(command, "commands", {}).values():
        if " ".join((each.short_help or each.help.partition("\n\n")[0]).split()) not in " ".join(out.split()):
            yield f"the text of {each.name} is not whole"
    lines = out.splitlines()
    for line in lines:
        if "…" in line or (len(line) > width and not line.strip().startswith("'")):  # a word of a shell
            yield f"a line is cut or too long: {line}"
    yield from faults_of_options(command, lines, width)
    for found in re.finditer(r"<(int|float|str|list|bool)|x[<>]=|[<>]=?x", out):
        yield f"a programmer's word for a value: {found[0]}"


def faults_of_options(command, lines, width):
    """What is wrong with the lines of its options."""
    names = {name for line in lines for name in re.findall(r"(?<![\w-])--?[a-z][\w-]*", line[:width])}
    begins = [line.split("  ")[1] for line in lines if line.startswith("  ")]
    for parameter in command.params:
        if parameter.param_type_name == "option":
            if not {*parameter.opts, *parameter.secondary_opts} <= names:
                yield f"not all names of {parameter.opts} are whole"
            if not any(parameter.opts[0] in re.split(r"[ ,]+", begin) for begin in begins):
                yield f"{parameter.opts} stand at the beginning of no line"
    texts = [re.match(r" +(?:\S+ )*?\S+  +(?=\S)", line) for line in lines if line.startswith("  -")]
    if max((found.end() for found in texts if found), default=0) > max(width // 3, 14) + 6:
        yield "texts have too little of a line"


@pytest.mark.parametrize("width", WIDTHS)
def test_help_is_whole(width):
    """Names of options stand whole at the beginnings of lines; texts have most of a line; nothing is cut."""
    assert len(COMMANDS) > 25
    wrong = [
        f"wids {' '.join(words)}: {fault}"
        for words, command in COMMANDS.items()
        for fault in faults_of_help(command, run_ok(*words, "--help", env={"COLUMNS": str(width)}), width)
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("width", WIDTHS)
def test_examples_can_be_copied(width):
    """An example has its lines at every width, and a shell reads them as one command."""
    out = run_ok("pack", "--help", env={"COLUMNS": str(width)})
    examples = re.findall(r"^    (wids (?:.*\\\n)*.*)$", out.partition("Examples:")[2], re.MULTILINE)
    [words] = [shlex.split(example.replace("\\\n", " ")) for example in examples if "--where" in example]
    assert words[2:5] == ["train.json", "--where", "(json->>'caption') ilike '%a cat%'"]
    assert words[5:] == ["-o", "cats/train-%06d.tar"]
    assert any("\\\n" in example for example in examples)


@pytest.mark.parametrize("width", WIDTHS)
def test_headers_are_not_broken(width):
    """The widest table has its headers in words; where it has no space for these, a line for each value."""
    code, shown = run_on_terminal(*SIMULATE, env={"COLUMNS": str(width)})
    assert code == 0
    lines = plain(shown)
    assert [line for line in lines if len(line) > width] == []
    headers = ("epoch", "node", "shards fetched", "bytes", "again", "again bytes", "evicted", "samples by ranges")
    if width == 60:
        values = [line for line in lines if re.match(rf"({'|'.join(headers)}|range bytes)  +\S", line)]
        assert len(values) == 2 * 9
        return
    rule = next(k for k, line in enumerate(lines) if line.startswith("───"))
    words = " ".join(lines[rule - 2 : rule]).split()
    assert sorted(words) == sorted(" ".join((*headers, "range bytes")).split())
    assert [len(line.split()) >= 9 for line in lines[rule + 1 : rule + 3]] == [True, True]


def test_texts_give_way_to_numbers():
    """A table is as wide as it is, or as the terminal; numbers and words of headers stay whole."""
    columns, rows = ("shard", ">size in bytes", "what"), [("x" * 40, "123,456,789", "y" * 30)]
    assert _fit(columns, rows, 100) == [40, 13, 30]
    assert _fit(columns, rows, 60) == [21, 13, 22]
    assert _fit(columns, rows, 31) == [8, 11, 8]
    assert _fit(columns, rows, 30) is None
    assert _fit(columns, [], 60) == [5, 13, 4]
