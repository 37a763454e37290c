"""The READMEs: links lead somewhere, every folder has one, the first one is short."""

import ast
import re
from pathlib import Path

import pytest

import wids
from tests.support.paths import ROOT
from tests.support.readmes import READMES, anchors, blocks, indented_programs, inline_code, links

WIDS = Path(wids.__file__).parent
# Folders of commands: the README of cli/ has their transcripts.
WITHOUT = {"cli/cache", "cli/demo", "cli/index", "cli/look", "cli/simulate"}
MAX_LINES = 230


@pytest.mark.parametrize("path", READMES, ids=lambda path: str(path.relative_to(ROOT).parent))
def test_links_lead_somewhere(path):
    """To a file or folder of the checkout, and to a heading in it; nothing links out of the checkout."""
    for link in links(path.read_text(encoding="utf-8")):
        name, _, heading = link.partition("#")
        target = (path.parent / name).resolve() if name else path
        assert target.exists(), link
        assert target.is_relative_to(ROOT), link
        if heading:
            assert heading in anchors(target.read_text(encoding="utf-8")), link


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
            to_see += [(path.parent / name).resolve() for name in names if name.endswith("README.md")]
    assert seen == set(READMES)


def test_the_first_one_is_short():
    """For who is new: the reference is in the folders."""
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= MAX_LINES


def test_the_first_one_sets_up_a_fresh_machine():
    """One command installs and runs the main job, one sets up and runs the tests, which .ci/run takes from here."""
    commands = [command for block in blocks("sh") if block.readme == "README.md" for command in block.commands()]
    assert sum(command.startswith("python3 -m venv") and command.endswith("wids demo") for command in commands) == 1
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert len([line for line in lines if re.match(r"apt-get .*pytest", line)]) == 1


def test_every_public_name_is_described():
    """In some README."""
    text = "\n".join(path.read_text(encoding="utf-8") for path in READMES)
    assert [name for name in wids.__all__ if not re.search(rf"\b{name}\b", text)] == []


@pytest.mark.parametrize("name", ["ShardListDataset", "DistributedChunkedSampler"])
def test_every_parameter_is_described(name):
    """In the tables of wids/README.md, but for the samplers' parameters that only the original had."""
    module = {"ShardListDataset": "dataset.py", "DistributedChunkedSampler": "samplers.py"}[name]
    tree = ast.parse((WIDS / module).read_text(encoding="utf-8"))
    body = next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name).body
    init = next(node for node in body if isinstance(node, ast.FunctionDef) and node.name == "__init__")
    parameters = {argument.arg for argument in init.args.kwonlyargs}
    cells = re.findall(r"^\| (`.*?) \|", (WIDS / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    described = {word for cell in cells for word in re.findall(r"`(\w+)`", cell)}
    assert parameters - described <= {"shufflefirst"}


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
