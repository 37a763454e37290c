"""The messages that the guide to trouble explains are those of the code, and torch's and Lightning's are theirs."""

from __future__ import annotations

import ast
import importlib.util
import re
from pathlib import Path

import pytest
import torch

import wids
from tests.support.paths import ROOT

WIDS = Path(wids.__file__).parent
SEEN = {  # below, in a test that meets it
    "'int' object is not iterable",
    "holds ... samples, and the index says ...",
    "cannot decode ... of sample ...",
}
PYTHONS = {"This process (pid=...) is multi-threaded, use of fork() may lead to deadlocks in the child"}  # written in C
OTHERS = {  # message -> the module that writes it
    "default_collate: batch must contain tensors, numpy arrays, numbers, dicts or lists; found ...": (
        "torch.utils.data._utils.collate"
    ),
    "DataLoader worker (pid(s) ...) exited unexpectedly": "torch.utils.data.dataloader",
    "your dataloader is not resumable": "lightning.pytorch.loops.training_epoch_loop",
}


def quoted():
    """The messages of the guide: headings, and lines below them with others of the same cause."""
    text = (ROOT / ".docs" / "guides" / "troubleshooting.md").read_text(encoding="utf-8")
    lines = re.findall(r"^(?:### (?=`)|Also: )(.*)$", text.split("\n## Without a message\n")[0], re.MULTILINE)
    return [message for line in lines for message in re.findall(r"`(.*?)`(?=, |\.?$)", line)]


def texts(path):
    """All texts of a module; what is formatted into them is "..."."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.JoinedStr):
            yield "".join(part.value if isinstance(part, ast.Constant) else "..." for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield re.sub(r"%[sdrg]|%,d|\{\}|\{0\}", "...", node.value)


def is_written(message, among):
    """Whether a text has the message, with anything in the place of its dots."""
    pattern = re.compile(".*".join(map(re.escape, message.strip(". ").split("..."))), re.DOTALL)
    return any(pattern.search(text) for text in among)


def test_messages_are_written():
    """A search for the printed text finds the section."""
    ours = [text for path in WIDS.rglob("*.py") for text in texts(path)]
    messages = [message for message in quoted() if message not in PYTHONS | SEEN | OTHERS.keys()]
    wrong = [each for each in messages if not is_written(each, ours)]
    assert not wrong, "nothing writes:\n" + "\n".join(wrong)


@pytest.mark.outside
def test_messages_of_others_are_written():
    """By the modules that are named for them."""
    wrong = [
        message
        for message, name in OTHERS.items()
        if message in quoted() and not is_written(message, [*texts(Path(importlib.util.find_spec(name).origin))])
    ]
    assert not wrong, "nothing writes:\n" + "\n".join(wrong)


@pytest.fixture
def dataset(tmp_path):
    """A sample with a label and a damaged image."""
    with wids.ShardWriter(str(tmp_path / "a-%06d.tar")) as writer:
        writer.write({"__key__": "a", ".cls": 0, ".jpg": b"no image"})
    return wids.ShardListDataset(str(tmp_path / "a.json"))


def meets(message):
    """A block that ends in an error with the message."""
    return pytest.raises((TypeError, wids.WidsError), match=".*".join(map(re.escape, message.split("..."))))


def test_batch_sampler_that_is_none(dataset):
    """Python's own message, of torch's loader, which gives single indices to a dataset that takes a batch."""
    loader = torch.utils.data.DataLoader(dataset, batch_sampler=wids.ChunkedSampler(dataset))
    with meets("'int' object is not iterable"):
        next(iter(loader))


def test_shards_that_are_not_as_they_should(dataset):
    """Messages that are put together of parts."""
    with meets("cannot decode ... of sample ..."):
        dataset[0]
    wrong = wids.ShardListDataset([(dataset.shards[0]["url"], 2)], base=None)
    with meets("holds ... samples, and the index says ..."):
        wrong[0]


def test_the_sections_are_there():
    """Those that people look for."""
    assert len(quoted()) > 25
    assert {*PYTHONS, *SEEN, *OTHERS} <= {*quoted()}
