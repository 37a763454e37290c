"""The notebooks run as they stand, and are what their paired text says; the programs beside them do what they say."""

import json
import re
import sys
import tempfile
from pathlib import Path

import jupytext
import nbformat
import pytest

from tests.e2e import notebook_checks
from tests.support import paths
from tests.support.launch import PROGRAMS, environment, run_all

pytestmark = pytest.mark.outside

HERE = paths.ROOT / "notebooks"
NOTEBOOKS = sorted(path.stem for path in HERE.glob("*.ipynb"))
TEXTS = sorted(path.stem for path in (HERE / "text").glob("*.py"))
# Notebook -> the parameters that it runs with: less training, other numbers of ranks. Those without a row run as they
# stand; with -m long the others do so, too, as they did when their outputs were made.
SHORT = {
    "choosing-samples": {"epochs": 2},
    "coming-from-webdataset": {"epochs": 2},
    "equal-batches": {"world_size": 5, "batch_size": 10, "workers": 3, "passes": 4},
    "looking-at-data": {"most_steps": 40},
    "train-hugging-face": {"epochs": 2},
    "train-lightning": {"epochs": 3, "end_at": [1, 13]},
    "train-ray": {"epochs": 2, "lost_at": [1, 10]},
    "train-resnet-ddp": {"epochs": 1, "batch_size": 60},
    "video": {"episodes": 60},
    "training-without-epochs": {"steps": 30, "required_accuracy": 0.0, "world_size": 1, "resume_world_size": 1},
}
CASES = [
    *((name, SHORT.get(name, {})) for name in NOTEBOOKS),
    *(pytest.param((name, {}), marks=pytest.mark.long) for name in SHORT),
]


def words(case):
    """How a case is called."""
    name, parameters = case
    return "-".join([name, *(f"{key}={value}" for key, value in parameters.items())])


@pytest.fixture
def here():
    """What a notebook's processes see: their own temporary directory, and the commands of this environment first."""
    # Short: sockets lie deep in it, and their names have 107 bytes at most.
    with tempfile.TemporaryDirectory(prefix="nb-", dir="/tmp", ignore_cleanup_errors=True) as place:
        yield environment(
            PATH=f"{Path(sys.executable).parent}:{environment()['PATH']}",
            TMPDIR=place,
            RAY_TMPDIR=place,
            IPYTHONDIR=f"{place}/ipython",
            JUPYTER_RUNTIME_DIR=place,
        )


@pytest.mark.parametrize("case", CASES, ids=words)
def test_runs(case, here, tmp_path):
    """A notebook runs from its first cell to its last, and its check holds then."""
    name, parameters = case
    notebook = nbformat.read(HERE / f"{name}.ipynb", as_version=4)
    check = f"from tests.e2e import notebook_checks\nnotebook_checks.check({name!r}, globals())"
    notebook.cells.append(nbformat.v4.new_code_cell(check))
    nbformat.write(notebook, tmp_path / "in.ipynb")
    command = [sys.executable, str(PROGRAMS / "run_papermill.py"), tmp_path / "in.ipynb", tmp_path / "out.ipynb"]
    command += ["--cwd", str(HERE), "--kernel", "python3", "--no-progress-bar", "--log-output"]
    for key, value in parameters.items():
        command += ["-y", json.dumps({key: value})]
    run_all([list(map(str, command))], env=here, output=tmp_path / "output.txt")


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_pair(name):
    """A notebook's cells are those of its paired text."""
    notebook = nbformat.read(HERE / f"{name}.ipynb", as_version=4)
    text = jupytext.read(HERE / "text" / f"{name}.py")

    def cells(of):
        return [(cell.cell_type, cell.source.strip(), cell.metadata.get("tags", [])) for cell in of.cells]

    assert cells(notebook) == cells(text), f"run: python notebooks/make.py {name}"


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_form(name):
    """A notebook opens with what it shows and its time, has parameters, was run in order without a fault, is small."""
    path = HERE / f"{name}.ipynb"
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    first, *_ = notebook.cells
    assert first.cell_type == "markdown"
    assert first.source.startswith("# ")
    assert "Takes" in first.source
    assert [cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", [])]
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    outputs = [output for cell in code for output in cell.outputs]
    assert code[-1].outputs, "it ends in something to be seen"
    assert not any(re.search(r"^ *assert\b", cell.source, re.MULTILINE) for cell in code), "checks are in the tests"
    for output in outputs:
        assert output.output_type != "error"
        assert output.get("name") != "stderr", output.text
    raw = path.read_text()
    assert len(raw) < 300_000
    for private in ("/root/", "/home/", "/work/", "site-packages"):
        assert private not in raw


def test_texts():
    """No text is without its notebook, and no notebook without its check."""
    assert TEXTS == NOTEBOOKS
    checks = [name for name in vars(notebook_checks) if name in map(notebook_checks.function_name, NOTEBOOKS)]
    assert len(checks) == len(NOTEBOOKS)
