"""Which files are the shards of a split, and how many samples they hold: the layouts of data sets on the Hub."""

import json
import re

import pytest

from wids.errors import InputError, SpecError, without_secrets
from wids.hub import patterns
from wids.hub.repository import find_counts, find_split, parse_name, with_split

NAME = "hf://datasets/org/set"
CARD = """---
license: mit
configs:
- config_name: default
  data_files:
  - split: train
    path: shards/part-*.tar
  - split: held_out
    path: ["extra/**/*.tar", "more"]
---
# A set
"""
TIMM = {
    "splits": {
        "train": {"name": "train", "num_samples": 7, "filenames": ["b-0.tar", "a-1.tar"], "shard_lengths": [3, 4]},
        "validation": {"name": "validation", "num_samples": 2, "filenames": ["v.tar"], "shard_lengths": [2]},
    }
}
INDEX = {
    "wids_version": 1,
    "base": "data",
    "shardlist": [
        {"url": "a.tar", "nsamples": 5},
        {"url": f"{NAME}@main/data/b.tar", "nsamples": 6},
        {"url": "https://elsewhere/data/c.tar", "nsamples": 7},
        {"url": "../../out.tar", "nsamples": 8},
    ],
}
SHARDS = [{"offset": 512 * k, "length": 1} for k in range(5)]
WEBSHART = {
    "path": "0.tar",
    "filesize": 100,
    "files": dict(
        zip(["b.txt", "a.jpg", "a.txt", "noext", "b.jpg"], [SHARDS[k] for k in (4, 0, 1, 2, 3)], strict=True)
    ),
}


def repository(*archives, **files):
    """(files, archives, read, the names that were read) of a repository; names of others with __ for / and _ for ."""
    texts = {name: text if isinstance(text, str) else json.dumps(text) for name, text in files.items()}
    sizes = {**dict.fromkeys(archives, 100), **{name: len(text.encode()) for name, text in texts.items()}}
    asked = []

    def read(path):
        asked.append(path)
        return texts[path].encode()

    return sizes, list(archives), read, asked


def find(given, split=None, config=None):
    """(name, shards) of a split, and what files say of their samples."""
    files, archives, read, _ = given
    found = find_split(files, archives, read, split=split, name=NAME, config=config)
    return found, find_counts(files, found, read, name=NAME)


@pytest.mark.parametrize(
    ("archives", "split", "shards"),
    [
        (["b10.tar", "b9.tar", "__x/a.tar", ".h/a.tar"], None, ["b9.tar", "b10.tar"]),
        (["train-1.tar", "test-1.tar"], None, ["train-1.tar"]),
        (["train-1.tar", "set_val.01.tar", "valid2.tar"], "validation", ["set_val.01.tar", "valid2.tar"]),
        (["train-1.tar", "set_val.01.tar"], "dev", ["set_val.01.tar"]),
        (["training/test-1.tar", "eval/train-1.tar"], "train", ["training/test-1.tar"]),
        (["training/test-1.tar", "eval/train-1.tar"], "test", ["eval/train-1.tar"]),
        (["x/my train/1.tar", "x/trains/2.tar"], None, ["x/my train/1.tar"]),
        (["data/web-00000-of-00002.tar", "data/web-00001-of-00002.tar"], "web", ...),
        (["data/web-00000-of-00001.tar"], None, ["data/web-00000-of-00001.tar"]),
        (["test/0.tar"], None, ["test/0.tar"]),
    ],
)
def test_splits_by_names(archives, split, shards):
    """Numbered files in data/, else folders, else files, else all; keywords stand for each other."""
    found, _ = find(repository(*archives), split)
    assert found.shards == (archives if shards is ... else shards)
    assert set(found.shards).isdisjoint(found.left)


def test_what_is_of_no_split_is_told():
    """Other splits and what is left over."""
    found, _ = find(repository("train-1.tar", "val-1.tar", "val-2.tar", "odd.tar"))
    assert (found.name, found.others, found.left) == ("train", {"validation": 2}, ["odd.tar"])


@pytest.mark.parametrize(
    ("archives", "split", "words"),
    [
        (
            [],
            None,
            r"no \.tar files in this repository; its files end in \.md, \.parquet; .*\*\.parquet' --field",
        ),
        (["test-0.tar", "val-0.tar"], None, r"no split 'train'; .*: validation \(1\), test \(1\); choose"),
        (["train-0.tar"], "odd", r"no split 'odd'; .*choose one with split='train', or with \?split=train behind"),
    ],
)
def test_a_split_that_is_not_there(archives, split, words):
    """The splits that there are, or the kinds of files."""
    with pytest.raises(SpecError, match=words):
        find(repository(*archives, **{"README.md": "# x", "a.parquet": "x"}), split)


def test_a_card_says_which_files():
    """Before names; globs, lists and folders, in their order; a split of other formats has no shards."""
    given = repository(
        "shards/part-2.tar",
        "shards/part-10.tar",
        "extra/x/y/1.tar",
        "extra/0.tar",
        "more/m.tar",
        "shards/deep/part-3.tar",
        **{"README.md": CARD},
    )
    assert find(given)[0].shards == ["shards/part-2.tar", "shards/part-10.tar"]
    found, _ = find(given, "held_out")
    assert found.shards == ["extra/0.tar", "extra/x/y/1.tar", "more/m.tar"]
    assert found.left == ["shards/deep/part-3.tar"]
    other = CARD.replace("shards/part-*.tar", "data/*.parquet")
    with pytest.raises(SpecError, match=r"the split 'train' has no \.tar files"):
        find(repository("a.tar", **{"README.md": other}))


@pytest.mark.parametrize(
    ("text", "shards"),
    [
        ("configs:\n- config_name: x\n  data_files: a/*.tar\n", ["a/1.tar"]),
        ("configs:\n- config_name: x\n  data_files: ['b/[12].tar', 'a/?.tar']\n", ["b/1.tar", "b/2.tar", "a/1.tar"]),
        ("configs:\n- config_name: x\n  data_files: {train: 'b/[!2].tar'}\n", ["b/1.tar"]),
        ("configs:\n- config_name: x\n  data_dir: b\n", ["b/1.tar", "b/2.tar"]),
        ("configs:\n- config_name: x\n  data_dir: b\n  data_files: '1*'\n", ["b/1.tar"]),
        (
            "configs:\n- {config_name: x, data_files: b/1.tar}\n- {config_name: y, data_files: a, default: true}\n",
            ["a/1.tar"],
        ),
        ("configs:\n- {config_name: x, data_files: b/1.tar}\n- {config_name: default, data_files: a}\n", ["a/1.tar"]),
        ("license: mit\n", ["a/1.tar", "b/1.tar", "b/2.tar"]),
        ("configs:\n- config_name: x\n", ["a/1.tar", "b/1.tar", "b/2.tar"]),
    ],
)
def test_forms_of_a_card(text, shards):
    """What `data_files` and `data_dir` may be."""
    given = repository("a/1.tar", "b/1.tar", "b/2.tar", **{"README.md": f"---\n{text}---\n"})
    assert find(given)[0].shards == shards


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("configs: 7\n", "configs is not a list"),
        ("configs: [\n", r"README\.md: not valid YAML"),
        ("configs:\n- data_files: [{split: x}]\n", "an entry of data_files has no split or no path"),
        ("configs:\n- data_files: [[7]]\n", "a path of data_files"),
        (
            "configs:\n- {config_name: x, data_files: a}\n- {config_name: y, data_files: b}\n",
            "none is the default: x, y",
        ),
    ],
)
def test_a_card_that_is_malformed(text, words):
    """It is no card without configurations."""
    with pytest.raises(SpecError, match=words):
        find(repository("a.tar", **{"README.md": f"---\n{text}---\n"}))


@pytest.mark.parametrize(
    ("given", "split", "counts", "source"),
    [
        pytest.param(
            repository("b-0.tar", "a-1.tar", "v.tar", **{"_info.json": TIMM}),
            None,
            {"b-0.tar": 3, "a-1.tar": 4},
            "_info.json",
            id="timm",
        ),
        pytest.param(
            repository("b-0.tar", "a-1.tar", "v.tar", **{"info.json": TIMM}),
            "val",
            {"v.tar": 2},
            "info.json",
            id="timm-validation",
        ),
        pytest.param(
            repository("d/0.tar", "d/1.tar", **{"d/sizes.json": {"0.tar": 3, "1.tar": "4", "9.tar": 1}}),
            None,
            {"d/0.tar": 3, "d/1.tar": 4},
            "d/sizes.json",
            id="open_clip",
        ),
        pytest.param(
            repository("d/00.tar", **{"d/00_stats.json": {"count": 9, "successes": 7}}),
            None,
            {"d/00.tar": 7},
            "d/00_stats.json",
            id="img2dataset",
        ),
        pytest.param(repository("0.tar", **{"0.json": WEBSHART}), None, {"0.tar": 2}, "0.json", id="webshart"),
        pytest.param(
            repository("s/0.tar", "s/1.tar", **{".nv-meta/.info.json": {"shard_counts": {"s/0.tar": 5, "s/1.tar": 6}}}),
            None,
            {"s/0.tar": 5, "s/1.tar": 6},
            ".nv-meta/.info.json",
            id="energon",
        ),
        pytest.param(
            repository("data/a.tar", "data/b.tar", "data/c.tar", **{"train.json": INDEX}),
            None,
            {"data/a.tar": 5, "data/b.tar": 6},
            "train.json",
            id="wids",
        ),
    ],
)
def test_counts_of_the_layouts(given, split, counts, source):
    """Each of these files says how many samples there are; none is read that is not needed."""
    _, found = find(given, split)
    assert (found.nsamples, found.sources) == (counts, {source: len(counts)})


def test_energon_s_splits():
    """Names with braces, in YAML; the counts are of all."""
    text = "split_parts:\n  train: ['s/x_{0..1}.tar']\n  val: 's/x_{2,3}.tar'\nexclude: []\n"
    info = {"shard_counts": {f"s/x_{k}.tar": k + 1 for k in range(4)}}
    given = repository(*info["shard_counts"], **{".nv-meta/split.yaml": text, ".nv-meta/.info.json": info})
    assert find(given)[1].nsamples == {"s/x_0.tar": 1, "s/x_1.tar": 2}
    found, counts = find(given, "validation")
    assert (found.name, counts.nsamples) == ("val", {"s/x_2.tar": 3, "s/x_3.tar": 4})


def test_counts_come_from_several_files(caplog):
    """Of each shard from the first that has one; what cannot be used is warned of."""
    given = repository(
        *("0.tar", "1.tar", "2.tar", "3.tar", "4.tar"),
        **{
            "sizes.json": {"0.tar": 3},
            "0_stats.json": {"successes": 99},
            "1_stats.json": {"successes": 4},
            "2_stats.json": {"successes": "many"},
            "3.json": {**WEBSHART, "filesize": 7},
            "4_stats.json": "{",
            "train.json": {"annotations": []},
        },
    )
    _, found = find(given)
    assert (found.nsamples, found.sources) == ({"0.tar": 3, "1.tar": 4}, {"sizes.json": 1, "1_stats.json": 1})
    assert "0_stats.json" not in given[3]
    for words in (
        "2_stats.json is not used for counts: its count of 2.tar is 'many'",
        "of a shard of 7 bytes",
        "4_stats.json",
    ):
        assert words in caplog.text


def test_names():
    """Data sets, revisions, splits and pages; no files, folders and globs."""
    assert parse_name(NAME) == (NAME, None, None)
    assert parse_name(f"{NAME}@v1/?split=val") == (f"{NAME}@v1", "val", None)
    assert parse_name(f"{NAME}@refs/pr/3") == (f"{NAME}@refs/pr/3", None, None)
    assert parse_name("https://huggingface.co/datasets/org/set/tree/v1") == (f"{NAME}@v1", None, None)
    for other in (f"{NAME}/a.tar", f"{NAME}/a/", f"{NAME}/*.tar", "hf://datasets/org", "hf://buckets/org/set", "a.tar"):
        assert parse_name(other) is None


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({}, "this repository is empty"),
        ({".gitattributes": 9}, "this repository is empty"),
        ({"a.jpg": 9, "LICENSE": 9}, r"files end in \.jpg, no extension; wids pack makes shards of files"),
    ],
)
def test_a_repository_without_shards(files, words):
    """Says what there is, and what can be done."""
    with pytest.raises(SpecError, match=words):
        find_split(files, [], {}.__getitem__, split=None, name=NAME)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (f"{NAME}?split=", "only .split=SPLIT or .config=CONFIG&split=SPLIT may follow the name of a data set"),
        (f"{NAME}?token=hf_x", "only .split=SPLIT or .config=CONFIG&split=SPLIT may follow the name of a data set"),
        ("https://huggingface.co/datasets/org/set?row=3", "may follow the name"),
        (
            "https://huggingface.co/datasets/org/set/tree/main/data",
            "a web page; give the data set, hf://datasets/org/set, or a part of it, hf://datasets/org/set@main/data/$",
        ),
        (
            "https://huggingface.co/datasets/org/set/blob/v1/a.tar?x=1",
            "or a part of it, hf://datasets/org/set@v1/a.tar$",
        ),
        ("https://huggingface.co/datasets/org/set/viewer", "give the data set, hf://datasets/org/set$"),
    ],
)
def test_what_is_almost_a_name(given, words):
    """Says what to give."""
    with pytest.raises(SpecError, match=words) as caught:
        parse_name(given)
    assert "hf_x" not in str(caught.value)


def test_a_name_with_its_split_and_revision():
    """Said once; for such names alone."""
    assert with_split(NAME, split=None, revision=None) == NAME
    assert with_split(NAME, split="val", revision="a/b") == f"{NAME}@a%2Fb?split=val"
    assert with_split(f"{NAME}@v1", split="val", revision="v1") == f"{NAME}@v1?split=val"
    for given, options in (
        (f"{NAME}@v1", {"split": None, "revision": "v2"}),
        (f"{NAME}?split=a", {"split": "b", "revision": None}),
        (f"{NAME}/a.tar", {"split": "b", "revision": None}),
        ([NAME], {"split": "b", "revision": None}),
    ):
        with pytest.raises(InputError):
            with_split(given, **options)
    with pytest.raises(TypeError, match="split is 3"):
        with_split(NAME, split=3, revision=None)


# --- hostile files


def card(text):
    """A repository's card."""
    return {"README.md": f"---\n{text}\n---\n"}


BOMB = "a0: &a0 [x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{k}: &a{k} [{', '.join([f'*a{k - 1}'] * 8)}]\n" for k in range(1, 9)
)
MERGES = "m0: &m0 {a: 1, b: 2}\n" + "".join(
    f"m{k}: &m{k}\n  <<: [{', '.join([f'*m{k - 1}'] * 8)}]\n" for k in range(1, 9)
)


@pytest.mark.parametrize(
    "text",
    [
        *(f"{BOMB}configs:\n- {words}" for words in ("data_files: *a8", "data_dir: *a8", "{data_files: x, y: *a8}")),
        f"{MERGES}configs:\n- data_files: x",
        *(
            f"configs:\n- data_files: {tag}"
            for tag in ("!!bool x", "!!int ''", "!!timestamp x", "!!python/name:os.x y")
        ),
    ],
)
def test_a_card_that_is_a_bomb_or_no_values(text):
    """Aliases of aliases are counted as if they were written out; a malformed value is an error as any other."""
    with pytest.raises(SpecError, match=r"README.md: not valid YAML"):
        find(repository("a.tar", **card(text)))


def test_a_card_may_repeat_itself():
    """By aliases, as whoever writes YAML by a program does."""
    text = "f: &f [int, str]\nconfigs:\n" + "".join(
        f"- {{config_name: c{k}, features: *f, data_files: 't{k}/*', default: {str(k == 7).lower()}}}\n"
        for k in range(50)
    )
    assert find(repository("t7/a.tar", "t8/a.tar", **card(text)))[0].shards == ["t7/a.tar"]


@pytest.mark.parametrize(
    ("config", "shards"),
    [
        *((f"data_files: {nothing}", ["train-0.tar", "train-1.tar"]) for nothing in ("{}", "[]", "null")),
        *((f"data_dir: {top}", ["train-0.tar", "train-1.tar"]) for top in ("null", "''", ".", "./")),
        (
            "data_files: [{split: train, path: train-1.tar}, {split: train, path: 'train-*'}]",
            ["train-1.tar", "train-0.tar"],
        ),
        ("data_files: ['[z-a].tar', '[!]', 'train-[!1].tar']", ["train-0.tar"]),
    ],
)
def test_odd_configurations(config, shards):
    """Nothing is as if nothing was said; what a split is given twice for are its files; a set that is none, letters."""
    given = repository("train-0.tar", "train-1.tar", "val-0.tar", **card(f"configs:\n- {config}"))
    assert find(given)[0].shards == shards


def test_a_shard_that_timm_names_twice():
    """It comes once."""
    lengths = {"train": {"filenames": ["0.tar", "0.tar", "./0.tar", "1.tar"], "shard_lengths": [1, 1, 1, 2]}}
    assert find(repository("0.tar", "1.tar", **{"_info.json": {"splits": lengths}}))[0].shards == ["0.tar", "1.tar"]


def test_a_name_of_five_thousand_digits():
    """It can be sorted."""
    names = ["1.tar", f"{'9' * 5000}.tar"]
    assert find(repository(*reversed(names)))[0].shards == names


def test_a_revision_that_is_said_twice():
    """With its slash as it is, and quoted."""
    for at in ("refs/pr/1", "refs%2Fpr%2F1"):
        assert parse_name(with_split(f"{NAME}@{at}", split=None, revision="refs/pr/1")).root == f"{NAME}@refs%2Fpr%2F1"


# --- shards of another split, and excluded ones


@pytest.mark.parametrize(
    ("archives", "split", "shards"),
    [
        (["TRAIN/0.tar", "VAL/0.tar"], None, ["TRAIN/0.tar"]),
        (["TRAIN/0.tar", "VAL/0.tar"], "val", ["VAL/0.tar"]),
        (["trainset/0.tar", "testset/0.tar"], None, ["trainset/0.tar"]),
        (["TrainImages/0.tar", "TestImages/0.tar"], "test", ["TestImages/0.tar"]),
        (["x/Training_0.tar", "x/Evaluation_0.tar"], None, ["x/Training_0.tar"]),
        (["train/0.tar", "TEST/0.tar"], "test", ["TEST/0.tar"]),
        (["TestBench/train-0.tar", "TestBench/val-0.tar"], None, ["TestBench/train-0.tar"]),
        (["train/train/0.tar", "train/val/0.tar"], None, ["train/train/0.tar"]),
        (["train_test_split/train-0.tar", "train_test_split/test-0.tar"], None, ["train_test_split/train-0.tar"]),
        (["latest/0.tar", "contest/1.tar"], None, ["contest/1.tar", "latest/0.tar"]),
    ],
)
def test_splits_in_capitals_and_longer_words(archives, split, shards):
    """A folder of test data in another spelling is no training data; the innermost of two splits wins."""
    assert find(repository(*archives), split)[0].shards == shards


def test_shards_that_may_be_of_two_splits():
    """They are neither trained on nor left out unnoticed."""
    given = repository("train_val/0.tar", "test/0.tar")
    for split in (None, "train", "validation"):
        with pytest.raises(SpecError, match=r"1 shards may be of the split '.*' or another .*'train_val/0.tar'; name"):
            find(given, split)
    assert find(given, "test")[0].shards == ["test/0.tar"]


@pytest.mark.parametrize(
    ("archives", "words"),
    [
        (
            ["mytests/0.tar", "mine/0.tar"],
            r"no name is that of a split, .* 1 of them may be of another: 'mytests/0.tar'",
        ),
        (["training/test-1.tar", "training/1.tar"], r"1 shards are taken as train, and have test in their names"),
        (["val/0.tar"], "its only split is 'validation', which is read"),
    ],
)
def test_doubts_are_told(archives, words):
    """What may be another split's data is named, with a way to choose."""
    (note,) = find(repository(*archives))[0].notes
    assert re.search(words, note)


def test_names_without_doubt():
    """The usual ones say nothing, nor do words that hold the letters of a split."""
    for archives in (["train/0.tar", "test/0.tar"], ["0.tar"], ["train-0.tar"], ["data/train-00000-of-00001.tar"]):
        assert not find(repository(*archives))[0].notes
    words = "contest latest Testimonials festival retrieval-0 medieval devices valley devanagari intestine intervals"
    for word in words.split():
        assert not find(repository(f"{word}/0.tar", "reviews/0.tar"))[0].notes


@pytest.mark.parametrize("folder", ["tst-COMMON", "prueba", "Prüfung", "测试", "тест", "holdout"])
def test_held_out_data_in_other_words(folder):
    """They are named, where no name is that of a split."""
    (note,) = find(repository(f"{folder}/0.tar", "mine/0.tar"))[0].notes
    assert f"1 of them may be of another: '{folder}/0.tar'" in note


@pytest.mark.parametrize("archives", [["trainval/0.tar", "test/0.tar"], ["laion_test_0.tar", "laion_0.tar"]])
def test_held_out_data_are_no_default_beside_others(archives):
    """A split that is test data is read only if it is asked for, where other shards are of no split."""
    given = repository(*archives)
    with pytest.raises(SpecError, match=r"no name is that of the split train: 1 shards are of 'test', and 1 of none: "):
        find(given)
    assert len(find(given, "test")[0].shards) == 1


def test_patterns_of_a_card_that_match_nothing():
    """They are named, those for .tar files; without them a part of the split would be missing unnoticed."""
    files = card("configs:\n- data_files:\n  - {split: train, path: [a/*.tar, b/*.tar, 'a/*.json']}")
    (note,) = find(repository("a/0.tar", **files))[0].notes
    assert note.endswith("README.md: 1 patterns of the split 'train' match no .tar file: 'b/*.tar'")


def test_many_splits_have_the_limit_of_one(monkeypatch):
    """A card of thousands of splits, each of little cost, does not take minutes."""
    monkeypatch.setattr(patterns, "_MAX_COST", 10_000)
    given = dict.fromkeys(range(1000), "'**/*.tar'")
    with pytest.raises(SpecError, match="its patterns take more than 10,000 comparisons"):
        find(repository("a/0.tar", **card(f"configs:\n- data_files: {str(given).replace(chr(34), '')}")))


def test_shards_that_two_splits_of_a_card_have():
    """Training data that are test data, too, are named; a split of all shards says nothing."""
    files = card("configs:\n- data_files: {train: 'a/*.tar', test: a/1.tar, all: '**/*.tar'}")
    given = repository("a/0.tar", "a/1.tar", **files)
    (note,) = find(given)[0].notes
    assert note.endswith("1 shards of the split 'train' are of test, too: 'a/1.tar'")
    assert not find(given, "all")[0].notes


SPLIT_YAML = "split_parts:\n  train: ['s/{0..3}.tar']\nexclude: "


@pytest.mark.parametrize(
    "exclude", ["[s/1.tar, 's/{2..3}.tar']", "s/{1..3}.tar", "[./s/1.tar, s/2.tar, s/3.tar, s/9.tar/7]"]
)
def test_what_energon_excludes_is_in_no_split(exclude):
    """Shards, by name and in braces; samples of shards that are not there do not matter."""
    given = repository(*(f"s/{k}.tar" for k in range(4)), **{".nv-meta/split.yaml": SPLIT_YAML + exclude})
    assert find(given)[0].shards == ["s/0.tar"]


def test_what_energon_excludes_holds_for_other_sources():
    """For names, for cards, for split.json, and for a data set in a folder."""
    exclude = {"exclude": ["0.tar"]}
    for files in (
        {".nv-meta/split.json": exclude},
        {".nv-meta/split.json": exclude, **card("configs:\n- data_files: '*.tar'")},
        {".nv-meta/split.yaml": "exclude: [0.tar]"},
    ):
        assert find(repository("0.tar", "1.tar", **files))[0].shards == ["1.tar"]
    given = repository("a/0.tar", "a/1.tar", "b/0.tar", **{"a/.nv-meta/split.json": exclude})
    assert find(given)[0].shards == ["a/1.tar", "b/0.tar"]


@pytest.mark.parametrize(
    ("exclude", "words"),
    [
        ("[s/1.tar/000032]", r"exclude leaves out 1 single samples \('s/1.tar/000032'\).*exclude\(\['000032', ...\]\)"),
        ("['s/{1..2}.tar/{a,b}/k']", r"exclude leaves out 4 single samples .*exclude\(\['a/k', ...\]\)"),
        ("['s/*.tar']", r"exclude has 's/\*\.tar', which is neither the name"),
        ("['s/{0..3}.tar']", "its owner excludes all 4 shards"),
        ("7", "exclude has 7"),
        ("['{0..99999999}']", "expands to more than"),
    ],
)
def test_what_cannot_be_excluded_is_an_error(exclude, words):
    """Nothing that an owner leaves out is read."""
    given = repository(*(f"s/{k}.tar" for k in range(4)), **{".nv-meta/split.yaml": SPLIT_YAML + exclude})
    with pytest.raises(SpecError, match=words):
        find(given)


def test_names_and_keys_of_energon_that_mean_nothing(caplog):
    """Warned of: shards that are not there, in a split and excluded, and unknown keys."""
    text = "split_parts: {train: ['{0..2}.tar']}\nexclude: [5.tar]\nsubset: {range: [0, 0.5]}\n"
    assert find(repository("0.tar", "1.tar", **{".nv-meta/split.yaml": text}))[0].shards == ["0.tar", "1.tar"]
    for words in (
        "names 1 shards of 'train' that do not exist: '2.tar'",
        "do not exist: '5.tar'",
        "does not read 'subset'",
    ):
        assert words in caplog.text


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("configs:\n- {data_files: '*.tar', exclude: [1.tar], features: 7, skip: false}", "'exclude', which could"),
        (
            "configs:\n- data_files: [{split: train, path: '*.tar', subset: 3}]",
            "data_files: wids does not read 'subset'",
        ),
    ],
)
def test_keys_of_a_card_that_choose_samples(text, words, caplog):
    """Are named once, and no others."""
    assert find(repository("0.tar", **card(text)))[0].shards == ["0.tar"]
    assert words in caplog.text
    assert not re.search("features|skip", caplog.text)


CONFIGS = """configs:
- {config_name: text, data_files: 'data/*.parquet', default: true}
- {config_name: pictures & more, data_files: {train: 'img/*.tar', test: 'none/*.tar'}}
"""


def test_a_configuration_is_chosen_by_name():
    """By argument and in the name; the error for a table names it, its pattern and the others."""
    given = repository("img/0.tar", "other/0.tar", **{"data/0.parquet": "x"}, **card(CONFIGS))
    with pytest.raises(
        SpecError, match=r"configuration text of its card names 'data/\*\.parquet'; others are pictures"
    ):
        find(given)
    assert find(given, config="pictures & more")[0].shards == ["img/0.tar"]
    with pytest.raises(
        SpecError, match=r"'test' has no \.tar files .* names 'none/\*\.tar'; others are text: choose one"
    ):
        find(given, "test", config="pictures & more")
    with pytest.raises(SpecError, match="no configuration 'odd'; its configurations are text, pictures & more"):
        find(given, config="odd")
    with pytest.raises(SpecError, match="no configuration 'odd'; its card has no configurations"):
        find(repository("0.tar"), config="odd")


def test_a_name_with_its_configuration():
    """Survives being written and read; once, and of such names alone."""
    name = with_split(NAME, split="val", revision="v1", config="a & b/c")
    assert parse_name(name) == (f"{NAME}@v1", "val", "a & b/c")
    assert parse_name(name).text == name
    assert parse_name(f"{NAME}?split=a&config=b") == (NAME, "a", "b")
    assert with_split(f"{NAME}?config=b", split="a", revision=None) == f"{NAME}?config=b&split=a"
    assert without_secrets(f"see {NAME}?config=b&split=a") == f"see {NAME}?config=b&split=a"
    for given in (f"{NAME}?split=a&split=b", f"{NAME}?config=a&config=b"):
        with pytest.raises(SpecError, match="twice"):
            parse_name(given)
    with pytest.raises(InputError, match="config is 'c', but"):
        with_split(f"{NAME}?config=b", split=None, revision=None, config="c")


def test_files_that_are_too_long_are_not_passed_over():
    """A card or split that is not read might say what is training data."""
    for path, most in (("README.md", 4 << 20), (".nv-meta/split.yaml", 64 << 20), ("_info.json", 64 << 20)):
        files, archives, read, asked = repository("0.tar", **{path: "x"})
        with pytest.raises(SpecError, match=rf"has {most + 1:,} bytes, and at most {most:,} are read"):
            find_split({**files, path: most + 1}, archives, read, split=None, name=NAME)
        assert not asked


@pytest.mark.parametrize(
    "text",
    [
        "configs:\n- data_files: '" + "**/" * 300 + "x.tar'",
        "configs:\n- data_files: '" + "*a" * 500 + "'",
        "configs: 1" + ":59" * 300_000,
        "configs: [" + "x," * 500_000 + "]",
        "configs:\n- data_files:\n" + "".join(f"  - '**/*{k}*.tar'\n" for k in range(3000)),
    ],
)
def test_a_card_that_would_take_forever(text, monkeypatch):
    """It ends, with a typed error."""
    monkeypatch.setattr(patterns, "_MAX_COST", 100_000)
    names = ["/".join("a" * 200) + f"/{k}{'a' * 200}.tar" for k in range(500)]
    with pytest.raises(SpecError):
        find(repository(*names, **card(text)))


def test_an_expression_in_energon_s_splits_is_not_run():
    """A regular expression that backtracks is refused as no name."""
    text = "split_parts: {train: ['(a+)+b$']}"
    with pytest.raises(SpecError, match=r"split_parts has .* which is neither"):
        find(repository("a" * 60 + ".tar", **{".nv-meta/split.yaml": text}))
