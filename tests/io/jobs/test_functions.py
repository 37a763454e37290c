"""Functions by name: what can be imported, where modules are found, and when an instance is made."""

import functools
import os
import pickle
import sys
from pathlib import Path

import pytest

from tests.support import mapped
from wids.errors import InputError
from wids.jobs.functions import JobFunction, import_function


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """The working directory, with modules in it; afterwards they are unknown."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    os.mkdir("sub")
    Path("near.py").write_text(
        "def f(sample):\n    return 'near'\nclass C:\n    @staticmethod\n    def g(s):\n        return 1\n"
    )
    Path("sub/deep.py").write_text("import other\ndef f(sample):\n    return other.word\n")
    Path("sub/other.py").write_text("word = 'deep'\n")
    Path("sub/json.py").write_text("def f(sample):\n    return 1\n")
    before = set(sys.modules)
    yield tmp_path
    for name in {"near", "deep", "other"} - before:
        sys.modules.pop(name, None)


def test_places_of_modules(home):
    """Modules of the directory, and files by their paths, with the modules beside them."""
    assert import_function("function", "near:f", directory=os.getcwd())(0) == "near"
    assert import_function("function", "near:C.g", directory=os.getcwd())(0) == 1
    assert import_function("function", "sub/deep.py:f", directory=os.getcwd())(0) == "deep"
    assert import_function("function", f"{home}/near.py:f")(0) == "near"
    assert import_function("function", "os.path:join") is os.path.join


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("near", "AttributeError"),
        ("near:x", "AttributeError: module 'near' has no attribute 'x'"),
        ("nowhere:f", "ModuleNotFoundError: No module named 'nowhere'"),
        ("sub/none.py:f", "ModuleNotFoundError: No module named 'none'"),
        ("sub/json.py:f", "another module is called json; give the file another name"),
        ("ends:f", "SystemExit: 3"),
        ("os:sep", "is not a function, but of type str"),
    ],
)
def test_what_cannot_be_imported(text, words):
    """Is an error that names it."""
    Path("ends.py").write_text("raise SystemExit(3)\n")
    with pytest.raises(InputError, match=words) as refused:
        import_function("function", text, directory=os.getcwd())
    assert str(refused.value).startswith(f"function {text!r}")


def test_names():
    """A function is known by its module and name, however it is given."""
    assert JobFunction("function", "near:f").text == "near:f"
    assert JobFunction("function", mapped.count_letters).text == "tests.support.mapped:count_letters"
    assert JobFunction("function", mapped.Model).text == "tests.support.mapped:Model"
    assert JobFunction("function", mapped.Model()).text == "tests.support.mapped:Model"
    assert JobFunction("function", functools.partial(mapped.count_letters)).text == "tests.support.mapped:count_letters"
    with pytest.raises(InputError, match="write it as module:function"):
        JobFunction("function", "near.py")
    with pytest.raises(InputError, match="function is an int"):
        JobFunction("function", 3)


def test_travels(monkeypatch):
    """A function at the top of a module can be sent to a process, a local one cannot."""
    assert JobFunction("function", mapped.count_letters).travels
    assert JobFunction("function", "near:f").travels
    assert not JobFunction("function", lambda sample: None).travels
    monkeypatch.delattr(sys.modules["__main__"], "__file__", raising=False)
    monkeypatch.setattr(mapped.measure, "__module__", "__main__")
    assert not JobFunction("function", mapped.measure).travels


def test_one_instance_for_each_process(monkeypatch):
    """It is made when it is first used; another process makes its own, and forgets those of earlier jobs."""
    monkeypatch.setenv("WIDS_TEST_LOG", "log")
    function = JobFunction("function", "tests.support.mapped:Model")
    function.check()
    assert not Path("log").exists()
    model = function.get()
    assert function.get() is model
    assert pickle.loads(pickle.dumps(function)).get() is model
    elsewhere = JobFunction("function", mapped.Model)
    monkeypatch.setattr("os.getpid", lambda: 1)
    assert elsewhere.get() is not model
    assert function.get() is not model
    function.release()
    elsewhere.release()
    assert Path("log").read_text().count("\n") == 3


def test_instances_that_cannot_be_made():
    """They are errors of the job, and no samples'."""
    with pytest.raises(InputError, match=r"its instance cannot be made \(RuntimeError: no weights\)"):
        JobFunction("function", mapped.Broken).get()
    with pytest.raises(InputError, match="has no __call__"):
        JobFunction("function", mapped.Mute).get()
