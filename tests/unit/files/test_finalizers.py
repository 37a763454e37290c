"""All that the collector, a signal or a fork may run at any moment, as a list: see `wids.core.files.finalizers`.

A new entry is for whoever has read that rule. An end of a generator counts where its `yield` is within a ``with`` or a
``try``: its callers may abandon it, and then the collector runs it.
"""

import ast
import functools
from pathlib import Path

import wids

ROOT = Path(wids.__file__).parent

# Class -> all that its ``__del__`` calls.
METHODS = {
    "core/readers/arrivals.Arrivals": ["getattr", "is_ending"],
    "core/prefetch/ahead.Ahead": ["self.close"],  # and so `Prefetcher.end`, which puts into a queue
    "loader_threads.ThreadIterator": ["is_ending", "self._work.end"],  # which puts into a queue
    "core/files/open_file.OpenFile": ["finalizers.end", "getattr", "is_ending", "self._begin"],
    "legacy/wids_mmtar.MMIndexedTar": ["getattr", "hasattr", "self.stream.close"],  # of a file that was read
    "core/transport/http.HttpSource": ["getattr", "is_ending", "self.close"],  # and so `call_soon_threadsafe`
    "writing/writer.ShardWriter": ["finalizers.leave"],
}
# Module -> functions that `weakref.finalize` calls.
CALLBACKS = {
    "columns/mapped": ["finalizers.leave"],
    "core/files/shared_arrays": ["_keep", "os.close"],  # nothing, and of a file that was mapped
    "samplers": ["_keep_numbers"],  # changes a list
}
# Generator -> what its end does.
GENERATORS = {
    "core/cache/contents.oldest_first": "puts entries back into a heap",
    "core/cache/directory._list": "closes a listing",
    "tools/cli/cache/listing._sizes_of": "nothing",
    "tools/cli/look/listing._classes": "closes a shard that was read, in a command",
    "tools/cli/look/show._read": "closes a shard that was read, in a command",
    "core/collection/shard_collection.member_tables": "tells the threads of a pool to end",
    "columns/join._reading": "nothing",
    "core/files/holders._list_processes": "nothing",
    "core/files/page_cache._control_groups": "closes a file that was read",
    "core/index/spec._expand": "nothing",
    "jobs/check._problems_beside": "closes a file that was read",
    "jobs/journal.parse_records": "nothing",
    "jobs/runner.run_with": "waits for threads and processes: its callers close it",
    "loaders._deliver": "sets an attribute",
    "core/order/iteration._draw": "calls `Prefetcher.end`, which puts into a queue",
    "tools/serve/places.lines": "nothing",
    "tools/serve/places.read_tables": "tells the threads of a pool to end",
    "tools/simulate/node_cache._list_entries": "puts entries back into a heap",
    "core/transport/pipe._read": "closes a selector",
    "core/transport/stores.stream": "nothing",
    "core/transport/urls.expand": "nothing",
    "writing/map._try": "lets go of a shard, in a command",
    "writing/pack/added.read_each": "nothing",
    "writing/pack/datasets.read_each": "nothing",
    "writing/pack/folders._files": "nothing",
    "writing/pack/folders._names": "closes a listing",
    "writing/pack/listing.read_one_by_one": "nothing",
    "writing/pack/manifest._csv_lines": "nothing",
}
# Module -> handlers of signals: these raise, or note in an attribute that one came.
HANDLERS = {
    "core/cache/cleanup": ["signal.SIG_DFL", "signal.SIG_IGN"],
    "tools/cli/cache/daemon": ["self.take"],
    "tools/cli/signals": ["handler", "self.take"],
    "jobs/processes": ["_end", "handler", "lambda got, _: came.append(got)", "signal.SIG_IGN"],
    "jobs/ray_cluster": ["handler", "signal.default_int_handler"],
}
# Module -> the threads and the pools that it starts, by name (None: the standard one), and which test of
# `tests/io/files/test_finalizers.py` frees things at the steps of each, or why none does.
EPOCH = "test_downloads_go_on_whatever_is_freed_in_their_threads"
EACH_STEP = "test_all_may_be_freed_at_any_step_of_a_thread"
MOMENT = "test_what_runs_for_a_moment_goes_on_whatever_is_freed_in_it"
ENDS = "it waits for the end of another process alone, and then ends this one"
POOL = f"its threads wait as those of the pools of {MOMENT} do: in the standard library alone"
THREADS = {
    "core/readers/arrivals": {"wids-download": EPOCH},
    "core/cache/leases": {"wids-leases": EACH_STEP},
    "core/prefetch/prefetcher": {"wids-prefetch": EPOCH, "wids-prefetch-one": EPOCH},
    "tools/cli/bench/rank": {"wids-parent": ENDS},
    "tools/cli/demo/train": {None: ENDS},
    "tools/cli/look/listed": {"wids-bar": MOMENT},
    "core/collection/batches": {"wids-read": MOMENT},
    "core/collection/shard_collection": {"wids-tables": MOMENT},
    "columns/extract": {"wids-columns": POOL},
    "columns/sql": {"wids-sql": MOMENT},
    "hub/datasets": {"wids-hub": POOL},
    "hub/source": {"wids-hub-api": "it waits for a server alone, in huggingface_hub"},
    "jobs/cache_warm": {"wids-look": POOL},
    "jobs/processes": {"wids-parent": ENDS},
    "jobs/runner": {"wids-job": EACH_STEP},
    "loader_threads": {"wids-loader": MOMENT},
    "core/readers/remote_counts": {"wids-count": MOMENT},
    "tools/serve/fields": {"wids-fields": POOL},
    "tools/serve/overview": {"wids-serve-survey": "it waits for nothing but for locks of a moment"},
    "tools/serve/places": {"wids-serve-keys": POOL},
    "tools/serve/previews": {"wids-previews": POOL},
    "tools/serve/rows": {"wids-serve-tables": POOL},
    "tools/serve/running": {"wids-serve": MOMENT},
    "tools/serve/sample": {"wids-sample": POOL},
    "core/tables/member_tables": {None: POOL},
    "core/transport/filesystems": {"fsspecIO": MOMENT},  # fsspec starts it
    "core/transport/plain_http": {"wids-http": "it waits for a server alone, in the standard library"},
}


@functools.cache
def trees():
    """Module -> its syntax."""
    paths = sorted(ROOT.rglob("*.py"))
    return {str(path.relative_to(ROOT).with_suffix("")): ast.parse(path.read_text("utf-8")) for path in paths}


def calls(*names):
    """(module, call) of each call of a function that is written so."""
    return [
        (module, node)
        for module, tree in trees().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func) in names
    ]


def within(node):
    """The nodes below one, but not those of functions and classes in it."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)):
            yield child
            yield from within(child)


def by_module(pairs):
    """Module -> sorted texts."""
    found = {}
    for module, text in pairs:
        found.setdefault(module, set()).add(text)
    return {module: sorted(texts) for module, texts in found.items()}


def test_methods_of_objects_that_are_freed():
    """Each is known, with what it calls; none locks anything itself."""
    found = {}
    for module, tree in trees().items():
        for each in ast.walk(tree):
            for method in each.body if isinstance(each, ast.ClassDef) else []:
                if getattr(method, "name", "") == "__del__":
                    nodes = [*within(method)]
                    assert not any(isinstance(node, ast.With) for node in nodes)
                    names = {ast.unparse(node.func) for node in nodes if isinstance(node, ast.Call)}
                    found[f"{module}.{each.name}"] = sorted(names)
    assert found == METHODS


def test_callbacks_of_weak_references():
    """Each is known; references themselves have none."""
    pairs = calls("weakref.finalize", "finalize")
    assert by_module((module, ast.unparse(call.args[1])) for module, call in pairs) == CALLBACKS
    references = calls("weakref.ref", "weakref.proxy", "ref", "proxy", "weakref.WeakMethod")
    assert [module for module, call in references if len(call.args) + len(call.keywords) > 1] == []


def is_guarded(node):
    """Whether it is a block with an end, around a `yield`."""
    is_block = isinstance(node, (ast.With, ast.AsyncWith, ast.Try))
    return is_block and any(isinstance(each, (ast.Yield, ast.YieldFrom)) for each in within(node))


def test_ends_of_generators():
    """Each is known. Of a context manager it is the end of the block, which no collector ends."""
    found = {
        f"{module}.{function.name}"
        for module, tree in trees().items()
        for function in ast.walk(tree)
        if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef))
        and not any("contextmanager" in ast.unparse(each) for each in function.decorator_list)
        and not module.startswith("testing/")
        and any(map(is_guarded, within(function)))
    }
    assert found == set(GENERATORS)


def test_handlers_of_signals():
    """They interrupt the main thread as the collector does."""
    found = by_module((module, ast.unparse(call.args[1])) for module, call in calls("signal.signal"))
    assert found == HANDLERS


def test_forks_are_handled_in_one_place():
    """So that what waits before a fork is one lock."""
    assert {module for module, _ in calls("os.register_at_fork")} == {"core/files/forks"}


def name_of(call):
    """The name of the threads that a call starts, if it gives them one."""
    given = {each.arg: each.value for each in call.keywords}
    is_pool = ast.unparse(call.func).endswith("Executor")
    found = given.get("thread_name_prefix" if is_pool else "name", call.args[1] if is_pool and call.args[1:] else None)
    return None if found is None else ast.literal_eval(found)


def test_threads():
    """Each is known, and whether things are freed at its steps."""
    found = {"core/transport/filesystems": {"fsspecIO"}}
    for module, call in calls("threading.Thread", "Thread", "threading.Timer", "ThreadPoolExecutor"):
        if not module.startswith("testing/"):
            found.setdefault(module, set()).add(name_of(call))
    assert found == {module: set(threads) for module, threads in THREADS.items()}
    text = (Path(__file__).parents[2] / "io/files/test_finalizers.py").read_text("utf-8")
    assert all(f"def {test}(" in text for test in (EPOCH, EACH_STEP, MOMENT))
    assert all(f'"{name}"' in text for each in THREADS.values() for name, state in each.items() if state == MOMENT)
