"""``widsindex create | update | info | sample``, with all flags of the original."""

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import wids
import wids.wids
from tests.support.clocks import PATIENCE_SECONDS
from tests.support.shards import serve, write_index, write_json, write_shards, write_tar
from wids.wids_index import main


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    """Commands run in a directory of their own, with a cache of their own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WIDS_CACHE", str(tmp_path / "default-cache"))


def read(path):
    """The JSON in a file."""
    return json.loads(Path(path).read_text())


# --- create


def test_create(tmp_path, capsys):
    """A sorted shard list with url, md5sum, nsamples and filesize, in shardindex.json unless -o says otherwise."""
    write_shards("d", (3, 4))
    assert main(["create", "d/s1.tar", "d/s0.tar"]) == 0
    index = read("shardindex.json")
    assert (index["wids_version"], index["__kind__"]) == (1, "wids-shard-index-v1")
    assert index["name"] == "d-s1"
    assert "base" not in index
    assert "info" not in index
    assert index["shardlist"] == [
        {
            "url": f"d/s{k}.tar",
            "nsamples": count,
            "filesize": os.stat(f"d/s{k}.tar").st_size,
            "md5sum": wids.wids.compute_file_md5sum(f"d/s{k}.tar"),
        }
        for k, count in enumerate((3, 4))
    ]
    assert capsys.readouterr().out.splitlines() == ["setting name to d-s1", "d/s1.tar", "d/s0.tar"]
    assert len(wids.ShardListDataset("shardindex.json")) == 7


def test_create_with_all_flags():
    """--output, --name, --info (a file's text) and --base; an empty name leaves it out."""
    write_shards("d", (2,))
    Path("about.txt").write_text("what it is")
    flags = ["--output", "o.json", "--name", "n", "--info", "about.txt", "--base", "gs://b/d"]
    assert main(["create", *flags, "d/s0.tar"]) == 0
    index = read("o.json")
    assert (index["name"], index["info"], index["base"]) == ("n", "what it is", "gs://b/d")
    assert main(["create", "-o", "p.json", "-n", "", "-i", "about.txt", "-b", "x", "d/s0.tar"]) == 0
    assert "name" not in read("p.json")


def test_create_expands_braces_and_reads_stdin(monkeypatch):
    """A brace pattern, and '-' for a list on stdin; blank lines do not count."""
    write_shards("d", (1, 1, 1))
    assert main(["create", "d/s{0..2}.tar"]) == 0
    assert [shard["url"] for shard in read("shardindex.json")["shardlist"]] == [f"d/s{k}.tar" for k in range(3)]
    monkeypatch.setattr(sys, "stdin", io.StringIO("d/s0.tar\n\n  d/s{1..2}.tar  \n"))
    assert main(["create", "-o", "in.json", "-"]) == 0
    assert len(read("in.json")["shardlist"]) == 3


def test_create_of_remote_shards_leaves_nothing_behind(tmp_path):
    """Shards behind a server are counted and measured; no copy of them stays on disk."""
    shards = write_shards("d", (3,))
    with serve(tmp_path / "d") as server:
        assert main(["create", "-o", "r.json", f"{server.url}/s0.tar"]) == 0
    (shard,) = read("r.json")["shardlist"]
    assert (shard["url"], shard["nsamples"], shard["filesize"]) == (
        f"{server.url}/s0.tar",
        3,
        shards[0]["filesize"],
    )
    assert sorted(os.listdir()) == ["d", "r.json"]


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["create", "nowhere.tar"], "there is no file"),
        (["create", "junk.tar"], "junk.tar"),
        (["create", "-"], "no shards to index"),
        (["create", "x{.tar", "-n", ""], "brace pattern"),
        (["update", "nowhere.json"], "nowhere.json"),
        (["update", "junk.tar"], "not valid JSON"),
        (["update", "list.json"], "it must be an object"),
        (["update", "none.json"], "it has no shardlist"),
        (["update", "two.json", "-B"], "--rebase needs shards in one directory"),
        (["info", "nowhere.json"], "nowhere.json"),
        (["sample", "two.json", "99"], "sample 99"),
    ],
)
def test_failures_are_one_line_and_exit_code_1(argv, message, capsys, monkeypatch):
    """What cannot be done is said on stderr; nothing is written."""
    Path("junk.tar").write_bytes(b"x" * 2000)
    write_json("list.json", [1])
    write_json("none.json", {"wids_version": 1})
    write_json(
        "two.json", {"wids_version": 1, "shardlist": [{"url": u, "nsamples": 1} for u in ("a/x.tar", "b/y.tar")]}
    )
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    before = sorted(os.listdir())
    assert main(argv) == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("widsindex: ")
    assert message in last
    assert sorted(os.listdir()) == before


def test_wrong_usage_is_exit_code_2(capsys):
    """As argparse has it; and --help names the commands."""
    with pytest.raises(SystemExit) as caught:
        main([])
    assert caught.value.code == 2
    with pytest.raises(SystemExit) as caught:
        main(["--help"])
    assert caught.value.code == 0
    out = capsys.readouterr().out
    assert all(command in out for command in ("create", "update", "info", "sample"))


# --- update


def test_update_sets_what_is_asked(tmp_path):
    """-n, -i, -b, -k and -K; the old index stays as .bak, byte for byte."""
    path = write_index(tmp_path, (1,), other="kept")
    old = Path(path).read_bytes()
    assert main(["update", path, "-n", "n", "-i", "i", "-b", "b", "-k"]) == 0
    index = read(path)
    assert (index["name"], index["info"], index["base"], index["keep"]) == ("n", "i", "b", True)
    assert index["other"] == "kept"
    assert Path(f"{path}.bak").read_bytes() == old
    assert main(["update", path, "--name", "m", "--info", "j", "--base", "c", "--nokeep"]) == 0
    index = read(path)
    assert (index["name"], index["info"], index["base"], index["keep"]) == ("m", "j", "c", False)


def test_update_names_an_index_without_a_name(tmp_path):
    """Without -n the file's own name is taken, once."""
    path = write_index(tmp_path, (1,), name="train.json")
    assert main(["update", path]) == 0
    assert read(path)["name"] == "train"
    assert main(["update", path, "-n", "n"]) == 0
    assert main(["update", path]) == 0
    assert read(path)["name"] == "n"


def test_update_moves_the_urls(tmp_path):
    """-d sets their directory, -D strips it, -B makes the common one the base; the list is sorted again."""
    shards = [{"url": f"gs://b/d/{name}.tar", "nsamples": 1} for name in ("b", "a")]
    path = write_json("i.json", {"wids_version": 1, "shardlist": shards})

    def urls():
        return [shard["url"] for shard in read(path)["shardlist"]]

    assert main(["update", path, "-d", "/mnt/x"]) == 0
    assert urls() == ["/mnt/x/a.tar", "/mnt/x/b.tar"]
    assert main(["update", path, "--nodir"]) == 0
    assert urls() == ["a.tar", "b.tar"]
    write_json(path, {"wids_version": 1, "shardlist": shards})
    assert main(["update", path, "--rebase"]) == 0
    assert (urls(), read(path)["base"]) == (["a.tar", "b.tar"], "gs://b/d")
    assert [s["url"] for s in wids.ShardListDataset(path).shards] == ["gs://b/d/a.tar", "gs://b/d/b.tar"]


# --- info


def test_info(tmp_path, capsys):
    """Name, info, base, sizes and first and last shard, for each index named; and its sub-datasets."""
    path = write_index(
        tmp_path, (3, 4), name="i.json", info="words", base="gs://b", datasets=[{"source_url": "x.json"}]
    )
    assert main(["info", path, path]) == 0
    out = capsys.readouterr().out
    assert out.count(f"filename: {path}") == 2
    for line in (
        "            info: words",
        f"            base: gs://b (assumed: {tmp_path})",
        "   total samples: 7.0",
        "     first shard: s0.tar",
        "      last shard: s1.tar",
        "         dataset: None x.json",
    ):
        assert line in out.splitlines()


def test_info_shortens_large_numbers(capsys):
    """Sizes are given in k, M, G, T and P; an index without sizes gives zeros, an empty one too."""
    for size, text in ((999, "999.0"), (1500, "1.5k"), (2 * 10**13, "20.0T"), (3 * 10**15, "3.0P")):
        write_json("i.json", {"wids_version": 1, "shardlist": [{"url": "a", "nsamples": 1, "filesize": size}]})
        assert main(["info", "i.json"]) == 0
        assert f"      total size: {text}\n" in capsys.readouterr().out
    write_json("i.json", {"wids_version": 1, "shardlist": []})
    assert main(["info", "i.json"]) == 0
    assert "  avg shard size: 0.0\n" in capsys.readouterr().out


def test_info_as_a_table(tmp_path, capsys):
    """-t prints a heading and one line of tab-separated values for each index."""
    path = write_index(tmp_path, (3, 4), name="i.json")
    assert main(["info", "--table", path]) == 0
    heading, line = capsys.readouterr().out.splitlines()
    assert heading.split("\t") == ["file", "name", "nbytes", "nsamples", "base", "last", "datasets"]
    nbytes = sum(os.stat(tmp_path / f"s{k}.tar").st_size for k in range(2))
    assert line.split("\t") == [path, "None", str(nbytes), "7", "None", "s1.tar", "0"]
    assert main(["info", "-t"]) == 0


# --- sample


def test_sample(tmp_path, capsys):
    """The fields of one sample, decoded, sorted and cut to -w; the size of the dataset on stderr."""
    path = write_index(tmp_path, (3,))
    assert main(["sample", path, "1"]) == 0
    out, err = capsys.readouterr()
    assert err == "dataset size: 3\n"
    lines = out.splitlines()
    assert lines == sorted(lines)
    assert ".cls           1" in lines
    assert ".txt           'text 1'" in lines
    assert "__key__        's0-001'" in lines
    assert main(["sample", path, "-w", "20"]) == 0
    assert all(len(line) <= 20 for line in capsys.readouterr().out.splitlines())


@pytest.mark.parametrize("flag", ["-r", "--raw", "-p", "--python"])
def test_sample_raw(tmp_path, capsys, flag):
    """-r and -p show the bytes."""
    assert main(["sample", write_index(tmp_path, (3,)), "2", flag]) == 0
    assert ".cls           b'2'" in capsys.readouterr().out.splitlines()


def test_sample_cat(tmp_path, capfdbinary):
    """-c writes one field's bytes to stdout and nothing else; a field that is not there is named."""
    path = write_index(tmp_path, (3,))
    assert main(["sample", path, "2", "-c", ".bin"]) == 0
    sys.stdout.flush()
    assert capfdbinary.readouterr().out == bytes([2]) * 40
    assert main(["sample", path, "--cat", "bin"]) == 1
    assert b"has no field 'bin'; it has ['.bin', '.cls'" in capfdbinary.readouterr().err


def test_sample_of_a_field_without_a_name(tmp_path, capsys):
    """A member named like ``k.`` is shown under its dot, beside the dunder keys."""
    path = write_tar(tmp_path / "a.tar", {"k.": b""})
    write_json("i.json", {"wids_version": 1, "shardlist": [{"url": path, "nsamples": 1}]})
    assert main(["sample", "i.json"]) == 0
    assert "__key__        'k'" in capsys.readouterr().out.splitlines()


# --- as programs


def test_as_a_module():
    """``python -m wids.wids_index create`` works, and its exit code tells."""
    write_shards("d", (2,))
    command = [sys.executable, "-m", "wids.wids_index", "create"]
    env = {**os.environ, "PYTHONPATH": str(Path(wids.__file__).parents[1])}  # a relative one would not hold here
    done = subprocess.run([*command, "d/s0.tar"], capture_output=True, text=True, timeout=PATIENCE_SECONDS, env=env)
    assert (done.returncode, done.stderr) == (0, "")
    assert read("shardindex.json")["shardlist"][0]["nsamples"] == 2
    assert subprocess.run([*command, "no.tar"], capture_output=True, timeout=PATIENCE_SECONDS, env=env).returncode == 1
