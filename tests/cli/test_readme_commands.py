"""Every command that a README shows is run here, in a place prepared for it, or by the test that is named for it."""

import io
import re
import shlex
import sys

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

import wids
from tests.support import foreign
from tests.support.cli import whole_command
from tests.support.columns import write_dataset
from tests.support.packing import picture_rows
from tests.support.paths import ROOT
from tests.support.readmes import blocks, inline_code
from tests.support.shards import write_index, write_json, write_shard, write_shards, write_tar
from wids import testing
from wids.tools.cli import main

# Command -> the test that runs it, and what is to be found there.
ELSEWHERE = {
    "python3 -m venv .venv && .venv/bin/pip install '.[all]' && .venv/bin/wids demo": (
        "tests/e2e/test_demo.py",
        '"demo"',
    ),
    "wids demo": ("tests/e2e/test_demo.py", '"demo"'),
    "apt-get update && apt-get install -y libarchive-tools nginx-light fuse3 ffmpeg chromium && python3 -m venv .venv "
    "&& .venv/bin/pip install -e '.[test]' && .venv/bin/pytest -n 4": (".ci/run", "^apt-get .*pytest"),
    ".venv/bin/pip install '.[notebooks]' && .venv/bin/jupyter lab notebooks": (
        "tests/e2e/test_notebooks.py",
        "papermill",
    ),
    "python3 -m venv .venv && .venv/bin/pip install -e '.[cli]' webdataset==1.0.2 litdata==0.2.76": (
        "benchmarks/peers.py",
        "webdataset",
    ),
    ".venv/bin/python benchmarks/peers.py --rows random-text,epoch2-text,first-cold "
    "--only wids,webdataset,litdata --rounds 3 "
    "--python wids=.venv/bin/python --python webdataset=.venv/bin/python --python litdata=.venv/bin/python": (
        "tests/e2e/test_benchmark_peers.py",
        "def test_quick_run_measures_and_checks_every_kind_of_row",
    ),
    "python notebooks/make.py NAME": ("tests/e2e/test_notebooks.py", "jupytext"),
    "wids index create 'hf://datasets/me/films?split=train' -o films.json --upload": (
        "tests/cli/test_index.py",
        "def test_create_uploads",
    ),
}
# Commands that no block runs: whole programs.
PROGRAMS = {
    ("demo",): "tests/e2e/test_demo.py",
    ("cache", "daemon"): "tests/cli/test_cache.py",
    ("serve",): "tests/e2e/test_serve.py",
}
BLOCKS = [block for block in blocks("sh", "console") if set(block.commands()) - set(ELSEWHERE)]


def jpeg(color):
    """A small picture as a file's bytes."""
    stream = io.BytesIO()
    Image.new("RGB", (32, 24), color).save(stream, "JPEG")
    return stream.getvalue()


@pytest.fixture
def scene(tmp_path, monkeypatch):
    """An empty directory to work in, with a cache of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("WIDS_CACHE", str(tmp_path / "cache"))
    (tmp_path / "cache").mkdir()
    monkeypatch.setitem(fsspec.config.conf, "memory", {})
    yield tmp_path
    fsspec.filesystem("memory").store.clear()


def put(scene, url):
    """Upload the files of a directory to a bucket in memory."""
    fsspec.filesystem("memory").put(f"{scene}/", url, recursive=True)


def photos(scene):
    """Images by class."""
    for k in range(100):
        path = scene / "photos" / ("cat", "dog")[k % 2] / f"{k}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(jpeg((2 * k, 0, 0)))


def first_readme(scene):
    """A folder of photos, and the shards that packing it makes."""
    photos(scene)


def bucket(scene):
    """An index on a store that takes options."""
    write_index(scene / "up", name="train.json")
    put(scene / "up", "memory://bucket")


def to_pack(scene):
    """Photos, a table of files, one with pictures, and a dataset with a sample that the conditions choose."""
    photos(scene)
    (scene / "rows.csv").write_text("image,caption,label\nphotos/cat/0.jpg,a cat,3\nphotos/dog/1.jpg,a dog,4\n")
    table = pa.table({"image": [jpeg((k, 0, 0)) for k in range(4)], "label": ["dog", "cat", "cat", "dog"]})
    pq.write_table(table, scene / "part-0.parquet")
    members = {"n01_7.cls": b"3", "n01_7.json": b'{"caption": "a cat"}', "n02_7.cls": b"3", "n02_7.json": b"{}"}
    write_tar(scene / "t.tar", members)
    run("index", "create", "t.tar", "-o", "train.json")


def from_others(scene):
    """Folders of MosaicML's streaming, of LitData and of ``datasets``."""
    foreign.write_mds(scene / "mds")
    foreign.write_litdata(scene / "lit", [row[1:3] for row in foreign.ROWS], {"image": "png", "label": "int"})
    foreign.save_dataset(scene / "saved", picture_rows())


def to_diff(scene):
    """Two indexes, and a checkpoint of a run over the first."""

    def entry(k, count=100, content=0, folder="data"):
        sums = {"filesize": 1_000_000 + k, "md5sum": f"{10 * k + content:032x}"}
        return {"url": f"{folder}/s{k:03d}.tar", "nsamples": count, **sums}

    changed = [*map(entry, range(1, 6)), entry(6, 90, 1), entry(7, folder="moved"), entry(8), entry(10)]
    for name, entries in (("before.json", [*map(entry, range(10))]), ("train.json", changed)):
        write_json(scene / name, {"wids_version": 1, "shardlist": entries})
    sampler = wids.DistributedChunkedSampler(wids.ShardListDataset("before.json"), num_replicas=1, rank=0)
    indices = iter(sampler)
    for _ in range(420):
        next(indices)
    torch.save({"loader": sampler.state_dict()}, scene / "checkpoint.pt")


def to_index(scene):
    """Local shards, some of them bad; remote ones; two indexes to merge."""
    for name in ("a", "b", "bad-1", "new/c", "new/d"):
        write_shard(scene / "data" / f"{name}.tar", 2)
    for k in range(16):
        write_shard(scene / "www" / f"films-{k:04d}.tar", 2)
    write_index(scene / "cats", name="cats.json")
    for path in (scene / "cats").iterdir():
        path.rename(scene / path.name)
    write_index(scene / "captions", name="captions.json")
    (scene / "captions" / "captions.json").rename(scene / "captions.json")
    write_index(scene / "up", name="dogs.json")
    put(scene / "up", "memory://bucket")


def to_look_into(scene):
    """Six shards of a thousand samples."""
    picture = jpeg((1, 2, 3))
    for shard in range(6):
        members = {}
        for i in range(shard * 1000, shard * 1000 + 1000):
            members[f"n{i % 100:04d}_{i:05d}.jpg"] = picture
            members[f"n{i % 100:04d}_{i:05d}.json"] = b'{"label": %d}' % (i % 100)
        write_tar(scene / f"train-{shard:06d}.tar", members)
    run("index", "create", "train-{000000..000005}.tar", "-o", "train.json")


def with_lengths(scene):
    """Eight shards, and a column of lengths of which two make more than a batch."""
    for shard in range(8):
        tokens = {f"{shard}_{i}.json": b'{"tokens": %d, "images": %d}' % (20_000 + i, i % 9) for i in range(600)}
        write_tar(scene / f"train-{shard}.tar", tokens)
    run("index", "create", "train-{0..7}.tar", "-o", "train.json")
    run("columns", "create", "train.json", "--json", ".json:tokens,images")


def with_columns(scene):
    """A dataset with labels, captions and JSON."""
    write_dataset(scene, (600, 400))


def damaged(scene):
    """Ten shards with md5 sums; then one goes, one changes, one is cut."""
    for k in range(10):
        write_shard(scene / f"train-{k:04d}.tar", 20, first=20 * k)
    run("index", "create", "train-{0000..0009}.tar", "-o", "train.json", "--md5")
    (scene / "train-0003.tar").unlink()
    data = bytearray((scene / "train-0004.tar").read_bytes())
    data[512] ^= 1
    (scene / "train-0004.tar").write_bytes(data)
    data = (scene / "train-0007.tar").read_bytes()
    (scene / "train-0007.tar").write_bytes(data[: len(data) // 2 + 100])


@pytest.fixture(autouse=True)
def modules_of_scenes():
    """Modules of a scene are not those of the next one, which may have others of these names."""
    places = list(sys.path)
    yield
    sys.path[:] = places
    for name in ("augment", "embed", "score"):
        sys.modules.pop(name, None)


def pictures(scene):
    """Small pictures, and a module that crops them."""
    for shard in range(2):
        members = {f"{shard}_{i:03d}.jpg": jpeg((i % 250, 2, 3)) for i in range(200)}
        write_tar(scene / f"train-{shard}.tar", members)
    (scene / "augment.py").write_text("def crop(sample):\n    return sample['.jpg'].getpixel((0, 0))\n")
    run("index", "create", "train-{0..1}.tar", "-o", "train.json")


def to_compute(scene):
    """Small pictures, and modules that compute something of them."""
    pictures(scene)
    block, *_ = (each for each in blocks("python") if each.readme == ".docs/guides/fields.md")
    model = "def make_model():\n    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3072, 8))\n"
    prepare = "def prepare(picture):\n    return torch.zeros(3, 32, 32)\n"
    (scene / "embed.py").write_text(f"{block.text}\n\n{model}\n\n{prepare}")
    score = "{'brightness': sum(sample['.jpg'].getpixel((0, 0))) / 3, 'kind': sample['.jpg'].mode}"
    (scene / "score.py").write_text(f"def score(sample):\n    return {score}\n")


def many_kinds(scene):
    """Pictures by class, pictures with masks, a table of them, tars without an index."""
    photos(scene)
    (scene / "scenes").mkdir()
    for name in ("1.jpg", "1.seg.png", "2.jpg", "2.seg.png"):
        (scene / "scenes" / name).write_bytes(jpeg((9, 9, 9)))
    (scene / "rows.csv").write_text("image,label\nphotos/cat/0.jpg,3\nphotos/dog/1.jpg,4\n")
    write_shard(scene / "tars" / "a.tar", 2)


def labelled(scene):
    """Pictures with labels and captions."""
    members = {}
    for i in range(20):
        members[f"{i}.jpg"], members[f"{i}.cls"] = jpeg((i, 2, 3)), b"%d" % (i % 4)
        members[f"{i}.json"] = b'{"caption": "a cat"}'
    write_tar(scene / "train-0.tar", members)
    run("index", "create", "train-0.tar", "-o", "train.json")


def grouped(scene):
    """Texts of ten patients, and columns."""
    write_tar(scene / "all.tar", {f"{i}.json": b'{"patient": "p%d"}' % (i % 10) for i in range(30)})
    run("index", "create", "all.tar", "-o", "all.json")
    run("columns", "create", "all.json", "--json", ".json:patient")


def to_opt_out(scene):
    """Shards with samples of people who opted out."""
    write_shards(scene, (100, 100, 100, 1))
    run("index", "create", *(f"s{k}.tar" for k in range(4)), "-o", "train.json")
    (scene / "opted-out.txt").write_text("s0-001\ns2-050\ns2-007\ns3-000\n")


def to_rewrite(scene):
    """Pictures with labels and captions, and columns."""
    with wids.ShardWriter(scene / "train-%06d.tar", samples=100) as writer:
        for k in range(300):
            picture = b"\xff\xd8\xff" + bytes(6000)
            sample = {"__key__": f"{k:06d}", ".jpg": picture, ".cls": k % 10, ".json": {"caption": f"text {k}"}}
            writer.write(sample)
    run("columns", "create", "train.json", "--field", ".cls=label")


def nothing(_):
    """For commands that read no file."""


def served(scene):
    """A data set behind HTTP."""
    write_index(scene / "www", name="train.json")


# Block -> (what it needs, the exit code of its last command, what is printed).
SCENES = {
    ".docs/guides/batches.md#before-a-run": (
        with_lengths,
        0,
        [
            "8 ranks on 1 node, batches of at most 32,768 tokens, 1 epoch",
            "epoch 0, step 120 of 600, rank 0 of 8: 1 sample",
        ],
    ),
    ".docs/guides/big-jobs.md#run-jobs-of-thousands-of-ranks": (
        pictures,
        0,
        ["2 member tables of 2 shards", "train.widsx: 2 shards", "64 ranks on 8 nodes"],
    ),
    ".docs/guides/fields.md#new-fields-embeddings-captions-scores": (
        to_compute,
        0,
        ["ndarray float32 (8,)", "nothing was written", "embed/index.json: 400 rows", ".clip.npy in 400"],
    ),
    ".docs/guides/fields.md#numbers-and-texts": (
        to_compute,
        0,
        ["score.parquet: 400 rows", "columns: brightness (double), kind (string)"],
    ),
    ".docs/guides/filter.md#filter-and-curate-train-on-a-part": (
        labelled,
        0,
        ["20 rows", "label", "good.json: 15 of 20 samples"],
    ),
    ".docs/guides/filter.md#parts-without-common-groups": (
        grouped,
        0,
        ["train.json: 1 shard, 27 samples", "val.json: 1 shard, 3 samples"],
    ),
    ".docs/guides/packs.md#before-a-run": (
        with_lengths,
        0,
        ["batches of 2 packs of 2,048 tokens, 1 epoch", "of their room is empty", "rank 0 of 8: 2 packs, "],
    ),
    ".docs/guides/quickstart.md#1-install-and-pack-the-pictures": (photos, 0, ["100 samples in 1 shard", "(cat, dog)"]),
    ".docs/guides/shared-caches.md#fill-it-look-at-it-clean-it": (
        served,
        0,
        ["3 fetched", "3 shards", "3 shards (", "stay"],
    ),
    ".docs/guides/stores.md#from-an-empty-bucket-to-a-run": (
        photos,
        0,
        ["100 samples in 1 shard", "samples      100", "1 fetched"],
    ),
    ".docs/guides/your-data.md#make-shards-from-your-data": (
        many_kinds,
        0,
        ["100 samples", "taken as files key.ext: 2 samples", "rows.csv, taken as", "1 shard, 2 samples", "cat, dog"],
    ),
    "README.md#train-on-your-own-pictures": (first_readme, 0, ["100 samples"]),
    "README.md#commands": (first_readme, 0, ["100 samples", "batches of a rank"]),
    "wids/tools/cli/README.md#conventions": (bucket, 0, ["samples      9"]),
    "wids/tools/cli/README.md#packing": (
        to_pack,
        0,
        ["taken as images by class: 100 samples", "taken as a dataset", " 1 sample"],
    ),
    "wids/tools/cli/README.md#new-shards-of-a-dataset": (
        to_rewrite,
        0,
        [
            "plain/train.json: 3 shards, 270 samples; nothing was written",
            "3 to be written (at most 2.63 MB) in 0 s",
            "3 new (2.63 MB)",
            "30 samples left out",
        ],
    ),
    ".docs/guides/changed-data.md#what-is-the-same-shard": (
        to_diff,
        0,
        ["same           6      600  6 MB   600", "moved: data/s007.tar -> moved/s007.tar", "unseen: 470 of 890"],
    ),
    ".docs/guides/changed-data.md#opting-a-sample-out": (
        to_opt_out,
        0,
        ["3 shards, 297 samples", "written anew: s2.tar -> s2-7af06919.tar", "nothing stays of it: s3.tar"],
    ),
    ".docs/guides/coming-from.md#folders-of-mosaicml-litdata-datasets": (
        from_others,
        0,
        [": .png=image .cls=label .json=caption,meta,score", ": .png=image .cls=label", ".txt=text"],
    ),
    "wids/tools/cli/README.md#new-fields-of-each-sample": (
        to_compute,
        0,
        ["embed/index.json: 400 rows", ".clip.npy in 400"],
    ),
    "wids/tools/cli/README.md#making-an-index": (
        to_index,
        0,
        ["unchanged in", " from the shards in", "16 shards, 32 samples", "requests"],
    ),
    "wids/tools/cli/README.md#columns-and-sql": (
        to_pack,
        0,
        ["train.columns.parquet: 2 rows, 9 columns", "n01_7", '{"label": 3, "n": 2}'],
    ),
    "wids/columns/README.md#making-the-file": (
        with_columns,
        0,
        ["train.columns.parquet: 1,000 rows, 13 columns", "label", "key,caption"],
    ),
    "wids/tools/cli/README.md#looking-into-a-dataset": (
        to_look_into,
        0,
        [
            "samples      6,000, on average 1,000 a shard",
            "1000      1     0  n0000_01000",
            "row 242 of shard 4: train-000004.tar",
            "4242     4242     5     3     10",
        ],
    ),
    "wids/tools/cli/README.md#are-the-shards-what-the-index-says": (
        damaged,
        1,
        [
            "is not there",
            "its crc32 is",
            "it has",
            "is cut short",
            "3 of 10 shards are wrong (digest 1, missing 1, size 1, tar 1)",
        ],
    ),
    "wids/tools/cli/README.md#simulating-a-job": (
        nothing,
        0,
        [
            "1,000 shards, 10,000,000 samples, 500 GB; 16 ranks on 2 nodes, batches of 256, 1 epoch",
            "batches of a rank      2,442, the same on all",
            "shards split           8 read by several ranks, 0 by several nodes",
            "mixing                 64 shards in a global batch, 4.0 in a rank's",
        ],
    ),
    "wids/tools/cli/README.md#measuring-a-loader": (
        pictures,
        0,
        ["2 ranks with 1 worker each, batches of 64, 0.1 s a step; 4 steps counted", "headroom", "decoding"],
    ),
    "wids/tools/cli/README.md#packs": (
        with_lengths,
        0,
        [
            "8 ranks on 1 node, batches of 4 packs of 8,192 tokens, 1 epoch",
            "balance of a step      the fullest batch is 1.0",
            "rank 3 of 8: 4 packs, ",
        ],
    ),
    "wids/tools/cli/README.md#batches-of-like-length": (
        with_lengths,
        0,
        [
            "8 ranks on 1 node, batches of at most 32,768 tokens, 1 epoch",
            "padding                with it, batches have 1.000 x the tokens of their samples",
            "balance of a step      the costliest batch is 1.0",
            "epoch 0, step 120 of 600, rank 3 of 8: 1 sample",
            "epoch 0: 600 steps on each of 8 ranks",
        ],
    ),
    "wids/tools/cli/README.md#wids-cache": (served, 0, ["3 fetched", "3 shards", "used"]),
}


def run(*args):
    """Run the command line in this process; its exit code."""
    before, sys.argv = sys.argv, ["wids", *args]
    try:
        with pytest.raises(SystemExit) as left:
            main()
    finally:
        sys.argv = before
    return left.value.code or 0


def arguments(command, server):
    """The words of a command, with the servers and buckets of this test in the place of those shown."""
    for shown, here in {
        "https://host": server,
        "http://127.0.0.1:8766": server,
        "s3://": "memory://",
        "gs://": "memory://",
    }.items():
        command = command.replace(shown, here)
    words = shlex.split(command)
    return words[: words.index(">")] if ">" in words else words


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.place)
def test_commands_of_a_block(block, scene, capsysbinary):
    """One after the other, as a reader would, in a directory with the files that they name."""
    prepare, last_code, printed = SCENES[block.place]
    prepare(scene)
    capsysbinary.readouterr()
    (scene / "www").mkdir(exist_ok=True)
    out = ""
    with testing.Server(scene / "www") as server:
        commands = [command for command in block.commands() if command not in ELSEWHERE]
        for command in commands:
            name, *args = arguments(command, server.url)
            assert name == "wids", command
            code = run(*args)
            out += b"".join(capsysbinary.readouterr()).decode(errors="replace")
            assert code == (last_code if command == commands[-1] else 0), (command, out)
    for text in printed:
        assert text in out


def test_each_block_is_run_once():
    """None is without a scene, and no scene is left over."""
    assert sorted(block.place for block in BLOCKS) == sorted(SCENES)


def test_commands_that_run_elsewhere():
    """Are shown, and the file that is said to run them exists and does."""
    shown = {command for block in blocks("sh", "console") for command in block.commands()}
    assert set(ELSEWHERE) <= shown
    for path, text in ELSEWHERE.values():
        assert text in (ROOT / path).read_text(encoding="utf-8"), path


def find_command(words):
    """The command that words name, and what is left of them."""
    command = whole_command()
    while words and hasattr(command, "commands") and words[0] in command.commands:
        command, words = command.commands[words[0]], words[1:]
    return command, words


def names_of(command, path=()):
    """The words that name each command of a group."""
    if not hasattr(command, "commands"):
        return {path}
    return set().union(*(names_of(each, (*path, name)) for name, each in command.commands.items()))


def test_each_command_is_run():
    """By some block, but for whole programs, which have tests of their own."""
    words = [arguments(each, "")[1:] for block in BLOCKS for each in block.commands() if each not in ELSEWHERE]
    run_here = {tuple(each[: len(each) - len(find_command(each)[1])]) for each in words}
    assert names_of(whole_command()) - run_here == set(PROGRAMS)
    assert all((ROOT / path).is_file() for path in PROGRAMS.values())


def test_commands_in_running_text_exist():
    """With the options that they are shown with; so does the one in the systemd unit."""
    shown = [code for _, code in inline_code() if re.match(r"wids( |$)", code)]
    shown += [
        line.partition("/bin/")[2] for block in blocks("ini") for line in re.findall(r"ExecStart=(.*)", block.text)
    ]
    assert len(shown) > 20
    for code in shown:
        command, rest = find_command(shlex.split(code)[1:])
        assert command.name is not None, code
        assert not (hasattr(command, "commands") and rest and not rest[0].startswith("-")), code
        options = {"--help", *(option for parameter in command.params for option in parameter.opts)}
        assert {word for word in rest if word.startswith("--")} <= options, code
