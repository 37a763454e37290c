"""The house rules that code review would otherwise have to hold: imports go one way, the face stays light."""

import ast
import functools
import io
import json
import os
import re
import subprocess
import sys
import tokenize
from pathlib import Path

import pytest
from torch.utils.data import DataLoader

import wids
from tests.support import house
from tests.support.clocks import PATIENCE_SECONDS
from tests.support.house import RINGS
from tests.support.shards import write_index
from wids.core.order import permutation

ROOT = Path(wids.__file__).parent
# First words of a docstring, or a comment, that leave out what it is about: a verb or a noun says more.
EMPTY_STARTS = {
    "As",
    "How",
    "Of",
    "See",
    "That",
    "They",
    "Those",
    "What",
    "When",
    "Where",
    "Whether",
    "Which",
    "Who",
    "Why",
}
# Names that anything could have: a type, or a noun, says more.
EMPTY_NAMES = {"facts", "found", "given", "own"}
# `found` is an attribute of all errors of wids, which programs read.
NAMED_SO = {("errors.py", "found")}
# From the bottom up. A room may import those of the rows above it, and what `BESIDE` adds.
CORE = (
    ("files",),
    ("place", "order"),
    ("shard",),
    ("transport",),
    ("tables",),
    ("index", "codecs"),
    ("cache",),
    ("readers",),
    ("collection",),
    ("prefetch",),
)
FACE = (("dataset", "windows", "samplers", "batch_samplers", "packs", "mixtures", "loaders", "loader_threads"),)
WINGS = (
    ("hub",),
    ("jobs",),
    ("columns",),
    ("writing",),
    ("testing", "lightning", "hf", "otel", "types"),
    ("legacy",),
)
TOOLS = (
    ("simulate",),
    ("summary", "describe", "key_search"),
    ("serve",),
    ("cli",),
)
LAYERS = (("errors",), ("events",), *CORE, *FACE, *WINGS, *TOOLS)
BESIDE = {
    "batch_samplers": {"samplers"},
    "packs": {"samplers", "batch_samplers"},
    "loaders": {"samplers", "loader_threads"},
    "dataset": {"columns", "windows"},
}
# These only name what other rooms have, for users: `wids.jobs.pack`.
DOORS = {ROOT / "__init__.py", ROOT / "jobs" / "__init__.py"}
LEVELS = {part: level for level, parts in enumerate(LAYERS) for part in parts}
PURE = {"order"}
IMPURE = {"os", "io", "threading", "fcntl", "mmap", "socket", "torch", "pathlib", "tempfile", "subprocess", "shutil"}
# decoders.py loads .pt members, encoders.py saves them, jpeg.py decodes to tensors, the demo trains and bench loads:
# inside functions, when it comes to it.
LAZY_TORCH = re.compile(
    r"core/codecs/(?:decoders|encoders|jpeg)\.py|tools/cli/demo/\w+\.py|tools/cli/(?:bench/rank|saved_state)\.py"
)
TESTS = ROOT.parent / "tests"
# Files of tests that are not named after a module: what they are about has no module of its own.
WHOLE = {
    "architecture": "what holds for all modules",
    "readmes": "the texts",
    "readme_code": "the programs in them",
    "readme_commands": "the commands in them",
    "troubleshooting": "the messages in them",
    "docs": "the reference, and the examples of docstrings",
    "site": "the documentation site as it is built",
    "tools": "tests/support",
    "tiers": "which tests run when",
    "resume": "a sampler's state, through all of order",
    "trips": "the way to a sample, through all of the core",
    "goldens": "files and states that earlier versions wrote",
    "promises": "what the README promises, from outside",
    "shared_cache": "a cache directory of several users",
    "store_model": "all of a cache directory, against a model",
    "process_ends": "the end of a process, whatever it has open",
    "cli": "what holds for all commands",
    "extras": "all commands and doors without the packages of an extra",
    "paths": "all parameters that are paths",
    "outputs": "the files that all commands write",
    "widths": "all commands on narrow terminals",
    "legacy": "the names of wids 0.1",
    "original_programs": "the calls of programs for it",
}


def modules() -> list[Path]:
    """Every module but the face, which checks itself below, and the command line's other door."""
    return sorted(path for path in ROOT.rglob("*.py") if path.parent != ROOT or not path.name.startswith("__"))


# Of the table of sizes.
ROW = re.compile(r"^\| ([*`][\w/*]+`?) \| \**(\d+)\** \| \**([\d,]+)\** \|$", re.MULTILINE)


def part_of(path: Path) -> str:
    """The room that a module belongs to: a folder, or a module beside them."""
    return room_in(".".join(path.relative_to(ROOT.parent).with_suffix("").parts))


def room_in(name: str) -> str:
    """The room in an absolute name: ``cache`` in ``wids.core.cache.store``; "": none."""
    words = [word for word in name.split(".")[1:] if word not in RINGS]
    return words[0] if words else ""


@functools.cache
def parsed(path: Path) -> ast.Module:
    """The syntax tree of a file, which no test changes."""
    return ast.parse(path.read_text(encoding="utf-8"))


@functools.cache
def imports_of(path: Path, *, is_top_only: bool, has_types: bool = False) -> set[str]:
    """Absolute names of the modules that a file imports; ``has_types``: also those that only type checkers see."""
    found = set()

    def visit(node: ast.AST) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test) and not has_types:
                continue
            if is_top_only and isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
                continue
            if isinstance(child, ast.Import):
                found.update(alias.name for alias in child.names)
            elif isinstance(child, ast.ImportFrom):
                found.update(f"{'.' * child.level}{child.module or ''}.{alias.name}" for alias in child.names)
            visit(child)

    visit(parsed(path))
    return found


def may_import(part: str, name: str) -> bool:
    """Whether modules of a part may import a name: from their own part and the layers below it, and absolutely."""
    words = [word for word in name.split(".") if word not in RINGS]
    other = "legacy" if len(words) > 1 and words[1].startswith("wids") else room_in(name)
    if words[0] != "wids" or other in ("", part, "__version__", "__init__"):
        return words[0] != ""
    is_beside = {other, ".".join(words[1:3])} & BESIDE.get(part, set())
    return bool(is_beside) or LEVELS.get(other, len(LAYERS)) < LEVELS.get(part, len(LAYERS))


def test_imports_go_one_way():
    """A module imports only from its own room and from the rooms below it, types included."""
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in modules()
        if path not in DOORS
        for name in sorted(imports_of(path, is_top_only=False, has_types=True))
        if not may_import(part_of(path), name)
    ]
    assert not wrong, "\n".join(wrong)


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """The groups of nodes that can reach each other."""
    reach = {name: set(others) for name, others in graph.items()}
    for middle in graph:
        for name in graph:
            if middle in reach[name]:
                reach[name] |= reach[middle]
    groups = {tuple(sorted({name} | {other for other in reach[name] if name in reach[other]})) for name in graph}
    return sorted(list(group) for group in groups if len(group) > 1)


def test_there_is_no_circle():
    """Neither of files nor of rooms, types and lazy imports included."""
    paths = {path: ".".join(path.relative_to(ROOT.parent).with_suffix("").parts) for path in modules()}
    files = {name: set[str]() for name in paths.values()}
    rooms = {room_in(name): set[str]() for name in paths.values()}
    for path, name in paths.items():
        for imported in imports_of(path, is_top_only=False, has_types=True):
            owner = paths.get(module_of(imported))
            if owner not in (None, name):
                files[name].add(owner)
            if owner is not None and room_in(owner) != room_in(name) and path not in DOORS:
                rooms[room_in(name)].add(room_in(owner))
    assert circles(files) == []
    assert circles(rooms) == []


def test_the_table_of_sizes():
    """CONTRIBUTING has the rings and folders there are, and their sizes within a twentieth."""
    shown, found = (
        {name: (int(modules), int(lines.replace(",", ""))) for name, modules, lines in re.findall(ROW, text)}
        for text in ((ROOT.parent / ".github/CONTRIBUTING.md").read_text("utf-8"), "\n".join(house.table()))
    )
    assert shown.keys() == found.keys()
    far = {
        name for name in found if any(abs(a - b) > 1 + b / 20 for a, b in zip(shown[name], found[name], strict=True))
    }
    assert not far, "print it anew: python -m tests.support.house"


def test_each_random_stream_is_given_out_once():
    """The registry of `wids.core.order.permutation` is whole: its numbers differ, and every draw names one of them."""
    names = next(
        node.targets[0]
        for node in parsed(ROOT / "core" / "order" / "permutation.py").body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Tuple)
    )
    streams = {name.id: getattr(permutation, name.id) for name in names.elts}
    assert len(set(streams.values())) == len(streams)
    drawn = set()
    for path in modules():
        for node in ast.walk(parsed(path)):
            for word in node.keywords if isinstance(node, ast.Call) else ():
                if word.arg == "stream" and not (isinstance(word.value, ast.Name) and word.value.id == "stream"):
                    assert isinstance(word.value, ast.Name), f"{path}:{word.value.lineno}"
                    drawn.add(word.value.id)
    assert drawn <= set(streams)


def test_what_simulates_does_so_with_the_real_rules():
    """simulate/ imports errors and what is pure: the order and the decisions that the real cache goes by."""
    for path in sorted((ROOT / "tools" / "simulate").glob("*.py")):
        for name in imports_of(path, is_top_only=False):
            owner = module_of(name)
            assert owner is None or room_in(name) in ("errors", "simulate") or is_pure(owner), (path, name)


def module_of(name: str) -> Path | None:
    """The module that an absolute name is of; None: it is not ours."""
    words = name.split(".")
    places = [ROOT.parent.joinpath(*words).with_suffix(".py"), ROOT.parent.joinpath(*words[:-1]).with_suffix(".py")]
    return next((place for place in places if words[0] == "wids" and place.is_file()), None)


def is_pure(path: Path) -> bool:
    """Whether a module says that it does no I/O: its docstring has a sentence that begins with Pure."""
    return part_of(path) in PURE | {"simulate"} or re.search(
        r"(^|\. )Pure\b", ast.get_docstring(parsed(path)), re.MULTILINE
    )


def test_pure_modules_do_no_io():
    """They import nothing that does I/O or starts processes, also through others, not even inside a function."""
    ours = {path.relative_to(ROOT.parent).with_suffix("").as_posix().replace("/", "."): path for path in modules()}
    pure = {name for name, path in ours.items() if is_pure(path)}
    assert len(pure) > 50
    wrong = []
    for name in sorted(pure):
        imported = imports_of(ours[name], is_top_only=False)
        used = {next((each for each in (one, one.rpartition(".")[0]) if each in ours), None) for one in imported}
        calls = {node.func.id for node in ast.walk(parsed(ours[name])) if is_plain_call(node)}
        others = {one.split(".")[0] for one in imported} & IMPURE | used - pure - {None, "wids.errors", "wids.events"}
        wrong += [f"{name} imports {other}" for other in sorted(others)]
        wrong += [f"{name} calls {call}()" for call in sorted(calls & {"open", "print", "input", "exec", "eval"})]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("name", [".github/CONTRIBUTING.md", "wids/README.md"])
def test_pictures_of_the_layers(name):
    """They have each part once, and none above what imports it."""
    rows = re.findall(
        r"(?m)^ {4,}(?:(?:tools|wings|face|core|ground) {2,})?(\S+(?:(?:,| \|) \S+)*)(?: {2,}.*)?$",
        (ROOT.parent / name).read_text(encoding="utf-8"),
    )
    parts = [[part for side in row.split(" | ") for part in side.split(", ")] for row in rows]
    shown = [part for row in parts for part in row if part in LEVELS]
    assert sorted(shown) == sorted(LEVELS)
    assert [LEVELS[part] for part in shown] == sorted((LEVELS[part] for part in shown), reverse=True)


def is_plain_call(node):
    """Whether a syntax node is a call of a bare name."""
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name)


def test_options_of_stores_travel_in_a_session():
    """Users name ``storage_options`` to these; all else is handed a `wids.core.transport.session.Session`."""
    named = set()
    for path in modules():
        for node in ast.walk(parsed(path)):
            name = node.arg if isinstance(node, (ast.arg, ast.keyword)) else getattr(node, "attr", None)
            if name == "storage_options" or (isinstance(node, ast.Name) and node.id == "storage_options"):
                named.add(path.relative_to(ROOT).as_posix())
    users = {
        "dataset.py",
        "core/collection/arguments.py",
        "writing/map.py",
        "writing/writer.py",
        "testing/sources.py",
        "core/transport/session.py",
    }
    of_datasets = {
        "tools/serve/__init__.py",
        "tools/serve/served.py",
        "tools/cli/serve.py",
        "tools/cli/index.py",
        "tools/cli/view.py",
        "tools/cli/bench/rank.py",
    }
    assert named == users | of_datasets


def test_torch_only_in_datasets_and_samplers():
    """Only these import torch at module level; elsewhere it loads where a user asks for what needs it."""
    at_top, anywhere = set(), set()
    for path in modules():
        name = path.relative_to(ROOT).as_posix()
        if any(word.split(".")[0] == "torch" for word in imports_of(path, is_top_only=True)):
            at_top.add(name)
        if any(word.split(".")[0] == "torch" for word in imports_of(path, is_top_only=False)):
            anywhere.add(name)
    faces = {"batch_samplers", "dataset", "lightning", "loader_threads", "loaders", "mixtures", "packs", "samplers"} | {
        "windows"
    }
    assert at_top == {f"{name}.py" for name in faces}
    assert not [name for name in anywhere - at_top if not LAZY_TORCH.fullmatch(name)]


# What is no file or answer of somebody else, or a member of a sample, whose errors the decoders name: the module that
# parses it by itself.
OWN_JSON = {
    "core/files/json_text.py": "the parser",
    "core/codecs/decoders.py": "members",
    "columns/extract.py": "members",
    "columns/kinds.py": "values that were just made",
    "columns/sql.py": "an answer of DuckDB in this process",
    "tools/cli/demo/__init__.py": "reports of the demo's ranks",
    "tools/cli/demo/train.py": "arguments from the demo",
    "tools/cli/bench/__init__.py": "reports of the command's ranks",
    "tools/cli/bench/rank.py": "arguments from the command",
}


def test_json_of_others_is_parsed_in_one_place():
    """Files and answers may hold anything: their parser has one error, which is typed; a bare one ends a training."""
    found = set()
    for path in modules():
        for node in ast.walk(parsed(path)):
            name = ast.unparse(node) if isinstance(node, ast.Attribute) else ""
            if re.fullmatch(r"json\.loads?|json\.JSONDecoder|msgspec\.json\.(decode|Decoder)", name):
                found.add(path.relative_to(ROOT).as_posix())
    assert found == set(OWN_JSON)


def test_kinds_of_values_have_their_article():
    """Messages name the type of a value by `wids.errors.a_kind`: "an int", and not "a int"."""
    for path in modules():
        found = re.findall(r"\ban? \{(?:type\(|_kind\()[^}]*\}", path.read_text(encoding="utf-8"))
        assert not found, f"{path}: {found}"


def test_only_the_command_line_prints():
    """print() stands in cli/ and in the original's widsindex only."""
    for path in modules():
        if part_of(path) in ("cli", "legacy"):
            continue
        assert not [node for node in ast.walk(parsed(path)) if is_plain_call(node) and node.func.id == "print"], path


def test_named_tuples_are_not_generic():
    """Python 3.10 cannot import one that is; neither ruff nor mypy reports it."""
    for path in modules():
        for node in ast.walk(parsed(path)):
            bases = [ast.unparse(base) for base in node.bases] if isinstance(node, ast.ClassDef) else []
            assert bases[:1] != ["NamedTuple"] or len(bases) == 1, f"{path}: {node.name}"


def test_public_names():
    """The names that users build on; adding one is a decision, losing one breaks programs."""
    assert sorted(wids.__all__) == [
        "BucketBatchSampler",
        "ChunkedSampler",
        "DistributedChunkedSampler",
        "MemberFile",
        "Mixture",
        "MixtureBatchSampler",
        "PackSampler",
        "SampleDecoder",
        "ShardListDataset",
        "ShardListSampler",
        "ShardWriter",
        "ShardedSampler",
        "WidsError",
        "Windows",
        "balance",
        "create_cleanup_background_process",
        "errors",
        "events",
        "keep_most_recent_files",
        "lazy",
        "mix",
        "pack_collate",
        "register_decoder",
        "resumable",
        "rng",
        "seeded",
    ]
    for name in wids.__all__:
        assert getattr(wids, name) is not None
    assert wids.__version__
    assert set(wids.__all__) <= set(dir(wids))


# What every dataset has of wids 0.1, and what it has besides.
OF_0_1 = """add_transform base cache cache_dir check_cache_misses close cum_lengths dataset_name get_shard get_stats
    lengths localname shards spec total_length transformations"""
DATASET = """column_names contents exclude fields find_rows fingerprint keys locate prefetch preview query read
    read_column read_parts save select split stats unseen where windows with_columns with_fields
    with_table"""
MIXTURE = "add_transform close datasets lengths names save stats weights"
OF_TORCH = "cumsum cummulative_sizes cumulative_sizes"  # of every ConcatDataset
SAMPLER = """chunksize dataset dslength_per_replica epoch lanes load_state_dict num_replicas num_valid ranges rank
    reshuffle reweight rng sample_seeds seed set_epoch shuffle shufflefirst state_dict tail window"""
DISTRIBUTED = "drop_last num_samples total_size"
LOADER = "batches_done close load_state_dict set_epoch state_dict"  # besides what its DataLoader has
WINDOWS = "add_transform anchors close dataset samples stats"
BATCHES = "batch_size load_state_dict reweight sampler set_epoch state_dict"


@pytest.mark.parametrize(
    ("make", "names"),
    [
        (lambda dataset: dataset, f"{OF_0_1} {DATASET}"),
        (lambda dataset: dataset.select([0]), f"{OF_0_1} {DATASET}"),
        (lambda dataset: dataset.windows(2), WINDOWS),
        (lambda dataset: wids.mix([dataset]), f"{MIXTURE} {OF_TORCH}"),
        (wids.ChunkedSampler, SAMPLER),
        (wids.ShardListSampler, SAMPLER),
        (wids.DistributedChunkedSampler, f"{SAMPLER} {DISTRIBUTED}"),
        (lambda dataset: wids.MixtureBatchSampler(wids.mix([dataset]), 1), BATCHES),
        (lambda dataset: wids.resumable(DataLoader(dataset, sampler=wids.ChunkedSampler(dataset))), LOADER),
    ],
    ids=[
        *(
            "dataset",
            "view",
            "windows",
            "mixture",
            "ChunkedSampler",
            "ShardListSampler",
            "DistributedChunkedSampler",
            "batches",
        ),
        "resumable",
    ],
)
def test_public_names_of_what_users_make(make, names):
    """Of a dataset, a mixture and each sampler: adding one is a decision, losing one breaks programs.

    What samplers, mixtures and prefetching need of a dataset is in `SamplerInterface`, and not among them.
    """
    made = make(wids.ShardListDataset([("a.tar", 3)]))
    assert sorted(name for name in dir(made) if not name.startswith("_")) == sorted(names.split())


def test_unknown_name_is_an_attribute_error():
    """A misspelt name fails as everywhere in Python, so hasattr and getattr defaults work."""
    with pytest.raises(AttributeError, match="'wids' has no attribute 'ShardListDataSet'"):
        _ = wids.ShardListDataSet


def run_fresh(code: str) -> dict:
    """Run code in a fresh interpreter; its last line of output is JSON."""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=True
    )
    return json.loads(done.stdout.splitlines()[-1])


def test_import_brings_no_heavy_module_and_touches_no_disk():
    """`import wids` loads neither torch nor PIL nor fsspec nor numpy, and opens no file but Python's own modules."""
    seen = run_fresh(
        "import sys, json\n"
        "sys.dont_write_bytecode = True  # where modules are new, their bytecode would be written now\n"
        "import importlib.util  # the machinery itself opens files once\n"
        "opened = []\n"
        "def hook(event, args):\n"
        "    if event in ('open', 'os.mkdir', 'os.listdir', 'os.scandir', 'socket.connect', 'subprocess.Popen'):\n"
        "        opened.append((event, str(args[0])))\n"
        "sys.addaudithook(hook)\n"
        "import wids\n"
        "names = 'torch', 'PIL', 'fsspec', 'numpy', 'msgspec', 'typer', 'http.server', 'wids.testing'\n"
        "names += 'pyarrow', 'duckdb'\n"
        "heavy = [m for m in names if m in sys.modules]\n"
        "print(json.dumps({'heavy': heavy, 'opened': opened}))\n"
    )
    assert seen["heavy"] == []
    # The import system itself lists directories and reads modules; nothing else may happen.
    others = [
        (event, name)
        for event, name in seen["opened"]
        if not (event == "open" and name.endswith((".py", ".pyc"))) and event != "os.listdir"
    ]
    assert others == []


# Packages of stores, commands and columns.
APART = {"gcsfs", "s3fs", "huggingface_hub", "typer", "duckdb", "pyarrow", "starlette"}


@pytest.mark.parametrize("workers", [0, 2])
def test_a_training_loads_what_it_uses(tmp_path, workers):
    """Fewer than 140 modules of ours, in the process and in its workers, and none of a wing or a tool."""
    index = write_index(tmp_path, (4, 4, 4))
    seen = run_fresh(
        "import json, sys\n"
        "from torch.utils.data import DataLoader\n"
        "import wids\n"
        "def ours(_):\n"
        "    return [name for name in sys.modules if name.split('.')[0] == 'wids']\n"
        f"dataset = wids.ShardListDataset({index!r})\n"
        "sampler = wids.ChunkedSampler(dataset, shuffle=True)\n"
        f"how = {{'num_workers': {workers}, 'multiprocessing_context': {'fork' if workers else None!r}}}\n"
        "loader = DataLoader(dataset, 2, sampler=sampler, collate_fn=ours, **how)\n"
        "loader = wids.resumable(loader)\n"
        "names, batches = set(), 0\n"
        "for found in loader:\n"
        "    names.update(found)\n"
        "    batches += 1\n"
        "    state = loader.state_dict()\n"
        "packages = sorted({name.split('.')[0] for name in sys.modules})\n"
        "print(json.dumps({'batches': batches, 'names': sorted(names.union(ours(None))), 'packages': packages}))\n"
    )
    assert seen["batches"] == 6
    assert len(seen["names"]) < 140, len(seen["names"])
    apart = {room for row in (*WINGS, *TOOLS) for room in row}
    assert [name for name in seen["names"] if room_in(name) in apart] == []
    assert APART.isdisjoint(seen["packages"])


def test_legacy_names_import_as_submodules():
    """The original's submodules import by their old names, as one module each."""
    seen = run_fresh(
        "import json, wids.wids, wids.wids_cleanup, wids.wids_decode, wids.wids_dl, wids.wids_index\n"
        "import wids.wids_lru, wids.wids_mmtar, wids.wids_specs\n"
        "same = wids.wids.ShardListDataset is wids.ShardListDataset\n"
        "print(json.dumps({'same': same, 'name': wids.wids_mmtar.MMIndexedTar.__module__}))\n"
    )
    assert seen == {"same": True, "name": "wids.wids_mmtar"}


def test_modules_say_what_they_are_for():
    """Every module opens with a docstring."""
    for path in modules():
        assert ast.get_docstring(parsed(path)), path


def docstrings(path: Path) -> list[str]:
    """The docstrings of a module, and of what it defines."""
    owners = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    return [ast.get_docstring(node) or "" for node in ast.walk(parsed(path)) if isinstance(node, owners)]


def test_docstrings_begin_with_a_verb_or_a_noun():
    """In all of wids: a reader need not go on to learn what a thing is."""
    wrong = [
        f"{path.relative_to(ROOT)}: {text.splitlines()[0]}"
        for path in sorted(ROOT.rglob("*.py"))
        for text in docstrings(path)
        if (word := re.match(r"\W*(\w+)", text)) and word[1] in EMPTY_STARTS
    ]
    assert not wrong, "\n".join(wrong)


def test_arguments_and_attributes_have_a_line_each():
    """In all of wids."""
    sections = re.compile(r"^(?:Args|Attributes):\n((?: .*\n?|\n)*)", flags=re.MULTILINE)
    several = re.compile(r"^    (?:\w+, .*: .*|\w+: .*\. [a-z_]\w*: .*)", flags=re.MULTILINE)
    wrong = [
        f"{path.relative_to(ROOT)}: {line}"
        for path in sorted(ROOT.rglob("*.py"))
        for text in docstrings(path)
        for section in sections.findall(text)
        for line in several.findall(section)
    ]
    assert not wrong, "\n".join(wrong)


def comments(path: Path) -> list[str]:
    """The comments of a module that have lines of their own, each as its first line."""
    first, before = [], 0
    for token in tokenize.generate_tokens(io.StringIO(path.read_text(encoding="utf-8")).readline):
        line = token.start[0]
        if token.type == tokenize.COMMENT and token.line.lstrip().startswith("#"):
            first += [token.string] if line != before + 1 else []
            before = line
    return first


def test_comments_begin_with_a_verb_or_a_noun():
    """In the face and the core."""
    wrong = [
        f"{path.relative_to(ROOT)}: {text}"
        for path in sorted([*ROOT.glob("*.py"), *(ROOT / "core").rglob("*.py")])
        for text in comments(path)
        if (word := re.match(r"\W*(\w+)", text)) and word[1] in EMPTY_STARTS
    ]
    assert not wrong, "\n".join(wrong)


def names_in(path: Path) -> set[str]:
    """The names that a module gives: of variables, parameters, attributes, functions and classes."""
    names = set()
    for node in ast.walk(parsed(path)):
        if isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Store):
            names.add(node.id if isinstance(node, ast.Name) else node.attr)
        elif isinstance(node, ast.arg):
            names.add(node.arg)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names.add(node.name)
    return names


def test_names_say_what_they_are_of():
    """In the face and the core, nothing has a name that could be anything's."""
    wrong = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in sorted([*ROOT.glob("*.py"), *(ROOT / "core").rglob("*.py")])
        for name in sorted(names_in(path))
        if name.strip("_") in EMPTY_NAMES and (path.name, name) not in NAMED_SO
    ]
    assert not wrong, "\n".join(wrong)


def test_a_text_is_no_place():
    """In the core, a `place` is a `Place`, or a position: a URL or path that is not parsed has another name."""
    wrong = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in sorted((ROOT / "core").rglob("*.py"))
        for node in ast.walk(parsed(path))
        if ast.unparse(getattr(node, "annotation", None) or ast.Constant(0)) in ("str", "str | None")
        and (node.arg if isinstance(node, ast.arg) else ast.unparse(getattr(node, "target", node))) == "place"
    ]
    assert not wrong, "\n".join(wrong)


def test_a_long_temporary_directory(tmp_path):
    """Sockets have short paths: where $TMPDIR is too long for those of workers, the suite uses /tmp."""
    directory = tmp_path / ("x" * 80)
    directory.mkdir()
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-p",
            "no:cacheprovider",
            "tests/io/collection/test_stats.py",
            "-k",
            "workers and fork]",
        ],
        cwd=ROOT.parent,
        env={**os.environ, "TMPDIR": str(directory)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    assert os.listdir(directory) == []


def test_a_folder_s_readme_names_its_modules():
    """Each of them, and none that is gone: a stranger finds the place of a change there."""
    wrong = []
    for path in sorted(ROOT.rglob("README.md")):
        table = path.read_text(encoding="utf-8").partition("| module | |\n")[2].partition("\n\n")[0]
        named = set(re.findall(r"^\| `(\w+)` \|", table, flags=re.MULTILINE))
        there = {module.stem for module in path.parent.glob("*.py")} - {"__init__", "__main__"}
        wrong += [f"{path.relative_to(ROOT)} does not name {name}" for name in sorted(there - named)]
        wrong += [f"{path.relative_to(ROOT)} names {name}, which is gone" for name in sorted(named - there)]
    assert not wrong, "\n".join(wrong)


def has_its_module(path: Path) -> bool:
    """Whether a file of tests is named after a module of its folder, or after what `WHOLE` has."""
    name, folder = path.stem.removeprefix("test_"), path.parent.relative_to(TESTS)
    if folder.parts[0] == "cli":
        cli = ROOT / "tools" / "cli"
        places = [*cli.rglob(f"{name}.py"), cli / name / "__init__.py"]
    else:
        inside = Path(*folder.parts[1:])
        places = [ROOT / ring / inside / f"{name}.py" for ring in ("", *RINGS)]
        if not any(place.parent.is_dir() for place in places):
            return False
    return any(place.is_file() for place in places) or name in WHOLE or name.endswith("_conformance")


def test_tests_follow_their_modules():
    """The tests of FOLDER/MODULE.py are in FOLDER/test_MODULE.py; those of a folder of commands may be in one file."""
    files = [path for kind in ("unit", "io", "cli") for path in sorted((TESTS / kind).rglob("test_*.py"))]
    assert len(files) > 100
    wrong = [
        f"{path.relative_to(TESTS)}: no such folder or module; name the file after the module that it tests"
        for path in files
        if not has_its_module(path)
    ]
    assert not wrong, "\n".join(wrong)


def test_behaviours_without_a_module_have_tests():
    """The list of them names none that is gone."""
    assert not [name for name in WHOLE if not [*TESTS.rglob(f"test_{name}.py")]]


def test_clocks_are_put_in_place_as_values():
    """No test replaces a time in a module of ours by its name: `set_limits` puts a whole value in its place."""
    named = re.compile(
        r"""setattr\([\w.]+, ["']\w*(SECONDS|_NS)["']|^ *[\w.]+\.\w*(SECONDS|_NS)\b.* = """, re.MULTILINE
    )
    assert [str(path) for path in TESTS.rglob("*.py") if named.search(path.read_text("utf-8"))] == []
