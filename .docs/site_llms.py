"""``llms.txt`` of the table of pages (https://llmstxt.org), and ``llms-full.txt`` with guides and reference."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from docutils import nodes
from docutils.io import StringOutput
from sphinx import addnodes
from sphinx.builders.text import TextBuilder
from sphinx.writers.text import TextWriter

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sphinx.application import Sphinx

# Parts of the table of pages that the full text leaves out.
_BRIEF = ("Notebooks", "Specifications", "The project")


def _sections(app: Sphinx) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """(caption, [(title, name of the page)]) of each part of the table of pages."""
    for tree in app.env.get_doctree(app.config.root_doc).findall(addnodes.toctree):
        yield tree["caption"], [(title or app.env.titles[name].astext(), name) for title, name in tree["entries"]]


def _summary(app: Sphinx, name: str) -> str:
    """The first sentence of a page."""
    paragraph = next(app.env.get_doctree(name).findall(nodes.paragraph), None)
    text = "" if paragraph is None else " ".join(paragraph.astext().split())
    return re.split(r"(?<=[.:])\s+(?=[A-Z`])", text)[0]


def _write(app: Sphinx, exception: Exception | None) -> None:
    if exception is not None or app.builder.name != "html":
        return
    root, base = app.config.root_doc, app.config.html_baseurl
    lines = [f"# {app.config.project}", "", f"> {_summary(app, root)}"]
    full = [app.env.doc2path(root).read_text(encoding="utf-8")]
    texts = TextBuilder(app, app.env)
    texts.init()
    for caption, pages in _sections(app):
        lines += ["", f"## {caption}", ""]
        for title, name in pages:
            lines.append(f"- [{title}]({base}{app.builder.get_target_uri(name)}): {_summary(app, name)}")
            source = app.env.doc2path(name)
            if caption not in _BRIEF and source.suffix == ".md":
                full.append(source.read_text(encoding="utf-8"))
            elif caption not in _BRIEF:
                writer = TextWriter(texts)
                writer.write(app.env.get_doctree(name), StringOutput(encoding="unicode"))
                full.append(writer.output)
    for name, content in (("llms.txt", "\n".join(lines) + "\n"), ("llms-full.txt", "\n\n".join(full))):
        Path(app.outdir, name).write_text(content, encoding="utf-8")


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect it."""
    app.connect("build-finished", _write)
    return {"parallel_read_safe": True, "version": "1"}
