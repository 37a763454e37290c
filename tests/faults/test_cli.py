"""The command line under bad input: its output, its indexes and its exit codes."""

from __future__ import annotations

import io
import json
import os
import sys

import pytest

import wids
from tests.support.cli import run, run_apart
from tests.support.shards import write_index, write_json, write_shard
from wids.cli.format import print_table, to_json
from wids.errors import (
    CacheError,
    ChangedShardError,
    FetchDeniedError,
    InputError,
    OutputError,
    OutputExistsError,
    WidsError,
)
from wids.files import atomic
from wids.index import checksums, writing
from wids.jobs import scan
from wids.jobs.index_create import IndexSettings, KnownShards, create_index
from wids.jobs.index_edit import merge_indexes, split_index
from wids.jobs.scan import ScanTask, scan_shard

# --- what is printed


def test_a_table_on_a_terminal_without_columns_tells_all(monkeypatch):
    """A terminal that says it has no columns, or very few, gets a table all the same."""
    out = io.StringIO()
    monkeypatch.setattr(out, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    for columns in ("0", "5"):
        monkeypatch.setenv("COLUMNS", columns)
        print_table(("shard", "what", "where", "what to do"), [("a.tar", "bad", "x", "mend it")])
    assert out.getvalue().count("a.tar") == 2


def test_the_line_of_an_error_is_shown_and_not_obeyed(tmp_path):
    """A shard's name with escape sequences does nothing to the terminal when an error names it."""
    bad = tmp_path / "a\x1b]0;x\x07\x1b[31m.tar"
    bad.write_bytes(b"no tar" * 500)
    code, _, told = run("index", "create", tmp_path, "-o", tmp_path / "i.json")
    assert code == 1
    assert "\x1b" not in told
    assert "\x07" not in told
    assert "\\x1b[31m.tar" in told


@pytest.mark.e2e
def test_a_closed_stdout_is_no_error(tmp_path):
    """With stdout closed a command does its work and says nothing."""
    write_shard(tmp_path / "a.tar", 3)
    before = "import sys; sys.stdout = None  # as Python has it when 1 is closed"
    assert run_apart("index", "create", tmp_path, "-o", tmp_path / "i.json", before=before) == (0, "", "")
    assert (tmp_path / "i.json").exists()


@pytest.mark.parametrize("args", [(), ("--help",), ("--version",)])
@pytest.mark.e2e
def test_help_on_a_full_disk_is_one_line(args):
    """What is printed before a command runs fails in a line, too."""
    with open("/dev/full", "wb") as full:
        code, _, told = run_apart(*args, stdout=full)
    assert code == 1
    assert told.count("\n") == 1


def test_json_has_no_infinity(tmp_path):
    """Numbers that JSON has no word for are null in what is printed as JSON."""
    text = '{"wids_version": 1, "shardlist": [{"url": "a.tar", "nsamples": 5, "x": [1e999, 2.5], "y": NaN}]}'
    (tmp_path / "i.json").write_text(text)
    _, out, _ = run("ls", tmp_path / "i.json", "--shards", "--json")

    def refuse(word):
        raise AssertionError(word)

    found = json.loads(out, parse_constant=refuse)
    assert (found["x"], found["y"]) == ([None, 2.5], None)
    assert json.loads(to_json({"a": (float("inf"), "x")})) == {"a": [None, "x"]}


# --- absurd numbers and names


@pytest.mark.parametrize(
    ("option", "number", "words"),
    [
        ("--batch-size", 10**21, "--batch-size"),
        ("--window", 10**22, "--window"),
        ("--samples", 10**20, "--samples"),
        ("--shard-size", "1e99P", "cannot be simulated"),
    ],
)
def test_a_simulation_of_absurd_numbers_is_refused(option, number, words):
    """Numbers that no array holds are wrong usage, and told in a sentence."""
    usual = {"--shards": 3, "--samples": 10, "--shard-size": "1MB"}
    args = [part for pair in {**usual, option: number}.items() for part in pair]
    code, _, told = run("simulate", *args)
    assert code == 2
    assert words in told


@pytest.mark.parametrize("command", ["when", "at", "simulate"])
def test_more_ranks_than_there_will_ever_be_are_refused(tmp_path, command):
    """A number of ranks that would be gone through for hours, or fill the memory, is wrong usage."""
    index = write_index(tmp_path)
    rest = {"when": ["0"], "at": ["--step", "0", "--rank", "0"], "simulate": []}[command]
    code, _, told = run(command, index, *rest, "--world-size", 10**12)
    assert code == 2
    assert "--world-size" in told


def test_what_needs_more_memory_than_there_is_is_told_in_a_line(tmp_path):
    """An index that promises absurdly many samples ends in a sentence where they would be laid out."""
    shards = [{"url": "a.tar", "nsamples": 10**17, "filesize": 1}]
    index = write_json(tmp_path / "i.json", {"wids_version": 1, "shardlist": shards})
    code, _, told = run("when", index, "0", "--world-size", 7)
    assert code == 1
    assert "memory" in told


@pytest.mark.parametrize("name", ["\ud800.tar", "a\0.tar"])
def test_a_name_that_no_file_can_have_is_not_there(tmp_path, name):
    """A name that an index has, and that the file system refuses, is that of a missing file."""
    index = write_json(tmp_path / "i.json", {"wids_version": 1, "shardlist": [{"url": name, "nsamples": 1}]})
    with pytest.raises(FileNotFoundError):
        atomic.open_file(str(tmp_path / name))
    assert run("verify", index)[0] == 1
    for args in (("info", index), ("index", "update", index)):
        code, _, told = run(*args)
        assert code == 1
        assert "i.json" in told or "there is no file" in told
    assert run("pack", index, "-o", tmp_path / "out/x-%d.tar")[0] == 1


def test_a_link_in_a_circle_is_tried_once(tmp_path, monkeypatch):
    """What another try cannot mend is not tried again for seconds."""
    (tmp_path / "a.tar").symlink_to("a.tar")
    tries = []
    real = atomic.open_file
    monkeypatch.setattr(atomic, "open_file", lambda path: tries.append(path) or real(path))
    with pytest.raises(FetchDeniedError, match="symbolic links"):
        scan_shard(ScanTask(url=str(tmp_path / "a.tar")))
    assert len(tries) == 1


# --- what is written over


def test_a_device_is_not_replaced_by_a_file(tmp_path):
    """Whoever may write to /dev does not lose /dev/null to an index or a page."""
    os.mkfifo(tmp_path / "null")  # stands for a device, which only root can make
    with pytest.raises(CacheError, match="not a file"):
        atomic.write_atomically(str(tmp_path / "null"), b"x")
    write_shard(tmp_path / "a.tar", 3)
    assert run("index", "create", tmp_path / "a.tar", "-o", tmp_path / "null")[0] == 1
    assert not os.path.isfile(tmp_path / "null")


def test_no_index_is_written_over_a_shard(tmp_path):
    """Merging and splitting refuse to replace a shard, whatever it is called."""
    write_shard(tmp_path / "shard", 3)
    shards = [{"url": "shard", "nsamples": 3}]
    index = write_json(tmp_path / "i.json", {"wids_version": 1, "shardlist": shards})
    before = (tmp_path / "shard").read_bytes()
    with pytest.raises(OutputExistsError, match="one of the shards"):
        merge_indexes([str(index)], str(tmp_path / "shard"))
    with pytest.raises(OutputExistsError, match="one of the shards"):
        split_index(str(index), [str(tmp_path / "shard")], parts=lambda counts: [range(len(counts))])
    assert (tmp_path / "shard").read_bytes() == before


def test_no_part_of_a_split_is_written_over_another(tmp_path):
    """Two spellings of one output are one file, and refused before anything is written."""
    index = write_index(tmp_path)
    outputs = [f"{tmp_path}/{name}" for name in ("a.json", "./a.json", "b.json")]
    with pytest.raises(InputError, match="one file"):
        split_index(index, outputs, parts=lambda counts: [range(k, k + 1) for k in range(len(counts))])
    assert not (tmp_path / "a.json").exists()


def test_a_fraction_that_is_no_number_is_refused(tmp_path):
    """--fractions nan,1 is an error, not some cut."""
    code, _, told = run("index", "split", write_index(tmp_path), "--fractions", "nan,1", "-o", tmp_path / "p{}.json")
    assert code == 1
    assert "fractions" in told


def test_two_writers_of_one_pattern_do_not_mix(tmp_path):
    """Of two writers at once, the one that would replace the other's shard is refused."""
    pattern = tmp_path / "x-%d.tar"
    first, second = (wids.ShardWriter(pattern, samples=1) for _ in range(2))
    first.write({"__key__": "a", ".txt": "first"})
    second.write({"__key__": "a", ".txt": "second"})
    first.close()
    with pytest.raises(WidsError, match="another one write here"):
        second.close()
    assert wids.ShardListDataset(str(tmp_path / "x.json"))[0][".txt"] == "first"
    assert sorted(os.listdir(tmp_path)) == ["x-0.tar", "x-0.tar.widx", "x.json"]


# --- indexes that would be wrong


def test_member_tables_of_a_shard_that_was_replaced_are_made_again(tmp_path):
    """--members makes the table of a changed shard anew, although a run without it has read the shard already."""
    shard, output = tmp_path / "a.tar", str(tmp_path / "i.json")
    write_shard(shard, 2)
    create_index([str(shard)], output, settings=IndexSettings(has_tables=True))
    write_shard(shard, 40)
    create_index([str(shard)], output)
    create_index([str(shard)], output, settings=IndexSettings(has_tables=True))
    assert run("verify", output)[0] == 0
    assert create_index([str(shard)], output, settings=IndexSettings(has_tables=True)).unchanged == 1


@pytest.mark.parametrize("keys", [(), ("md5sum",), checksums.KEYS])
def test_a_shard_that_changes_while_it_is_read_is_told(tmp_path, monkeypatch, keys):
    """The size and digest in an index are of one and the same file, or there is no entry."""
    shard = tmp_path / "a.tar"
    write_shard(shard, 2)
    write_shard(tmp_path / "b.tar", 200)
    more = (tmp_path / "b.tar").read_bytes()
    real = scan.tables.build_table

    def late(*args, **options):
        table = real(*args, **options)
        shard.write_bytes(more)
        return table

    monkeypatch.setattr(scan.tables, "build_table", late)
    with pytest.raises(ChangedShardError, match="changed while it was read"):
        scan_shard(ScanTask(url=str(shard), checksums=keys))


def test_a_full_disk_is_told_with_the_name_of_the_index(tmp_path, monkeypatch):
    """When the journal cannot be written, the error says of which index, and what to do."""
    write_shard(tmp_path / "a.tar", 3)

    def fail(*_):
        raise OSError(28, "No space left on device")

    log = KnownShards(str(tmp_path / "i.json"))
    with monkeypatch.context() as patched:
        patched.setattr(os, "write", fail)
        with pytest.raises(OutputError, match=r"i\.json: cannot be written .*free space"):
            log.add(scan.ShardFacts(url="a.tar", nsamples=0, filesize=0))
    log.close()
    monkeypatch.setattr(writing, "dump_index", lambda _: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(OutputError, match=r"i\.json: cannot be written .*free space"):
        create_index([str(tmp_path / "a.tar")], str(tmp_path / "i.json"))
