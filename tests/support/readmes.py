"""READMEs, and the guides of the site: their blocks, links and headings, for the tests that hold them true."""

from __future__ import annotations

import re
from typing import NamedTuple

from tests.support.paths import ROOT

READMES = sorted(
    path
    for path in ROOT.rglob("README.md")
    if not any(part.startswith(".") or part == "node_modules" for part in path.relative_to(ROOT).parts)
)
# The pages of the documentation site by task.
GUIDES = sorted((ROOT / ".docs" / "guides").glob("*.md"))
TEXTS = [*READMES, *GUIDES]
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_INDENTED = re.compile(r"^    (python \S.*)$", re.MULTILINE)


class Block(NamedTuple):
    """A fenced block: the file it is in, the heading above it, its language and its text."""

    readme: str
    heading: str
    language: str
    text: str

    @property
    def place(self) -> str:
        """How tests name it: ``wids/tools/cli/README.md#packing``."""
        return f"{self.readme}#{anchor(self.heading)}"

    def commands(self) -> list[str]:
        """The commands of a shell block or a transcript, each in one line, without comments."""
        lines = re.sub(r"\\\n\s*", "", self.text).splitlines()
        if self.language == "console":
            return [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
        return [re.sub(r"\s+#\s.*", "", line) for line in lines if line]


def blocks(*languages: str) -> list[Block]:
    """The fenced blocks in these languages of all READMEs and guides."""
    found = []
    for path in TEXTS:
        text = path.read_text(encoding="utf-8")
        for match in _FENCE.finditer(text):
            if match[1] in languages:
                heading = re.findall(r"^#+ (.*)$", _FENCE.sub("", text[: match.start()]), re.MULTILINE)[-1]
                found.append(Block(path.relative_to(ROOT).as_posix(), heading, match[1], match[2]))
    return found


def indented_programs() -> list[str]:
    """The commands of indented blocks that start a Python program: ``python benchmarks/run.py --quick``."""
    texts = (_FENCE.sub("", path.read_text(encoding="utf-8")) for path in TEXTS)
    return [re.split(r"\s{2,}", line)[0] for text in texts for line in _INDENTED.findall(text)]


def inline_code() -> list[tuple[str, str]]:
    """(README, code) of what stands between backticks in running text."""
    return [
        (path.relative_to(ROOT).as_posix(), code)
        for path in TEXTS
        for code in re.findall(r"`([^`\n]+)`", _FENCE.sub("", path.read_text(encoding="utf-8")))
    ]


def anchor(heading: str) -> str:
    """What GitHub makes of a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def anchors(text: str) -> set[str]:
    """The anchors of a README's headings."""
    return {anchor(heading) for heading in re.findall(r"^#+ (.*)$", _FENCE.sub("", text), re.MULTILINE)}


def links(text: str) -> list[str]:
    """The targets of a README's links and pictures."""
    return re.findall(r"\]\(([^)\s]+)\)", _FENCE.sub("", text))
