"""The reference: each public name is on a page, with its parameters, errors and an example that runs."""

import ast
import copy
import doctest
import importlib
import inspect
import re
import textwrap
from dataclasses import is_dataclass
from pathlib import Path

import msgspec
import pytest
from PIL import Image

import wids
from tests.support.paths import ROOT
from wids import errors, events, jobs, loaders, otel, testing, types
from wids.core.codecs import decode
from wids.core.collection import stats
from wids.serve import start

REFERENCE = ROOT / ".docs" / "reference"
_DIRECTIVE = re.compile(
    r"\.\. (currentmodule|automodule|autoclass|autofunction|autodata|py:class):: (\S+)((?:\n   :.+)*)"
)
# What raises no error of its own: a hook to override, an attribute that does not exist.
_UNSAID = {"NotImplementedError", "AttributeError", "StopIteration"}
# What the examples read.
SCENE_SAMPLES, SCENE_SHARD = 12, 4


def named_by(module):
    """The public names of a module, as autodoc has them."""
    own = getattr(module, "__all__", None) or [
        name for name, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__
    ]
    return {f"{module.__name__}.{name}" for name in own if not name.startswith("_")}


def documented():
    """The names that the pages of the reference have."""
    found = {"wids.WidsError"} if "``wids.WidsError``" in (REFERENCE / "errors.rst").read_text("utf-8") else set()
    for path in REFERENCE.glob("*.rst"):
        current = ""
        for kind, name, options in _DIRECTIVE.findall(path.read_text("utf-8") + "\n"):
            if kind == "currentmodule":
                current = f"{name}."
            elif kind == "automodule":
                found.add(name)
                if re.search(":members:$", options, re.MULTILINE):
                    found |= named_by(importlib.import_module(name))
            else:
                found.add(name if name.startswith("wids.") else current + name)
    return found


def public():
    """Each name that programs build on -> its value."""
    found = {
        f"{module.__name__}.{name}": getattr(module, name)
        for module in (wids, jobs, testing)
        for name in module.__all__
    }
    for module, root in ((errors, errors.WidsError), (events, events.Event)):
        for name, value in vars(module).items():
            if isinstance(value, type) and issubclass(value, root):
                found[f"{module.__name__}.{name}"] = value
    found["wids.serve.start"] = start
    others = [events.Hook, events.log_event, loaders.ResumableLoader]
    others += [otel.OpenTelemetryHook, otel.observe]
    return found | {f"{value.__module__}.{value.__qualname__}": value for value in others}


PUBLIC = public()
# Name -> the function or class, each once, and the public methods of classes.
CALLABLES = {name: inspect.unwrap(value) for name, value in PUBLIC.items() if inspect.isroutine(value)}
CLASSES = {name: value for name, value in PUBLIC.items() if isinstance(value, type)}
for _class in CLASSES.values():
    _outside = [base for base in _class.__mro__ if not base.__module__.startswith("wids")]
    for _member, _value in inspect.getmembers(
        _class, lambda value: inspect.isfunction(value) or inspect.ismethod(value)
    ):
        _is_own = (getattr(inspect.unwrap(_value), "__module__", None) or "").startswith("wids") and not any(
            hasattr(base, _member) for base in _outside
        )
        if _is_own and not _member.startswith(("_", "test_")):
            CALLABLES[inspect.unwrap(_value).__qualname__] = inspect.unwrap(_value)


def raised(function):
    """The errors that a function raises itself."""
    body = ast.parse(textwrap.dedent(inspect.getsource(function)))
    calls = (node.exc for node in ast.walk(body) if isinstance(node, ast.Raise) and node.exc is not None)
    names = {ast.unparse(call.func if isinstance(call, ast.Call) else call) for call in calls}
    return {name for name in names if name[0].isupper()} - _UNSAID


def takes(function):
    """The names of a function's parameters."""
    return [name for name in inspect.signature(function).parameters if name not in ("self", "cls")]


def test_each_public_name_is_on_a_page():
    """With the signature and the text of its docstring."""
    others = {"wids.lightning.DataModule", "wids.hf.ResumeCallback"}  # to import these would slow later forks
    wrong = {*PUBLIC, *others} - documented()
    assert not wrong, "on no page:\n" + "\n".join(sorted(wrong))


def test_types_have_a_door():
    """`wids.types` has those of the reference, and no other."""
    text = (REFERENCE / "types.rst").read_text(encoding="utf-8")
    shown = set(re.findall(r"autoclass:: wids\.[\w.]*\.(\w+)$", text, re.MULTILINE))
    for names in re.findall(r"^   wids\.[\w.]+((?: \w+)+)$", text, re.MULTILINE):
        shown.update(names.split())
    assert shown == set(dir(types)) >= set(types.__all__)
    assert all(hasattr(types, name) for name in types.__all__)
    assert types.Stats is stats.Stats
    with pytest.raises(AttributeError, match="for type checkers: import it under `if TYPE_CHECKING"):
        _ = types.Transforms
    with pytest.raises(AttributeError, match=r"'wids\.types' has no attribute 'Shard'"):
        _ = types.Shard


def unlisted(parameters, listed):
    """The parameters that a section of a docstring does not describe."""
    return [each for each in parameters if not re.search(rf"^    [\w\*, ]*\b{each}\b.*:", listed, re.MULTILINE)]


def unsaid_by_function(function):
    """What the docstring of a function lacks."""
    text = inspect.getdoc(function)
    if not text:
        return ["a docstring"]
    lacking = unlisted(takes(function), text.partition("Args:\n")[2])
    return lacking if "Raises:\n" in text else [*lacking, *raised(function)]


def unsaid_by_class(kind):
    """What the docstring of a class lacks."""
    text = inspect.getdoc(kind)
    if not text:
        return ["a docstring"]
    if issubclass(kind, events.Event):
        return []  # the text has its fields
    lacking = []
    init = next((vars(base)["__init__"] for base in kind.__mro__ if "__init__" in vars(base)), None)
    if inspect.isfunction(init) and init.__module__.startswith("wids"):
        if not issubclass(kind, errors.WidsError):
            listed = re.split("(?:Args|Attributes):\n", text, maxsplit=1)[-1]
            lacking += unlisted(takes(inspect.unwrap(init)), listed)
        if "Raises:\n" not in text and not is_dataclass(kind):
            lacking += raised(init)
    fields = vars(kind).get("__annotations__", ()) if issubclass(kind, msgspec.Struct) else ()
    return lacking + [each for each in fields if not re.search(rf"\b{each}\b", text.partition("Attributes:\n")[2])]


def test_functions_say_what_they_take_and_raise():
    """Each parameter by its name, and that there are errors."""
    wrong = [f"{name} lacks {each}" for name, value in CALLABLES.items() for each in unsaid_by_function(value)]
    assert not wrong, "\n".join(wrong)


def test_classes_say_what_they_take_and_raise():
    """The parameters of the constructor, or the fields of a struct."""
    wrong = [f"{name} lacks {each}" for name, kind in CLASSES.items() for each in unsaid_by_class(kind)]
    assert not wrong, "\n".join(wrong)


def make_scene():
    """What the examples read, in the working directory."""
    for name, count in (("train", SCENE_SAMPLES), ("books", SCENE_SAMPLES // 2)):
        with wids.ShardWriter(f"{name}-%06d.tar", samples=SCENE_SHARD) as writer:
            for number in range(count):
                writer.write({"__key__": f"{number:04d}", ".txt": f"text {number}", ".cls": number % 3})
    for name in ("photos/cat/1.jpg", "photos/dog/2.jpg"):
        (path := Path(name)).parent.mkdir(parents=True)
        Image.new("RGB", (8, 8)).save(path)


@pytest.mark.parametrize(
    ("module", "name"), [*((wids, name) for name in wids.__all__), *((jobs, name) for name in jobs.__all__)]
)
def test_examples(module, name, tmp_path, monkeypatch):
    """Each public name has one, and it prints what it shows."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(decode, "_registry", copy.copy(decode._registry))
    make_scene()
    example = doctest.DocTestParser().get_doctest(
        getattr(module, name).__doc__, {"wids": wids, "jobs": jobs}, name, None, None
    )
    assert example.examples
    printed = []
    result = doctest.DocTestRunner(verbose=False).run(example, out=printed.append)
    assert not result.failed, "".join(printed)
