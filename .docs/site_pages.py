"""READMEs as pages at the addresses of their folders, their links to files, and links of types in signatures."""

from __future__ import annotations

import ast
import builtins
import os
import re
import sys
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from docutils import nodes
from sphinx import addnodes
from sphinx.project import Project
from sphinx.util.nodes import make_refnode

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from sphinx.addnodes import pending_xref
    from sphinx.application import Sphinx
    from sphinx.environment import BuildEnvironment

HERE = Path(__file__).parent
PACKAGE = HERE.parent / "wids"
MODEL = HERE.parent / "tests" / "model"
# Pictures of other servers, which the site does not load: the line of badges.
_BADGES = re.compile(r"^\[!\[[^]]*\]\(https:.*\n\n", re.MULTILINE)
_LINK = re.compile(r"\]\((?!\w+:|#|/)([^)\s#]+)(#[^)\s]*)?\)")
_TOP = ("class", "exception", "function", "type", "data")
_SEARCHES = re.compile(r"<!-- search: (.*?) -->\s*", re.DOTALL)
_PICTURES = (".png", ".jpg", ".svg")
# Defaults that begin with a name: `arguments.MAX_ERRORS`, `int(1e12)`, `Session(hooks=())`.
_NAMED = re.compile(r"(= ?)([A-Za-z_][\w.]*(?:\((?:[^()]|\(\))*\))?)(?=[,)])")
# A type with its check: `Annotated[str, msgspec.Meta(min_length=1)]`.
_CHECKED = re.compile(r"(?:~[\w.]+\.)?Annotated\[(~?[\w.]+(?:\[~?[\w.]+\])?), [\w.]+\([^()]*\)\]")
_LONG = 10_000  # numbers from here on have separators


class Pages(Project):
    """The pages: ``wids/jobs/README.md`` is ``wids/jobs/index``, ``.docs/reference/x.rst`` is ``reference/x``."""

    def path2doc(self, filename: str | os.PathLike[str]) -> str | None:
        """The name of the page that is made of a file; None: it is no page."""
        name = super().path2doc(filename)
        if name is None:
            return None
        path = PurePosixPath(name)
        if path.name == "README":
            path = path.with_name("index")
        if path.parts[0] == HERE.name:
            path = path.relative_to(HERE.name)
        return path.as_posix()


def _use_pages(app: Sphinx) -> None:
    app.project = app.env.project = Pages(app.srcdir, app.config.source_suffix)


def _prepare(app: Sphinx, docname: str, content: list[str]) -> None:
    """Give the first page the table of pages in place of badges, pages its titles, other links the repository."""
    source = app.env.doc2path(docname)

    def lead(link: re.Match[str]) -> str:
        path = Path(os.path.normpath(source.parent / link[1]))
        if path.parent == MODEL:  # a page prints it
            page = HERE / "reference" / f"specification_{path.stem}.rst"
            return f"]({os.path.relpath(page, source.parent)})"
        is_page = app.project.path2doc(path) in app.project.docnames
        if is_page or path.suffix in _PICTURES or not path.exists():
            return link[0]  # Sphinx warns of a file that is missing
        return f"]({_address(app, path)}{link[2] or ''})"

    table = (HERE / "pages.md").read_text(encoding="utf-8")
    if source.suffix != ".rst":
        content[0] = _LINK.sub(lead, content[0])
    if docname == app.config.root_doc:
        content[0] = _BADGES.sub("", content[0]) + "\n" + table
    elif (title := re.search(rf"^(.+) <{re.escape(docname)}>$", table, re.MULTILINE)) is not None:
        content[0] = re.sub(r"\A# (wids\S*)\n(\n<!-- .* -->\n)?", rf"# {title[1]}\n\2\n`\1`\n", content[0])


def _address(app: Sphinx, path: Path) -> str:
    """Where a file or folder of the checkout is in the repository."""
    kind = "tree" if path.is_dir() else "blob"
    return f"{app.config.repository_url}/{kind}/main/{path.relative_to(HERE.parent).as_posix()}"


def _read_names() -> dict[str, set[str]]:
    """Each name that a module imports or makes a type -> where it is from; annotations have the name alone."""
    found: dict[str, set[str]] = {}
    for path in PACKAGE.rglob("*.py"):
        module = ".".join(path.relative_to(HERE.parent).with_suffix("").parts)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            for name, origin in _names_of(node, module):
                found.setdefault(name, set()).add(origin)
    return found


def _names_of(node: ast.AST, module: str) -> Iterator[tuple[str, str]]:
    """(name, where it is from) of what a statement of a module imports or makes."""
    if isinstance(node, ast.ImportFrom | ast.Import):
        for alias in node.names:
            origin = f"{node.module}.{alias.name}" if isinstance(node, ast.ImportFrom) else alias.name
            yield alias.asname or alias.name, origin
    elif isinstance(node, ast.ClassDef):
        yield node.name, f"{module}.{node.name}"
    elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
        name = ast.unparse(node.target if isinstance(node, ast.AnnAssign) else node.targets[0])
        if ast.unparse(node.value).startswith("TypeVar("):
            yield name, "typing.TypeVar"
        elif ast.unparse(node.value).startswith("Literal[") or ast.unparse(node).startswith(f"{name}: TypeAlias"):
            yield name, f"{module}.{name}"


_NAMES = _read_names()
_PACKAGES = {origin.partition(".")[0] for origins in _NAMES.values() for origin in origins} - {"wids"}


def _find(app: Sphinx, env: BuildEnvironment, node: pending_xref, text: nodes.TextElement) -> nodes.Element | None:
    """A name of ours that is written without its module: its page; what is inside: its source."""
    if node.get("refdomain") != "py":
        return None
    target = node["reftarget"].removesuffix("()")
    objects = env.domains["py"].objects
    head, _, rest = target.partition(".")
    wanted = {target, *(f"{origin}.{rest}".rstrip(".") for origin in _NAMES.get(head, ()))}
    found = {name for name in objects if name in wanted or (name.endswith(f".{target}") and "." in target)}
    found |= {name for name in objects if name.rpartition(".")[2] == target and objects[name].objtype in _TOP}
    if found:
        name = min(found, key=lambda name: (name not in wanted, len(name)))
        at = objects[name]
        return make_refnode(app.builder, node["refdoc"], at.docname, at.node_id, text, name)
    for name in sorted(wanted):
        parts = name.split(".")
        for length in range(len(parts), 1, -1) if parts[0] == "wids" else ():
            path = PACKAGE.joinpath(*parts[1:length]).with_suffix(".py")
            if path.is_file():
                return nodes.reference("", "", text, refuri=_address(app, path), internal=False)
    outside = sorted(name for name in wanted if name.partition(".")[0] in _PACKAGES)
    if outside:
        node["reftarget"] = outside[-1]  # for the lists of names of other projects
    return None


def _is_outside(_: Sphinx, __: object, node: pending_xref) -> bool | None:
    """No warning for names of other packages: the site has no pages of them."""
    return (node.get("refdomain") == "py" and node["reftarget"].partition(".")[0] in _PACKAGES) or None


def _sign(_: Sphinx, *args: Any) -> tuple[str, str | None] | None:
    """Signatures that parse as Python and show values.

    A default that is made anew for each object has none, and one that is a name or a call in the source is its value.
    """
    _, _, made, _, signature, returns = args
    if signature is None:
        return None
    names = vars(sys.modules.get(getattr(made, "__module__", None) or "", builtins))
    signature = _CHECKED.sub(r"\1", signature.replace("<factory>", "..."))
    return _NAMED.sub(lambda default: default[1] + _value(default[2], names), signature), returns


def _value(default: str, names: Mapping[str, Any]) -> str:
    """A default as a reader knows it: a number, a text, or an object by its class alone if it is as that makes it."""
    if default.startswith(("math.", "slice(")) or default in ("None", "True", "False"):
        return default
    value = eval(default, dict(names))  # noqa: S307 - of the source, in its module
    if isinstance(value, int) and value >= _LONG:
        return f"{value:_}"
    if isinstance(value, int | float | str | tuple):
        return repr(value)
    if value != type(value)():
        raise ValueError(f"{default}: {value!r} is no value for a signature")
    return f"{type(value).__name__}()"


def _color(app: Sphinx, doctree: nodes.document) -> None:
    """Color the cells of notebooks as IPython's, which have lines of a shell."""
    if app.env.doc2path(app.env.docname).suffix == ".ipynb":
        for block in doctree.findall(nodes.literal_block):
            if block.get("language") in ("python", "ipython"):
                block["language"] = "ipython3"


def _type_attributes(_: Sphinx, *args: Any) -> None:
    """Put the types of attributes into their signatures: napoleon writes them below the texts."""
    lines: list[str] = args[-1]
    text = "\n".join(lines)
    text = re.sub(
        r"^(\.\. attribute:: \w+\n)((?:(?!\.\. ).*\n)*?)   :type: (.*)$",
        r"\1   :type: \3\n\2",
        text,
        flags=re.MULTILINE,
    )
    lines[:] = text.split("\n")


def _note_parameters(app: Sphinx, doctree: nodes.document) -> None:
    """Give each parameter a place of its own, which links and the search find."""
    for entry in doctree.findall(addnodes.desc):
        signature = next(entry.findall(addnodes.desc_signature))
        if entry.get("domain") != "py" or not signature.get("fullname"):
            continue
        owner = ".".join(filter(None, (signature.get("module"), signature["fullname"])))
        for field in entry[-1].findall(nodes.field):
            if field.parent.parent is not entry[-1] or field[0].astext() != "Parameters":
                continue
            items = [*field[1].findall(nodes.list_item)] or [field[1]]
            for item in items:
                name = next(item.findall(addnodes.literal_strong)).astext().lstrip("*")
                item["ids"].append(f"{owner}({name})")
                if entry["objtype"] in ("class", "function"):  # those of methods would come before them
                    app.env.domains["std"].note_object("parameter", f"{owner}.{name}", item["ids"][0])


def _note_searches(_: Sphinx, doctree: nodes.document) -> None:
    """Let a search for words of a comment, ``<!-- search: proxy, certificate -->``, lead to its section."""
    for raw in [*doctree.findall(nodes.raw)]:
        if found := _SEARCHES.fullmatch(raw.astext()):
            section = raw.parent
            place = "" if isinstance(section.parent, nodes.document) else section["ids"][0]
            words = (word.strip() for word in found[1].split(","))
            raw.replace_self(addnodes.index(entries=[("single", word, place, "main", None) for word in words]))


def _keep_builtins(_: Sphinx, doctree: nodes.document) -> None:
    """Let ``bytes`` in a signature be Python's type, and not an attribute of that name."""
    for node in doctree.findall(addnodes.pending_xref):
        if node.get("refdomain") == "py" and hasattr(builtins, node["reftarget"]):
            for name in ("py:module", "py:class", "refspecific"):
                node.attributes.pop(name, None)


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect it all."""
    app.add_config_value("repository_url", "", "env", types=str)
    app.connect("builder-inited", _use_pages, priority=0)
    app.connect("source-read", _prepare)
    app.connect("doctree-read", _color)
    app.connect("doctree-read", _note_parameters)
    app.connect("doctree-read", _note_searches)
    app.connect("doctree-read", _keep_builtins)
    app.add_object_type("parameter", "parameter")
    app.connect("autodoc-process-docstring", _type_attributes, priority=600)  # after napoleon
    app.connect("autodoc-process-signature", _sign)
    app.connect("missing-reference", _find, priority=0)
    app.connect("warn-missing-reference", _is_outside)
    return {"parallel_read_safe": True, "version": "1"}
