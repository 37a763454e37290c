"""The READMEs and guides: links lead somewhere, every folder has one, the first one is short."""

import ast
import importlib
import inspect
import re
from pathlib import Path

import pytest

import wids
from tests.support.house import RINGS
from tests.support.paths import ROOT
from tests.support.readmes import READMES, TEXTS, anchor, anchors, blocks, indented_programs, inline_code, links
from wids.events import parse_size

WIDS = Path(wids.__file__).parent
# Folders of commands: the README of cli/ has their transcripts.
WITHOUT = {f"tools/cli/{name}" for name in ("bench", "cache", "demo", "look", "simulate")}
MAX_LINES = 170
WORKFLOW = ".github/workflows/ci.yml"
BADGES = ("https://img.shields.io/badge/", "https://github.com/wids-project/wids/actions/workflows/")


def leads_somewhere(path, link):
    """Whether a link of a README leads to a file or folder of the checkout, and to a heading that it has."""
    name, _, heading = link.partition("#")
    target = (path.parent / name).resolve() if name else path
    if not target.exists() or not target.is_relative_to(ROOT):
        return False
    return not heading or heading in anchors(target.read_text(encoding="utf-8"))


def test_links_lead_somewhere():
    """To a file or folder of the checkout, and to a heading in it; nothing but badges links out of the checkout."""
    wrong = [
        f"{path.relative_to(ROOT)} links to {link}"
        for path in (*TEXTS, ROOT / ".github" / "CONTRIBUTING.md")
        for link in links(path.read_text(encoding="utf-8"))
        if not (leads_somewhere(path, link) or link.startswith(BADGES))
    ]
    assert not wrong, "\n".join(wrong)


def test_every_folder_has_one():
    """With the modules of it in a table (see test_architecture), so that a change has a place."""
    folders = {path.parent for path in WIDS.rglob("*.py")}
    missing = {folder for folder in folders if not (folder / "README.md").exists()}
    assert {folder.relative_to(WIDS).as_posix() for folder in missing} == WITHOUT
    assert (ROOT / "notebooks" / "README.md").exists()
    assert (ROOT / "benchmarks" / "README.md").exists()


def test_every_readme_is_linked_to():
    """A stranger gets to each of them from the first one."""
    seen, to_see = set(), [ROOT / "README.md"]
    while to_see:
        path = to_see.pop()
        if path not in seen:
            seen.add(path)
            names = (link.partition("#")[0] for link in links(path.read_text(encoding="utf-8")))
            to_see += [(path.parent / name).resolve() for name in names if name.endswith(".md") and "://" not in name]
    assert {*TEXTS} <= seen


def test_the_first_one_is_short():
    """For who is new: the reference is in the folders."""
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= MAX_LINES


def test_the_first_one_sets_up_a_fresh_machine():
    """One command installs and runs the main job, one sets up and runs the tests, which .ci/run takes from here."""
    commands = [command for block in blocks("sh") if block.readme == "README.md" for command in block.commands()]
    assert sum(command.startswith("python3 -m venv") and command.endswith("wids demo") for command in commands) == 1
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert len([line for line in lines if re.match(r"apt-get .*pytest", line)]) == 1


def test_its_badges_are_true():
    """The licence and the Pythons are those of pyproject.toml, which CI runs; they lead to where that is checked."""
    names = ("README.md", "pyproject.toml", WORKFLOW)
    readme, project, workflow = ((ROOT / name).read_text(encoding="utf-8") for name in names)
    pythons = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', project)
    run = re.search(r"^ +python: \[(.*)\]$", workflow, re.MULTILINE)[1]
    assert [each for each in re.findall(r'"(3\.\d+t?)"', run) if not each.endswith("t")] == pythons
    assert f'requires-python = ">={pythons[0]}"' in project
    home = re.search(r'^Homepage = "(.*)"$', project, re.MULTILINE)[1]
    licence = re.search(r'^license = "(.*)"$', project, re.MULTILINE)[1]
    shields, actions = BADGES
    assert actions == f"{home}/actions/workflows/"
    assert re.findall(r"\[!\[.*?\]\((.*?)\)\]\((.*?)\)", readme)[:3] == [
        (f"{actions}ci.yml/badge.svg", f"{actions}ci.yml"),
        (f"{shields}python-{pythons[0]}_to_{pythons[-1]}-blue", "pyproject.toml"),
        (f"{shields}licence-{licence.replace('-', '--')}-blue", "LICENSE"),
    ]


def test_every_public_name_is_described():
    """In some README or guide."""
    text = "\n".join(path.read_text(encoding="utf-8") for path in TEXTS)
    assert [name for name in wids.__all__ if not re.search(rf"\b{name}\b", text)] == []


CALLABLES = {
    name: getattr(wids, name)
    for name in wids.__all__
    # One more name of a sampler, what `mix` makes, an exception.
    if callable(getattr(wids, name)) and name not in ("ShardedSampler", "Mixture", "WidsError")
}
WORDS = "in words"  # the default of a parameter is not one value


def described(made):
    """The parameters that a docstring describes."""
    sections = re.split(r"^Args:\n", inspect.getdoc(made), flags=re.MULTILINE)[1:]
    return {
        word.strip("* ")
        for section in sections
        for words in re.findall(
            r"^ {4}(\*{0,2}\w+(?:, \w+)*): ", re.split(r"^(?=\S)", section, flags=re.MULTILINE)[0], re.MULTILINE
        )
        for word in words.split(",")
    }


def test_a_docstring_describes_each_parameter():
    """Of what users call: all of them, and none that is gone."""
    wrong = []
    for name, made in CALLABLES.items():
        there = set(inspect.signature(made).parameters)
        wrong += [f"{name} does not describe {each}" for each in sorted(there - described(made))]
        wrong += [f"{name} describes {each}, which is gone" for each in sorted(described(made) - there)]
    assert not wrong, "\n".join(wrong)


TABLES = {
    "wids/README.md#the-dataset": ["ShardListDataset"],
    "wids/README.md#the-samplers": [
        "DistributedChunkedSampler",
        "ChunkedSampler",
        "ShardListSampler",
        "MixtureBatchSampler",
    ],
    "wids/core/order/README.md#batches-of-like-length": ["BucketBatchSampler"],
    "wids/writing/README.md#shardwriter": ["ShardWriter"],
}


@pytest.mark.parametrize("place", TABLES)
def test_a_table_of_parameters_says_what_the_signatures_say(place):
    """All names, none that is gone, and the same defaults; one of a class alone stands after its name."""
    rows = [(names(first), default) for first, default, _ in tables(place, columns=3)]
    shown = [name for row, _ in rows for name in row]
    signatures = {made: defaulted(CALLABLES[made]) for made in TABLES[place]}
    assert sorted(shown) == sorted(set().union(*signatures.values()))
    said = {made: {k: v for row, cell in rows for k, v in defaults(row, cell, made).items()} for made in signatures}
    for made, parameters in signatures.items():
        assert {name: said[made][name] for name in parameters} == parameters, made


def tables(place, *, columns):
    """The rows of the tables of parameters below a heading: their cells."""
    readme, _, heading = place.partition("#")
    text = (ROOT / readme).read_text(encoding="utf-8")
    (section,) = [
        part for part in re.split(r"^## ", text, flags=re.MULTILINE) if anchor(part.splitlines()[0]) == heading
    ]
    head = r"^\| parameter " + r"\| [^|\n]* " * (columns - 1) + r"\|\n\|[-|]+\|\n((?:\|.*\n)+)"
    return [
        row.strip("| ").split(" | ") for table in re.findall(head, section, re.MULTILINE) for row in table.splitlines()
    ]


def names(cell):
    """The parameters of a row."""
    return re.findall(r"`(\w+)`", cell)


def defaults(row, cell, made):
    """Parameter -> its default, as a cell says it: one for all, or one for each; another one of a class in brackets."""
    cell, _, others = cell.partition(" (`")
    cell = dict(re.findall(r"(\w+)`: ([^,)]+(?:,\d+)?)", others)).get(made, cell)
    values = cell.split(", ") if len(row) > 1 else [cell]
    values = [cell] * len(row) if len(values) != len(row) else values
    return dict(zip(row, map(value_of, values), strict=True))


def value_of(text):
    """What a default is, unless it is said in words."""
    text = text.strip().strip("`").replace("\N{MINUS SIGN}", "-")
    if re.fullmatch(r"\d+ [KMG]iB", text):
        return parse_size(text)
    try:
        return ast.literal_eval(re.sub(r"(?<=\d),(?=\d{3})", "", text))
    except (SyntaxError, ValueError):
        return WORDS


def defaulted(made):
    """Parameter -> its default, of those that have one, as a table says it."""
    parameters = inspect.signature(made).parameters.values()
    return {each.name: comes_to(each.name, each.default) for each in parameters if each.default is not each.empty}


def comes_to(name, default):
    """A default as a table says it."""
    if name == "tail":  # None leaves it to `drop_last`, which is None, too
        return wids.DistributedChunkedSampler(range(3), num_replicas=1, rank=0).tail
    return WORDS if default is None or default == () else default


LIMITS = [
    row
    for path in READMES
    for table in re.findall(
        r"^\| name \| value \| meaning \|\n\|[-|]+\|\n((?:\|.*\n)+)", path.read_text(encoding="utf-8"), re.MULTILINE
    )
    for row in re.findall(r"^\| `([\w.]+)` \| (.+?) \| .+ \|$", table, re.MULTILINE)
]
UNITS = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "%": 0.01, "µs": 1e-6, "ms": 1e-3, "s": 1}
UNITS |= {"min": 60, "h": 3600, "days": 86_400}


def constant_of(name):
    """The constant of a limit's name: of that module, of its `LIMITS`, or of the limits of a class in it."""
    module, _, attribute = name.rpartition(".")
    inside = Path(*module.split(".")).with_suffix(".py")
    ring = next(ring for ring in (*RINGS, "") if (WIDS / ring / inside).is_file())
    found = importlib.import_module(".".join(filter(None, ("wids", ring, module))))
    owners = [found, getattr(found, "LIMITS", None)]
    owners += [each.limits for each in vars(found).values() if isinstance(each, type) and hasattr(each, "limits")]
    return next(getattr(owner, attribute) for owner in owners if hasattr(owner, attribute))


def test_a_limit_is_the_constant_of_its_name():
    """The value of each has a unit."""
    wrong = []
    for name, value in LIMITS:
        number, _, unit = value.replace(",", "").partition(" ")
        try:
            is_right = float(number) * UNITS[unit] == pytest.approx(constant_of(name))
        except (ImportError, AttributeError, KeyError, StopIteration, ValueError) as error:
            wrong.append(f"{name} is {value!r}: {error!r}")
        else:
            wrong += [] if is_right else [f"{name} is {value!r}, and the constant is {constant_of(name)}"]
    assert not wrong, "\n".join(wrong)


def test_no_limit_stands_twice():
    """Nor do tables end at a row that is not read."""
    assert len({name for name, _ in LIMITS}) == len(LIMITS) >= 50
    rows = sum(
        part.partition("\n#")[0].count("\n| `")
        for path in READMES
        for part in path.read_text(encoding="utf-8").split("\n## Limits and defaults\n")[1:]
    )
    assert rows == len(LIMITS)


def test_programs_that_are_shown_exist():
    """Each with the options that it is shown with."""
    shown = [*indented_programs(), *(code for _, code in inline_code() if re.match(r"python \w+/\w+\.py", code))]
    assert len(shown) > 10
    for command in shown:
        _, program, *words = command.split()
        sources = [path.read_text(encoding="utf-8") for path in (ROOT / program).parent.rglob("*.py")]
        assert (ROOT / program).exists(), command
        for option in (word for word in words if word.startswith("--")):
            name = option.removeprefix("--").replace("-", "_")
            assert any(option in source or name in source for source in sources), command
