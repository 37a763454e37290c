"""Indexes that are published in the repository of their shards, by a commit that huggingface_hub makes."""

import io
import json
import sys

import huggingface_hub.constants
import pytest

import wids
from notebooks import hub as stand_in_hub
from tests.support.cache_shards import pack
from tests.support.hub import begin_run
from wids.core.transport.session import Session
from wids.errors import DependencyError, FetchDeniedError, InputError, OutputError, OutputExistsError
from wids.hub.upload import IndexUpload, Published
from wids.jobs.index_create import create_index

HUB, TOKEN = "hf://datasets/org/set", "hf_writer"


def tar(rows, first=0):
    """A shard of so many samples, whose texts say their numbers."""
    return pack([(f"{row:03d}.txt", b"%d" % row) for row in range(first, first + rows)])


SHARDS = {"data/train-0.tar": tar(3), "data/train-1.tar": tar(2, 3), "data/val-0.tar": tar(1, 5)}


@pytest.fixture
def repository(stand_in, monkeypatch):
    """A repository with shards that no file counts, and one who may write there."""
    stand_in.put(SHARDS)
    stand_in.repository.write_token = TOKEN
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    return stand_in.repository


def upload(tmp_path, name=HUB, *, output="i.json", **options):
    """Make the index of a data set, and publish it."""
    place = IndexUpload([name], **options)
    create_index([name], str(tmp_path / output), name=place.name)
    return place.publish(str(tmp_path / output))


def files_of(repository, revision="main"):
    """Path -> bytes, of all files."""
    return {path: file.data for path, file in repository.commits[repository.find(revision)].items()}


def put(stand_in, **files):
    """Commit files, as somebody else does it: name without its ending -> JSON."""
    stand_in.put({f"{name.replace('_', '-')}.json": json.dumps(value).encode() for name, value in files.items()})


def test_a_repository_gets_an_index(stand_in, repository, tmp_path):
    """At its top, with URLs from there, by a commit that says what it is."""
    published, commit = upload(tmp_path), repository.find("main")
    page = f"{stand_in.url}/datasets/org/set/commit/{commit}"
    assert published == Published(HUB, "train", "train.json", "added", commit, page)
    found = json.loads(files_of(repository)["train.json"])
    assert [row["url"] for row in found["shardlist"]] == ["data/train-0.tar", "data/train-1.tar"]
    assert (found["name"], repository.messages) == (
        "org/set train",
        ["Add train.json: wids index of the split train, 5 samples in 2 shards"],
    )


def test_the_index_is_used(stand_in, repository, tmp_path, monkeypatch):
    """By the name of the data set, by its own, and in a copy of the repository; no shard is asked for its headers."""
    upload(tmp_path)
    stand_in.requests.clear()
    assert [*wids.ShardListDataset(HUB).lengths] == [3, 2]
    assert stand_in.requests["resolvers"] == 1  # of the index
    begin_run(monkeypatch)
    stand_in.requests.clear()
    assert [*wids.ShardListDataset(HUB, cache_dir=tmp_path / "other").lengths] == [3, 2]
    assert (stand_in.requests["resolvers"], stand_in.requests["store"]) == (1, 0)
    dataset = wids.ShardListDataset(f"{HUB}/train.json", transformations="raw")
    assert [sample[".txt"] for sample in dataset] == [b"0", b"1", b"2", b"3", b"4"]
    for path, data in files_of(repository).items():
        (tmp_path / "clone" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "clone" / path).write_bytes(data)
    assert len(wids.ShardListDataset(tmp_path / "clone" / "train.json")) == 5


def test_each_split_has_its_own(repository, tmp_path):
    """Of validation, whose folder has another word for it."""
    upload(tmp_path)
    published = upload(tmp_path, f"{HUB}?split=validation", output="validation.json")
    assert (published.path, published.split) == ("validation.json", "validation")
    assert [len(wids.ShardListDataset(HUB, split=split)) for split in ("train", "val")] == [5, 1]


def test_an_index_that_is_there(stand_in, repository, tmp_path, monkeypatch):
    """As it is: no commit. Of other shards: replaced; its own keys and those of shards stay; the message says so."""
    first = upload(tmp_path)
    again = upload(tmp_path)
    assert (again.change, again.commit, again.page, len(repository.messages)) == ("unchanged", first.commit, "", 1)
    found = json.loads(files_of(repository)["train.json"])
    found["shardlist"][0]["site"] = "Bern"
    put(stand_in, train={**found, "name": "own", "license": "mit", "wids_tables": "old.tables"})
    stand_in.put({"data/train-1.tar": tar(7, 3)})
    begin_run(monkeypatch)
    assert upload(tmp_path).change == "replaced"
    found = json.loads(files_of(repository)["train.json"])
    assert (found["name"], found["license"]) == ("own", "mit")
    assert [(row["nsamples"], row.get("site")) for row in found["shardlist"]] == [(3, "Bern"), (7, None)]
    assert repository.messages[1] == "Replace train.json: wids index of the split train, 10 samples in 2 shards"


def test_a_file_of_somebody_else_stays(stand_in, repository, monkeypatch, tmp_path):
    """Of its name; the index has the next one that is looked for. Without one there is no place."""
    annotations = [{"id": 3}]
    put(stand_in, train=annotations)
    assert upload(tmp_path).path == "wids-train.json"
    assert json.loads(files_of(repository)["train.json"]) == annotations
    begin_run(monkeypatch)
    stand_in.requests.clear()
    assert len(wids.ShardListDataset(HUB, cache_dir=tmp_path / "other")) == 5
    assert stand_in.requests["resolvers"] == 2
    put(stand_in, wids_train=annotations)
    begin_run(monkeypatch)
    with pytest.raises(OutputExistsError, match=r"train\.json and wids-train\.json exist .* are not indexes of the"):
        IndexUpload([HUB])


def test_a_branch(stand_in, repository, tmp_path):
    """It gets the commit, and main none; a tag and a commit take none."""
    repository.branches["dev"] = repository.tags["v1"] = repository.find("main")
    published = upload(tmp_path, f"{HUB}@dev")
    assert published.commit == repository.find("dev") != repository.find("main")
    assert "train.json" in files_of(repository, "dev").keys() - files_of(repository).keys()
    assert len(wids.ShardListDataset(HUB, revision="dev")) == 5
    for revision, words in (("v1", "v1 is a tag"), (repository.find("main"), "is a commit")):
        with pytest.raises(OutputError, match=f"{words}, and commits are made to branches"):
            IndexUpload([f"{HUB}@{revision}"])


@pytest.mark.parametrize(
    ("token", "words"),
    [
        ("", r"a commit needs a token with write access, and none was found; log in .*HF_TOKEN"),
        (
            "hf_reader",
            r"the token has no write access to this repository \(Forbidden.*\); use .* or offer the file: hf uplo",
        ),
    ],
)
def test_who_may_not_write_is_told_before_a_shard_is_read(stand_in, repository, monkeypatch, token, words):
    """And what to do."""
    monkeypatch.setenv("HF_TOKEN", token)
    with pytest.raises(OutputError, match=words) as caught:
        IndexUpload([HUB])
    assert "hf_reader" not in str(caught.value)
    assert stand_in.requests["resolvers"] == 0


def test_the_token_of_the_options(repository, monkeypatch, tmp_path):
    """It is the one that commits."""
    monkeypatch.delenv("HF_TOKEN")
    assert upload(tmp_path, session=Session({"token": TOKEN})).change == "added"


def test_a_token_that_is_refused_later(stand_in, repository, monkeypatch, tmp_path):
    """It was taken back while shards were read."""
    place = IndexUpload([HUB])
    create_index([HUB], str(tmp_path / "i.json"))
    repository.write_token = ""
    with pytest.raises(OutputError, match="the token has no write access"):
        place.publish(str(tmp_path / "i.json"))
    stand_in.knows_no_token = True
    with pytest.raises(OutputError, match="does not accept the token"):
        place.publish(str(tmp_path / "i.json"))


def test_a_commit_of_somebody_else_meanwhile(stand_in, repository, tmp_path):
    """The index may not be of its shards."""
    place = IndexUpload([HUB])
    create_index([HUB], str(tmp_path / "i.json"))
    stand_in.put({"data/train-1.tar": tar(7, 3)})
    with pytest.raises(OutputError, match="another commit was made since its files were listed; run it again"):
        place.publish(str(tmp_path / "i.json"))
    assert repository.messages == []


def test_a_gated_repository(repository):
    """As whoever reads there."""
    repository.is_gated, repository.token = True, "hf_other"
    with pytest.raises(FetchDeniedError, match="accept its terms"):
        IndexUpload([HUB])


def test_what_cannot_be_published(repository, monkeypatch):
    """Sources that are no one data set; and without the package that commits."""
    for sources in ([], [HUB, HUB], ["a.tar"], [f"{HUB}/data/*.tar"]):
        with pytest.raises(InputError, match="an index is uploaded to the data set that it is of"):
            IndexUpload(sources)
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(DependencyError, match=r"pip install 'wids\[hub\]'"):
        IndexUpload([HUB])


def test_an_index_that_would_not_be_read_back(repository, tmp_path):
    """It is of other shards than the repository's."""
    place = IndexUpload([HUB])
    (tmp_path / "o.json").write_text('{"wids_version": 1, "shardlist": [{"url": "/x/train-9.tar", "nsamples": 3}]}')
    with pytest.raises(OutputError, match="could not be read back"):
        place.publish(str(tmp_path / "o.json"))


@pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")  # within huggingface_hub
def test_a_large_index_goes_to_the_store(stand_in, repository, monkeypatch, tmp_path):
    """As the Hub asks for that, by LFS."""
    monkeypatch.setattr(stand_in_hub, "MAX_INLINE_BYTES", 10)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr(sys, "stderr", io.StringIO())  # where its client draws bars
    upload(tmp_path)
    begin_run(monkeypatch)
    assert len(wids.ShardListDataset(HUB, cache_dir=tmp_path / "other")) == 5
    assert stand_in.requests["store"] >= 1
