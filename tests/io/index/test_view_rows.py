"""Files of saved views: rows that all processes map, savers at one place, what killed ones leave, secrets, devices."""

import json
import multiprocessing
import os
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
from torch.utils.data import DataLoader

import wids
from tests.support.servers import Server
from tests.support.shards import write_index
from wids.core.files import atomic
from wids.core.index.view_file import checksum_of, pack_rows
from wids.core.index.view_rows import SharedSelection
from wids.errors import FetchError, SpecError

pytestmark = pytest.mark.usefixtures("own_cache")

COUNTS = (30, 0, 50, 20)
needs_proc = pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="no /proc: workers have copies")


@pytest.fixture
def dataset(tmp_path):
    """Four shards, one of them empty."""
    return wids.ShardListDataset(write_index(tmp_path / "data", COUNTS), transformations=[])


@pytest.fixture
def web(tmp_path, dataset):
    """A server of a saved view, whose index and rows lie beside it."""
    dataset.select([2, 31, 99]).save(tmp_path / "data" / "good.json")
    with Server(directory=tmp_path, has_ranges=True) as server:
        server.url += "/data"
        yield server


def opened(web, tmp_path, **options):
    """The view on the server."""
    return wids.ShardListDataset(
        f"{web.url}/good.json", **{"cache_dir": tmp_path / "cache", "transformations": [], **options}
    )


def keys(dataset):
    """The key of each sample, in order."""
    return [each["__key__"] for each in dataset]


def rows_requests(server):
    """How often the rows were asked for."""
    return sum(target.endswith(".rows") for target in server.requests)


def mapped_files():
    """The files that this process maps."""
    with open("/proc/self/maps", encoding="utf-8") as file:
        return {line.split(maxsplit=5)[5].strip() for line in file if len(line.split(maxsplit=5)) == 6}


def map_of(sample):
    """The files of rows that this process maps, and the number of the sample."""
    mine = [os.path.basename(name) for name in mapped_files() if ".rows" in name]
    return int(sample[".cls"].read()), sorted(mine)


# --- rows


def test_remote_rows_are_downloaded_once(web, tmp_path):
    """Into the cache directory; all who open the view map them there."""
    views = [opened(web, tmp_path) for _ in range(3)]
    assert rows_requests(web) == 1
    (name,) = [name for name in os.listdir(tmp_path / "cache" / ".wids" / "indexes") if name.endswith(".rows")]
    for view in views:
        assert keys(view) == ["s0-002", "s2-001", "s3-019"]
        assert not view._collection.shards.selection.arrays[1].flags.writeable
    if os.path.isdir("/proc/self/fd"):
        assert str(tmp_path / "cache" / ".wids" / "indexes" / name) in mapped_files()


def test_processes_that_open_a_view_at_once(web, tmp_path):
    """One downloads the rows, the others wait for it."""
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=opened, args=(web, tmp_path)) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * 4
    assert rows_requests(web) == 1


@needs_proc
@pytest.mark.parametrize(("context", "is_remote"), [("fork", False), ("spawn", True), ("forkserver", False)])
def test_workers_map_the_file_itself(web, dataset, tmp_path, context, is_remote):
    """Of a saved view, local or remote; no copy is written for them."""
    view = opened(web, tmp_path) if is_remote else wids.ShardListDataset(tmp_path / "data" / "good.json")
    view.transformations = map_of
    loader = DataLoader(view, batch_size=None, num_workers=1, multiprocessing_context=context)
    path = view._collection.shards.selection.path
    for number, (found, files) in zip((2, 31, 99), loader, strict=True):
        assert (found, files) == (number, [os.path.basename(path)])


class Starting:
    """Stands for a worker that is being started."""


@pytest.fixture
def handed(monkeypatch):
    """A function: what a worker has that is started with a value, in this process."""
    workers = []

    def hand(value):
        workers.append(Starting())
        monkeypatch.setattr(multiprocessing.context, "get_spawning_popen", lambda: workers[-1])
        data = pickle.dumps(value)
        monkeypatch.undo()
        assert len(data) < 1000
        return pickle.loads(data)

    return hand


@needs_proc
@pytest.mark.parametrize("what", ["there", "unlinked", "replaced", "cut"])
def test_a_worker_of_a_worker_of_a_view(dataset, tmp_path, handed, what):
    """Each maps the rows; a copy of them, where their file is another one by then."""
    dataset.select([1, 40, 99]).save(tmp_path / "view.json")
    view = wids.ShardListDataset(tmp_path / "view.json", transformations=[])
    selection, path = view._collection.shards.selection, view._collection.shards.selection.path
    before = Path(path).read_bytes()
    if what != "there":
        os.unlink(path)
    if what in ("replaced", "cut"):
        atomic.write_atomically(path, before[:48] if what == "cut" else before[:48] + bytes(len(before) - 48))
    for found in (child := handed(selection), handed(child), handed(handed(child))):
        ends, rows = found.arrays
        assert (ends.tolist(), rows.tolist()) == ([1, 1, 2, 3], [1, 10, 19])
        assert not rows.flags.writeable
    assert (path in mapped_files()) == (what == "there")


def test_rows_of_four_and_of_eight_bytes(handed):
    """Both are handed on; a copy that is no worker's has them for itself."""
    for rows in (np.array([7, 9], np.uint32), np.array([7, 1 << 40], np.int64)):
        selection = SharedSelection(np.array([1, 1, 2]), rows)
        for found in (handed(selection), pickle.loads(pickle.dumps(selection))):
            assert [part.tolist() for part in found.arrays] == [[1, 1, 2], rows.tolist()]
            assert found.digest == selection.digest
            assert [type(row) for row in found.rows] == [int, int]


def test_rows_in_the_cache_that_are_damaged(web, tmp_path):
    """They are downloaded again."""
    opened(web, tmp_path)
    folder = tmp_path / "cache" / ".wids" / "indexes"
    (name,) = [name for name in os.listdir(folder) if name.endswith(".rows")]
    for data in (b"", b"x" * 99, (folder / name).read_bytes()[:-8]):
        (folder / name).write_bytes(data)
        assert len(opened(web, tmp_path)) == 3
    assert rows_requests(web) == 4


def test_where_no_cache_can_be(web, tmp_path):
    """The rows are read into memory."""
    (tmp_path / "file").write_text("")
    view = opened(web, tmp_path, cache_dir=tmp_path / "file")
    assert view._collection.shards.selection.rows[1] == 1
    named = wids.ShardListDataset(f"{web.url}/good.json", localname=lambda url: str(tmp_path / os.path.basename(url)))
    assert named._collection.shards.selection.rows[2] == 19
    assert rows_requests(web) == 2


@pytest.mark.parametrize("fault", ["other", "long", "cut", "none"])
def test_remote_rows_that_are_wrong(web, dataset, tmp_path, fault, no_waits):
    """Those of another view, too long, cut or gone: an error, and nothing stays in the cache."""
    told = json.loads((tmp_path / "data" / "good.json").read_text())
    path = tmp_path / "data" / told["rows"]
    if fault == "other":
        path.write_bytes(b"".join(pack_rows(np.array([1, 1, 2, 3]), np.array([3, 1, 19], np.uint32))))
    elif fault == "long":
        os.truncate(path, 64 << 20)
    elif fault == "cut":
        path.write_bytes(path.read_bytes()[:-8])
    else:
        path.unlink()
    with pytest.raises((SpecError, FetchError)):
        opened(web, tmp_path)
    if fault == "long":
        assert web.sent_bytes[f"/data/{told['rows']}"] < 32 << 20
    folder = tmp_path / "cache" / ".wids" / "indexes"
    assert [name for name in os.listdir(folder) if ".rows" in name] == []


def test_rows_of_another_view_beside_this_one(dataset, tmp_path):
    """A local file whose checksum is right by itself is not taken for the view's."""
    path = tmp_path / "view.json"
    dataset.select([1, 40]).save(path)
    told = json.loads(path.read_text())
    parts = pack_rows(np.array([1, 1, 2, 2]), np.array([2, 10], np.uint32))
    assert checksum_of(parts[0]) != told["rows_checksum"]
    (tmp_path / told["rows"]).write_bytes(b"".join(parts))
    with pytest.raises(SpecError, match="are the rows of another view"):
        wids.ShardListDataset(path)


def test_rows_that_an_option_names(dataset, tmp_path):
    """They are taken instead of the view's own; if they are not there, that is an error."""
    dataset.select([3]).save(tmp_path / "a.json")
    shutil.copy(tmp_path / json.loads((tmp_path / "a.json").read_text())["rows"], tmp_path / "moved.rows")
    options = {"rows": "moved.rows"}
    assert keys(wids.ShardListDataset(tmp_path / "a.json", options=options, transformations=[])) == ["s0-003"]
    with pytest.raises(SpecError, match="cannot be read"):
        wids.ShardListDataset(tmp_path / "a.json", options={"rows": "none.rows"})


def test_a_selection_without_rows():
    """It has no file, and can be shared."""
    found = SharedSelection(np.zeros(3, np.int64), np.zeros(0, np.uint32))
    assert found._shared._shared_file() is None


# --- savers


def test_savers_at_one_path(dataset, tmp_path):
    """Whoever opens it meanwhile has one of the views; in the end one file of rows is left, and nothing else."""
    path, context = tmp_path / "out" / "view.json", multiprocessing.get_context("fork")
    path.parent.mkdir()
    dataset.select([0]).save(path)
    savers = [context.Process(target=save_often, args=(dataset, path, n)) for n in range(3)]
    for process in savers:
        process.start()
    while any(process.is_alive() for process in savers):
        view = wids.ShardListDataset(path, transformations=[])
        assert len(view) == len(keys(view)) <= 4
    for process in savers:
        process.join()
        assert process.exitcode == 0
    told = json.loads(path.read_text())
    assert sorted(os.listdir(path.parent)) == sorted(["view.json", told["rows"]])


def save_often(dataset, path, n):
    """Three views, two of which other processes save as well."""
    for k in range(30):
        dataset.select(range((n + k) % 4 + 1)).save(path)


@needs_proc
def test_a_crash_while_a_view_is_replaced(dataset, tmp_path, monkeypatch):
    """Rows and index are on the disk, each before what names or needs it, and before the rows of the old view go."""
    path, done = tmp_path / "view.json", []
    dataset.select([0]).save(path)
    before = json.loads(path.read_text())["rows"]
    sync, replace, unlink = os.fsync, os.replace, os.unlink

    def note(what, file, function, *args):
        done.append((what, os.path.basename(file).partition(".json.")[0]))
        return function(*args)

    monkeypatch.setattr(os, "fsync", lambda fd: note("sync", os.readlink(f"/proc/self/fd/{fd}"), sync, fd))
    monkeypatch.setattr(os, "replace", lambda a, b: note("replace", b, replace, a, b))
    monkeypatch.setattr(os, "unlink", lambda a, **_: note("unlink", a, unlink, a))
    dataset.select([1, 2]).save(path)
    monkeypatch.undo()
    rows, here = json.loads(path.read_text())["rows"], tmp_path.name
    steps = [step for step in done if step[0] != "unlink" or step[1] == before]
    assert steps[0][0] == "sync"
    assert steps[0][1].startswith(rows)  # its part file
    assert steps[1:] == [
        ("replace", rows),
        ("sync", here),
        ("sync", "view"),  # its part file
        ("replace", "view.json"),
        ("sync", here),
        ("unlink", before),
    ]


def test_what_a_killed_saver_left(dataset, tmp_path):
    """The next one removes it; what another is writing, and files of other views, stay."""
    path = tmp_path / "view.json"
    mine = ["view.json.123-0123abcd.part", "view.0123456789abcdef.rows.123-0123abcd.part"]
    others = ["view2.json.1-0123abcd.part", "view.txt.1-0123abcd.part", "other.0123456789abcdef.rows.1-0123abcd.part"]
    for name in (*mine, *others):
        (tmp_path / name).write_bytes(b"half")
    part, fd = atomic.make_part(str(tmp_path / "view.fedcba9876543210.rows"))
    dataset.select([0]).save(path)
    os.close(fd)
    left = {name for name in os.listdir(tmp_path) if name.endswith(".part")}
    assert left == {*others, os.path.basename(part)}


# --- secrets and devices


def test_no_secret_is_saved(web, tmp_path, caplog):
    """Not the signature of an index, nor of a shard that the view lists itself; the index's URL may be given again."""
    host = web.url.removeprefix("http://")
    signed = f"http://user:s3cret@{host}/index.json?X-Sig=s3cret"
    view = wids.ShardListDataset(signed, cache_dir=tmp_path / "cache", transformations=[]).select([5, 60])
    view.save(tmp_path / "signed.json")
    text = (tmp_path / "signed.json").read_text()
    assert "s3cret" not in text
    assert json.loads(text)["view_of"] == f"{web.url}/index.json"
    assert "is not saved" in caplog.text
    assert "s3cret" not in caplog.text
    for options in (None, {"view_of": signed}):
        again = wids.ShardListDataset(
            tmp_path / "signed.json", options=options, cache_dir=tmp_path / "cache", transformations=[]
        )
        assert keys(again) == keys(view)
        assert again.fingerprint == view.fingerprint
        again.save(tmp_path / "again.json")
        assert "s3cret" not in (tmp_path / "again.json").read_text()
        assert json.loads((tmp_path / "again.json").read_text())["view_of"] == f"{web.url}/index.json"
    shards = [{"url": f"http://u:s3cret@{host}/s{k}.tar?sig=s3cret", "nsamples": n} for k, n in enumerate(COUNTS)]
    listed = wids.ShardListDataset(shards, cache_dir=tmp_path / "cache", transformations=[]).select([5])
    listed.save(tmp_path / "listed.json")
    assert "s3cret" not in (tmp_path / "listed.json").read_text()
    assert keys(wids.ShardListDataset(tmp_path / "listed.json", cache_dir=tmp_path / "cache")) == ["s0-005"]


@pytest.mark.parametrize("key", ["rows", "view_of"])
@pytest.mark.parametrize("place", ["/dev/zero", "file:///dev/zero", "local:///dev/zero", "pipe", ".", "/dev/null"])
def test_devices_in_the_place_of_files(dataset, tmp_path, key, place):
    """A view that names one is refused at once."""
    os.mkfifo(tmp_path / "pipe")
    path = tmp_path / "view.json"
    dataset.select([0]).save(path)
    path.write_text(json.dumps({**json.loads(path.read_text()), key: place}))
    with pytest.raises(SpecError, match=key):
        wids.ShardListDataset(path)


def test_a_copied_view(dataset, tmp_path):
    """With its rows beside it, it is the same view, of an index that it finds."""
    dataset.select([3, 50]).save(tmp_path / "data" / "view.json")
    shutil.copytree(tmp_path / "data", tmp_path / "copy")
    assert keys(wids.ShardListDataset(tmp_path / "copy" / "view.json", transformations=[])) == ["s0-003", "s2-020"]
