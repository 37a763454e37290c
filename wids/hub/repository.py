"""Finds the shards of a split in a data set's repository, and their sample counts.

Pure: the names and sizes of the files, and a function that reads one, come from the caller. The first of these that
exists assigns files to splits:

1. the card, ``README.md``: ``data_files`` (or ``data_dir``) of one of its ``configs``, in the YAML at its top;
2. ``_info.json`` (or ``info.json``) of timm: ``{"splits": {"train": {"filenames": [...], "shard_lengths": [...]}}}``;
3. ``.nv-meta/split.yaml`` of Megatron-Energon: ``split_parts``, split -> names with braces;
4. names, by the rules of huggingface's ``datasets``: ``data/SPLIT-00000-of-00009.tar``; folders, else files, with the
   name of a split set off by ``-._ `` or digits; else the same in capitals, or as in ``trainset`` and ``TestData``;
   otherwise all files are ``train``. A shard whose folders name two splits is of the innermost one.

What ``exclude`` of a ``.nv-meta/split.yaml`` names is in no split, whatever assigns the files.

The count of a shard comes from the first of these that has it: an index of wids (``train.json``, ``wids-train.json``,
``index.json``, ...), timm's info,
``sizes.json``, ``.nv-meta/.info.json``, beside ``x.tar`` img2dataset's ``x_stats.json`` and webshart's ``x.json``
(``{"filesize": bytes, "files": {name: {"offset": ...}}}``). A count is a claim: a shard that holds another number of
samples is a `wids.errors.CountMismatchError` when it is opened.
"""

from __future__ import annotations

import contextlib
import posixpath
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias
from urllib.parse import quote, unquote

from wids.core.files.json_text import TOLERANT
from wids.core.index import energon, foreign
from wids.core.shard import MAX_COUNT
from wids.core.tables.keys import first_dot
from wids.core.transport import urls
from wids.errors import InputError, JsonError, OutputExistsError, SpecError, WidsError, shorten, shown
from wids.events import logger
from wids.hub.patterns import Matches, find_matches

if TYPE_CHECKING:
    from collections.abc import Iterator

Read: TypeAlias = Callable[[str], bytes]
# Like `map`, perhaps concurrent.
Map: TypeAlias = Callable[[Callable[[Any], Any], Sequence[Any]], Iterable[Any]]
# (bytes of a file, its path, sizes of all files by path) -> counts by path of the shard, as written there.
_Parse: TypeAlias = Callable[[bytes, str, Mapping[str, int]], dict[str, Any]]
CARD = "README.md"
DEFAULT_SPLIT = "train"
_NAME = re.compile(
    r"(?:hf://datasets/(?P<name>[^/@?#*]+/[^/@?#*]+)(?:@(?P<revision>refs/(?:convert/[\w.-]+|pr/\d+)|[^/?#*]+))?"
    r"|https://huggingface\.co/datasets/(?P<page>[^/@?#]+/[^/@?#]+)(?:/tree/(?P<tree>[^/?#]+))?)"
    r"/?(?:\?(?P<query>(?:config|split)=[^&/]+(?:&(?:config|split)=[^&/]+)?))?"
)
_PAGES = "https://huggingface.co/datasets/"
_QUERY = re.compile(rf"(?:hf://datasets/|{_PAGES})[^/?#]+/[^/?#]+/?\?.*", re.DOTALL)
_WITHIN = re.compile(rf"{_PAGES}([^/?#]+/[^/?#]+)/(tree|blob|viewer|discussions|commits?)(?:/([^?#]*))?(?:[?#].*)?")
_WORDS = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "dev", "val"),
    "test": ("test", "testing", "eval", "evaluation"),
}
_APART = r"[-._ 0-9]"
_EXACT = {
    split: (
        re.compile(rf"(?:^|{_APART})(?:{'|'.join(words)})(?:{_APART}|\Z)"),
        re.compile(rf"(?:^|{_APART})(?:{'|'.join(words)}){_APART}"),
    )
    for split, words in _WORDS.items()
}
_HELD_OUT = frozenset(_WORDS) - {DEFAULT_SPLIT}
_ENDINGS = ("", "set", "sets", "data", "dataset", "datasets", "split", "splits", "images", "imgs", "files", "shards")
_LOOSE = {word + ending: split for split, words in _WORDS.items() for word in words for ending in _ENDINGS}
_CAPITAL, _LETTERS = re.compile(r"(?<=[a-z])(?=[A-Z])"), re.compile(r"[a-z]+")
# Words of other splits than train, within other words.
_HELD = re.compile(
    r"test|valid|eval|(?<![a-z])(?:val|dev)|(?:val|dev)(?![a-z])|(?<![a-z])tst(?![a-z])|hold.?out|held.?out|"
    r"prueba|pr(?:ü|u\u0308)fung|тест|测试|測試|验证|驗證|テスト|検証|테스트|검증"
)
# Words that hold one of these, and name no split.
_INNOCENT = re.compile(
    r"(?<![a-z])(?:(?:at|brigh|con|cu|fas|grea|hot|la|ligh|pro|shor|smar)tests?(?![a-z])|intestin|testi(?:mon|cul)|testament|"
    r"(?:appro|arri|carni|festi|inter|na|o|remo|retrie|revi|ri|survi)vals?(?![a-z])|medieval|"
    r"val(?:en[ct]|ley|or|ue|ve)|dev(?:anag|elop|ia|ic|il|on|ot))"
)
_NUMBERED = re.compile(r"data/(?P<split>[\w.]+)-\d{5}-of-\d{5}[^/]*")
_TIMM = ("_info.json", "info.json")
_ENERGON = (".nv-meta/.info.json", ".nv-meta/.info.yaml")
_ENERGON_SPLITS = tuple(f".nv-meta/{name}" for name in energon.SPLITS)
_MAX_SPLIT_FILES = 100
_CONFIG_KEYS = ("config_name", "data_files", "data_dir", "default", "description", "drop_labels", "drop_metadata")
_TIMM_KEYS = ("name", "filenames", "shard_lengths", "num_samples")
_INDEX_NAMES = ("index", "wids", "shards", "shardlist", "dataset")
MAX_BYTES, MAX_CARD_BYTES = 64 << 20, 4 << 20
_SHOWN = 10
_MANY = 500
_FRONT = re.compile(rb"(?s)(?:\xef\xbb\xbf)?---[ \t]*\r?\n(.*?\n)---[ \t]*(?:\r?\n|$)")


class Named(NamedTuple):
    """A data set by its name.

    Attributes:
        root: of its files, as ``hf://datasets/ORG/NAME@REVISION``.
        split: its name; None: not named.
        config: its name; None: not named.
    """

    root: str
    split: str | None
    config: str | None = None

    @property
    def text(self) -> str:
        """The name, in the form that users give."""
        config = None if self.config is None else quote(self.config, safe=" ")
        pairs = [f"{key}={value}" for key, value in (("config", config), ("split", self.split)) if value is not None]
        return f"{self.root}?{'&'.join(pairs)}" if pairs else self.root


class RepositorySplit(NamedTuple):
    """The shards of a split.

    Attributes:
        name: of the split.
        shards: paths, in order.
        others: other splits -> their number of shards.
        left: shards of no split.
        config: the configuration of the card that was asked for, if any.
        notes: what the user should know of the choice, as sentences.
    """

    name: str
    shards: list[str]
    others: dict[str, int]
    left: list[str]
    config: str | None = None
    notes: Sequence[str] = ()


class _CountFile(NamedTuple):
    """A file that may have counts: its path, its shard (None: it has counts of many), and its parser."""

    path: str
    shard: str | None
    parse: _Parse


class RepositoryCounts(NamedTuple):
    """Sample counts of shards.

    Attributes:
        nsamples: path -> count, if a file has it.
        sources: file -> the number of counts from it.
    """

    nsamples: dict[str, int]
    sources: dict[str, int]


def parse_name(given: str) -> Named | None:
    """``hf://datasets/ORG/NAME[@REVISION][?config=CONFIG&split=SPLIT]``, or its web page; None: it is another place.

    Raises:
        SpecError: it is such a name with another query, or the page of a part of a data set.
    """
    found = _NAME.fullmatch(given)
    if found is None:
        if _QUERY.fullmatch(given):
            what = "only ?split=SPLIT or ?config=CONFIG&split=SPLIT may follow the name of a data set"
            raise SpecError(f"{given.partition('?')[0]}: {what}", path="shards", url=given)
        if within := _WITHIN.fullmatch(given):
            what = f"is a web page; give the data set, hf://datasets/{within[1]}"
            if within[3]:
                what += f", or a part of it, hf://datasets/{within[1]}@{within[3]}{'/' if within[2] == 'tree' else ''}"
            raise SpecError(f"{given}: {what}", path="shards", url=given)
        return None
    revision, pairs = found["revision"] or found["tree"], (found["query"] or "").split("&")
    query = dict(pair.partition("=")[::2] for pair in pairs if pair)
    if len(query) < len([pair for pair in pairs if pair]):
        raise SpecError(f"{given}: has one parameter twice", path="shards", url=given)
    root = f"hf://datasets/{found['name'] or found['page']}{f'@{revision}' if revision else ''}"
    return Named(root, query.get("split"), unquote(query["config"]) if "config" in query else None)


def with_split(given: Any, *, split: str | None, revision: str | None, config: str | None = None) -> Any:
    """The name of a data set with its split, revision and configuration, which no other source has.

    Raises:
        InputError: ``given`` is not such a name, or has another of these. TypeError: one is not a str.
    """
    if split is None and revision is None and config is None:
        return given
    for what, value in (("split", split), ("revision", revision), ("config", config)):
        if value is not None and not isinstance(value, str):
            raise TypeError(f"{what} is {value!r:.200}; it must be a text")
    named = parse_name(given) if isinstance(given, str) else None
    if named is None:
        raise InputError(
            "split, config and revision are only for the name of a data set of the Hugging Face Hub, "
            f"hf://datasets/ORG/NAME; shards is {shown(given)}"
        )
    root, _, own = named.root.partition("@")
    at = revision and quote(revision, safe="")
    pairs = (("split", split, named.split), ("revision", at, own or None), ("config", config, named.config))
    for what, value, before in pairs:
        if value is not None and before is not None and unquote(before) != unquote(value):
            raise InputError(f"{what} is {value!r:.100}, but {given} has {before!r:.100}; give one of them")
    at = at or own
    return Named(f"{root}{f'@{at}' if at else ''}", split or named.split, config or named.config).text


# --- which files


def find_split(
    files: Mapping[str, int],
    archives: Iterable[str],
    read: Read,
    *,
    split: str | None,
    name: str,
    config: str | None = None,
) -> RepositorySplit:
    """The shards of a split.

    Args:
        files: path -> bytes, of all files of the repository.
        archives: the files with the names of shards.
        read: returns the bytes of a file.
        split: its name; None: ``"train"``, or the only one.
        name: of the data set, for messages.
        config: the name of a configuration of the card; None: the default, or the only one.

    Raises:
        SpecError: no such split or configuration exists, or no shard in it; the card is malformed or too long; shards
            may be of this split or of another; or single samples are excluded.
        DependencyError: it cannot be read without PyYAML.
    """
    kept = [path for path in archives if not any(part.startswith((".", "__")) for part in path.split("/"))]
    kept.sort(key=urls.natural_key)
    if not kept:
        raise SpecError(f"{name}: {_what_instead(files, name)}", url=name)
    if config is None and (named := parse_name(name)) is not None:
        config = named.config
    source = _splits_of(files, kept, read, name, config)
    wanted = _canonical(split or DEFAULT_SPLIT)
    unsure = [path for path, splits in source.unsure.items() if wanted in splits]
    if unsure:
        words = ", ".join(map(shown, unsure[:_SHOWN]))
        raise SpecError(
            f"{name}: {len(unsure):,} shards may be of the split {shown(wanted)} or another by their names: {words}; "
            f"name the files, as {_root(name)}/FOLDER/*.tar",
            path="split",
            url=name,
        )
    found = _choose(source.splits, split, name)
    if not source.splits[found]:
        raise SpecError(f"{name}: the split {shown(found)} {source.why_empty(found)}", url=name)
    shards = _drop_excluded(files, source.splits[found], kept, read, name)
    notes = [*source.notes, *_repeats(source, found, name)]
    if split is None and _canonical(found) != DEFAULT_SPLIT:
        notes.append(f"{name}: its only split is {shown(found)}, which is read")
    if source.is_by_names:
        notes += _doubts(found, shards, name)
    used = set().union(*source.splits.values())
    others = {other: len(paths) for other, paths in source.splits.items() if other != found}
    left = [path for path in kept if path not in used]
    if left and source.is_by_names and split is None and _canonical(found) in _HELD_OUT:  # as trainval/ beside test/
        what = f"no name is that of the split {DEFAULT_SPLIT}: {len(shards):,} shards are of {shown(found)}, and"
        words = f"{len(left):,} of none: {', '.join(map(shown, left[:_SHOWN]))}"
        raise SpecError(
            f"{name}: {what} {words}; name the files, as {_root(name)}/FOLDER/*.tar, or choose split={found!r}",
            path="split",
            url=name,
        )
    return RepositorySplit(found, shards, others, left, config, notes)


def _repeats(source: _SplitSource, split: str, name: str) -> list[str]:
    """Notes on patterns of a split that match no shard, and on shards that it has in common with held-out ones."""
    notes = []
    if missing := source.unmatched.get(split):
        words = ", ".join(map(shown, missing[:_SHOWN]))
        notes.append(
            f"{name}: {CARD}: {len(missing):,} patterns of the split {shown(split)} match no .tar file: {words}"
        )
    usual = {_canonical(other): paths for other, paths in source.splits.items() if _canonical(other) in _WORDS}
    own = set(source.splits[split])
    for other, paths in usual.items() if _canonical(split) in usual else ():
        if other != _canonical(split) and (both := sorted(own.intersection(paths), key=urls.natural_key)):
            words = ", ".join(map(shown, both[:_SHOWN]))
            notes.append(f"{name}: {len(both):,} shards of the split {shown(split)} are of {other}, too: {words}")
    return notes


def _what_instead(files: Iterable[str], name: str) -> str:
    """The contents of a repository without shards, and advice."""
    shown_files = [path for path in files if not path.startswith(".")]
    if not shown_files:
        return "this repository is empty; upload shards (wids pack makes them)"
    endings = sorted({posixpath.splitext(path)[1] or "no extension" for path in shown_files})
    what = f"there are no .tar files in this repository; its files end in {', '.join(endings[:_SHOWN])}"
    if ".parquet" in endings:
        command = f"wids pack '{_root(name)}/**/*.parquet' --field .jpg=COLUMN -o 'train-%06d.tar'"
        return f"{what}; to make shards of their rows: {command}"
    return f"{what}; wids pack makes shards of files"


def _root(name: str) -> str:
    named = parse_name(name)
    return name if named is None else named.root


def _choose(splits: Mapping[str, Sequence[str]], asked: str | None, name: str) -> str:
    wanted = asked or DEFAULT_SPLIT
    if wanted in splits:
        return wanted
    if asked is None and len(splits) == 1:
        return next(iter(splits))
    same = [split for split in splits if _canonical(split) == _canonical(wanted)]
    if len(same) == 1:
        return same[0]
    there = ", ".join(f"{shorten(split)} ({len(paths):,})" for split, paths in list(splits.items())[:_SHOWN])
    more = f" and {len(splits) - _SHOWN:,} more" if len(splits) > _SHOWN else ""
    what = f"there is no split {shown(wanted)}; its splits and numbers of shards: {there}{more}"
    first = next(iter(splits))
    raise SpecError(
        f"{name}: {what}; choose one with split={first!r}, or with ?split={first} behind the name",
        path="split",
        url=name,
    )


def _canonical(split: str) -> str:
    return next((own for own, words in _WORDS.items() if split.lower() in words), split)


class _SplitSource(NamedTuple):
    """The splits of a repository.

    Attributes:
        splits: split -> its shards.
        unsure: shards that may be of several splits -> these, by their usual names.
        notes: see `RepositorySplit`.
        is_by_names: the names of files assign them.
        empty: the end of the message about a split without shards, from its name.
        unmatched: split -> patterns for .tar files that match none.
    """

    splits: dict[str, list[str]]
    unsure: Mapping[str, set[str]] = {}
    notes: Sequence[str] = ()
    is_by_names: bool = False
    empty: Callable[[str], str] | None = None
    unmatched: Mapping[str, list[str]] = {}

    def why_empty(self, split: str) -> str:
        """The reason why a split has no shards."""
        return "has no .tar files in this repository" if self.empty is None else self.empty(split)


def _splits_of(
    files: Mapping[str, int], archives: Sequence[str], read: Read, name: str, config_name: str | None
) -> _SplitSource:
    card = _read_card(files, read, name)
    config = _choose_config(card, config_name, name)
    if config is not None:
        foreign.warn_of_keys(config, _CONFIG_KEYS, f"{name}: {CARD}: the configuration {_config_name(config)}")
        why = partial(_why_empty, config=config, card=card, name=name)
        if (named := _card_files(config, name)) is not None:
            where = f"{name}: {CARD}: data_files"
            found, spent = dict[str, Matches](), 0
            for split, patterns in named.items():
                normal = map(posixpath.normpath, patterns)
                found[split] = find_matches(normal, archives, where=where, spent=spent)
                spent = found[split].cost
            unmatched = {
                split: [pattern for pattern in each.unmatched if pattern.endswith(".tar")]
                for split, each in found.items()
            }
            return _SplitSource({split: each.paths for split, each in found.items()}, empty=why, unmatched=unmatched)
        home = _home_of(config)
        source = _by_names([path for path in archives if path.startswith(home)], home, name)
        return source._replace(splits=source.splits or {DEFAULT_SPLIT: []}, empty=why)
    timm = _timm_of(files, read, name)
    if timm:
        there = set(archives)
        splits = {split: list(dict.fromkeys(p for p, _ in pairs if p in there)) for split, pairs in timm.items()}
        if any(splits.values()):
            return _SplitSource(splits)
    for path in _ENERGON_SPLITS:
        if path in files:
            parts = _read_splits(path, files, read, name)
            if parts.parts:
                there = set(archives)
                return _SplitSource({split: parts.shards_of(split, there) for split in parts.parts})
            break
    return _by_names(archives, "", name)


def _read_small(path: str, files: Mapping[str, int], read: Read, name: str, *, most: int = MAX_BYTES) -> bytes:
    """A file of the repository that says which files there are.

    Raises:
        SpecError: it is too long.
    """
    if files[path] > most:
        what = f"{name}: {path} has {files[path]:,} bytes, and at most {most:,} are read"
        raise SpecError(f"{what}; name the files, as {_root(name)}/FOLDER/*.tar", path=path, url=name)
    return read(path)


def _read_splits(path: str, files: Mapping[str, int], read: Read, name: str) -> energon.SplitFile:
    return energon.parse_splits(_read_small(path, files, read, name), url=f"{_root(name)}/{path}")


def _drop_excluded(
    files: Mapping[str, int], shards: list[str], archives: Sequence[str], read: Read, name: str
) -> list[str]:
    """The shards without those that Energon's files exclude.

    Raises:
        SpecError: no shard is left; or see `energon.SplitFile.drop_excluded`.
    """
    found = [
        path for path in files if path in _ENERGON_SPLITS or path.endswith(tuple(f"/{p}" for p in _ENERGON_SPLITS))
    ]
    homes = {path: path.removesuffix(f".nv-meta/{posixpath.basename(path)}") for path in found}
    near = [path for path in found if any(shard.startswith(homes[path]) for shard in shards)]
    if len(near) > _MAX_SPLIT_FILES:
        what = f"{len(near):,} files of Energon's splits, and at most {_MAX_SPLIT_FILES} are read"
        raise SpecError(f"{name}: has {what}; name the files, as {_root(name)}/FOLDER/*.tar", url=name)
    kept = shards
    for path in near:
        home = homes[path]
        splits = _read_splits(path, files, read, name)
        own = [shard.removeprefix(home) for shard in kept if shard.startswith(home)]
        there = {archive.removeprefix(home) for archive in archives if archive.startswith(home)}
        gone = set(own).difference(splits.drop_excluded(own, there)) if splits.exclude else set()
        kept = [shard for shard in kept if not (shard.startswith(home) and shard.removeprefix(home) in gone)]
    if not kept:
        raise SpecError(f"{name}: its owner excludes all {len(shards):,} shards of the split", path="exclude", url=name)
    return kept


def _read_card(files: Mapping[str, int], read: Read, name: str) -> list[dict[str, Any]]:
    """The configurations of the card.

    Raises:
        SpecError: they are malformed, or the card is too long.
    """
    if not files.get(CARD):
        return []
    found = _FRONT.match(_read_small(CARD, files, read, name, most=MAX_CARD_BYTES))
    text = b"" if found is None else found[1]
    if not re.search(rb"(?m)^configs[ \t]*:", text):
        return []
    configs = foreign.load_yaml(text, CARD, name).get("configs")
    if not isinstance(configs, list) or not all(isinstance(each, dict) for each in configs):
        raise SpecError(f"{name}: {CARD}: configs is not a list of configurations", path="configs", url=name)
    return configs


def _choose_config(card: Sequence[dict[str, Any]], wanted: str | None, name: str) -> dict[str, Any] | None:
    """The configuration whose files are read; None: the card has none."""
    if wanted is not None:
        for each in card:
            if _config_name(each) == wanted:
                return each
        there = f"its configurations are {_config_names(card)}" if card else "its card has no configurations"
        raise SpecError(f"{name}: there is no configuration {shown(wanted)}; {there}", path="config", url=name)
    configs = [each for each in card if "data_files" in each or "data_dir" in each]
    if len(configs) < 2:
        return configs[0] if configs else None
    default = [each for each in configs if each.get("default") is True or each.get("config_name") == "default"]
    if not default:
        raise SpecError(
            f"{name}: has several configurations, and none is the default: {_config_names(configs)}; "
            f"{_choice_of(configs[0])}",
            path="configs",
            url=name,
        )
    return default[0]


def _config_name(config: Mapping[str, Any]) -> str:
    return str(config.get("config_name", "default"))


def _config_names(configs: Sequence[Mapping[str, Any]]) -> str:
    more = f" and {len(configs) - _SHOWN:,} more" if len(configs) > _SHOWN else ""
    return ", ".join(shorten(_config_name(each)) for each in configs[:_SHOWN]) + more


def _choice_of(config: Mapping[str, Any]) -> str:
    own = _config_name(config)
    return f"choose one with config={shown(own)}, or with ?config={quote(own[:100], safe=' ')} behind the name"


def _why_empty(split: str, *, config: Mapping[str, Any], card: Sequence[Mapping[str, Any]], name: str) -> str:
    """The message about a configuration without shards: its patterns, and the other configurations."""
    patterns = (_card_files(config, name) or {}).get(split) or [f"{_home_of(config)}*"]
    words = (
        f"has no .tar files in this repository: the configuration {shorten(_config_name(config))} of its card names "
    )
    words += ", ".join(map(shown, patterns[:_SHOWN])) + (", ..." if len(patterns) > _SHOWN else "")
    others = [each for each in card if each is not config]
    return f"{words}; others are {_config_names(others)}: {_choice_of(others[0])}" if others else words


def _home_of(config: Mapping[str, Any]) -> str:
    """The directory of a configuration's files, with a slash at its end; "" for the top of the repository."""
    home = posixpath.normpath(str(config.get("data_dir") or "").strip("/") or ".")
    return "" if home == "." else f"{home}/"


def _card_files(config: Mapping[str, Any], name: str) -> dict[str, list[str]] | None:
    """Patterns by split; None: the card has none."""
    given = config.get("data_files")
    if not given:
        return None
    home = _home_of(config)

    def patterns(value: Any) -> list[str]:
        texts = value if isinstance(value, list) else [value]
        if not all(isinstance(text, str) for text in texts):
            raise SpecError(f"{name}: {CARD}: a path of data_files is {shown(value)}", path="data_files", url=name)
        return [posixpath.join(home, text) for text in texts]

    if isinstance(given, dict):
        return {str(split): patterns(value) for split, value in given.items()}
    if isinstance(given, list) and any(isinstance(each, dict) for each in given):
        if not all(isinstance(each, dict) and {"split", "path"} <= each.keys() for each in given):
            what = "an entry of data_files has no split or no path"
            raise SpecError(f"{name}: {CARD}: {what}", path="data_files", url=name)
        found: dict[str, list[str]] = {}
        for each in given:
            foreign.warn_of_keys(each, ("split", "path"), f"{name}: {CARD}: data_files")
            found.setdefault(str(each["split"]), []).extend(patterns(each["path"]))
        return found
    return {DEFAULT_SPLIT: patterns(given)}


def _by_names(archives: Sequence[str], home: str, name: str) -> _SplitSource:
    """The splits by the names of folders and files, by the rules of huggingface's ``datasets``."""
    numbered: dict[str, list[str]] = {}
    parts = {path: path.removeprefix(home).split("/") for path in archives}
    for path in archives:
        if found := _NUMBERED.fullmatch(path.removeprefix(home)):
            numbered.setdefault(found["split"], []).append(path)
    if numbered:
        return _SplitSource(numbered, is_by_names=True)
    for rule in (_exact, _loose):
        for of_folders in (True, False):
            if any(rule(part, of_folders) for own in parts.values() for part in (own[:-1] if of_folders else own[-1:])):
                return _assign(parts, rule, of_folders=of_folders)
    notes, odd = [], [path for path in archives if _HELD.search(_INNOCENT.sub("", path.removeprefix(home).lower()))]
    if odd:
        words = ", ".join(map(shown, odd[:_SHOWN]))
        notes.append(
            f"{name}: no name is that of a split, so all {len(archives):,} shards are taken as train; {len(odd):,} of "
            f"them may be of another: {words}; if so, name the files, as {_root(name)}/FOLDER/*.tar"
        )
    return _SplitSource({DEFAULT_SPLIT: list(archives)} if archives else {}, notes=notes)


def _assign(
    parts: Mapping[str, Sequence[str]], rule: Callable[[str, bool], frozenset[str]], *, of_folders: bool
) -> _SplitSource:
    """The splits of shards by their folders, or else by their own names."""
    splits: dict[str, list[str]] = {split: [] for split in _WORDS}
    unsure: dict[str, set[str]] = {}
    for path, own in parts.items():
        named = set[str]().union(*(rule(part, of_folders) for part in (own[:-1] if of_folders else own[-1:])))
        if not named and rule is _exact:  # as TEST beside train
            named.update(*(_loose(part, of_folders) for part in (own[:-1] if of_folders else own[-1:])))
        if len(named) > 1:
            inner = (rule(part, part is not own[-1]) for part in reversed(own))
            named = next((set(each) for each in inner if len(each) == 1), named)
        if len(named) > 1:
            unsure[path] = named
        elif named:
            splits[named.pop()].append(path)
    return _SplitSource({split: paths for split, paths in splits.items() if paths}, unsure, is_by_names=True)


def _exact(part: str, is_folder: bool) -> frozenset[str]:  # noqa: FBT001 - of a folder or a file
    """The splits that a part of a path names by the rules of ``datasets``."""
    return frozenset(split for split, (folder, file) in _EXACT.items() if (folder if is_folder else file).search(part))


def _loose(part: str, is_folder: bool) -> frozenset[str]:  # noqa: FBT001 - likewise
    """The splits that it names in capitals, or with another word, as in ``trainset``."""
    text = _CAPITAL.sub("-", part if is_folder else part.partition(".")[0]).lower()
    return frozenset(split for word in _LETTERS.findall(text) if (split := _LOOSE.get(word)) is not None)


def _doubts(split: str, shards: Sequence[str], name: str) -> list[str]:
    """A note on shards of a split, by their names, whose names have another split, too."""
    own = _canonical(split)

    def others(path: str) -> frozenset[str]:
        *folders, last = path.split("/")
        found = frozenset[str]().union(*(_exact(each, True) | _loose(each, True) for each in folders))  # noqa: FBT003
        return (found | _exact(last, False) | _loose(last, False)) - {own}  # noqa: FBT003

    odd = {path: found for path in shards if (found := others(path))}
    if not odd:
        return []
    words = ", ".join(map(shown, list(odd)[:_SHOWN]))
    named = ", ".join(sorted(frozenset[str]().union(*odd.values())))
    note = f"{name}: {len(odd):,} shards are taken as {own}, and have {named} in their names, too: {words}"
    return [f"{note}; if that is wrong, name the files, as {_root(name)}/FOLDER/*.tar"]


# --- how many samples


def find_counts(
    files: Mapping[str, int], split: RepositorySplit, read: Read, *, name: str, each: Map = map
) -> RepositoryCounts:
    """Sample counts from the files of the repository; a warning reports each unusable file.

    Args:
        files: path -> bytes, of all files of the repository.
        split: the shards.
        read: returns the bytes of a file.
        name: of the data set, for messages.
        each: reads the files that have the count of one shard; there may be thousands of them.

    Raises:
        FetchError: a file cannot be read.
    """
    counts = RepositoryCounts({}, {})

    def claims_of(source: _CountFile) -> dict[str, Any] | WidsError:
        data = read(source.path)
        try:
            return source.parse(data, source.path, files)
        except WidsError as error:
            return error

    for sources in _sources(files, split, name):
        missing = dict.fromkeys(path for path in split.shards if path not in counts.nsamples)
        if not missing:
            break
        asked = [
            source
            for source in sources
            if (source.shard is None or source.shard in missing) and _is_short(source.path, files, name)
        ]
        if len(asked) >= _MANY:
            logger.warning("%s: %d files are read, each with the sample count of one shard", name, len(asked))
        for source, claims in zip(asked, each(claims_of, asked), strict=True):
            if isinstance(claims, WidsError):
                logger.warning("%s: %s is not used for counts: %s", name, source.path, claims)
                continue
            own = missing if source.shard is None else (source.shard,)
            found = {path: claims[path] for path in own if path in claims}
            if bad := [path for path, count in found.items() if type(count) is not int or not 0 <= count <= MAX_COUNT]:
                reason = f"its count of {bad[0]} is {shown(found[bad[0]])}"
                logger.warning("%s: %s is not used for counts: %s", name, source.path, reason)
            elif found:
                counts.nsamples.update(found)
                counts.sources[source.path] = len(found)
    return counts


def _is_short(path: str, files: Mapping[str, int], name: str) -> bool:
    """True if a file with counts may be read; otherwise warn."""
    if files[path] > MAX_BYTES:
        size = f"{files[path]:,} bytes, and at most {MAX_BYTES:,} are read"
        logger.warning("%s: %s is not used for counts: it has %s", name, path, size)
    return files[path] <= MAX_BYTES


def index_place(files: Mapping[str, int], split: RepositorySplit, read: Read, *, name: str) -> str:
    """The first free path at which `find_counts` looks for an index of a split.

    Args:
        files: path -> bytes, of all files of the repository.
        split: the shards.
        read: gives the bytes of a file.
        name: of the data set, for messages.

    Raises:
        OutputExistsError: other files have all such paths.
    """
    paths = [f"{stem}.json" for stem in _own_stems(split)]
    named = parse_name(name)
    for path in paths:
        if path not in files:
            return path
        with contextlib.suppress(SpecError):
            if files[path] <= MAX_BYTES:
                rows = _of_index(read(path), path, files, root=name if named is None else named.root)
                if not rows.keys().isdisjoint(split.shards):
                    return path
    raise OutputExistsError(
        f"{name}: {' and '.join(paths)} exist in the repository, and are not indexes of the split {split.name}; rename "
        "them, or commit the index as index.json or wids.json, which are found as well",
        url=name,
    )


def _own_stems(split: RepositorySplit) -> list[str]:
    """The preferred names of an index of a split."""
    own = split.name if split.config is None else f"{split.config}-{split.name}"
    return [own, f"wids-{own}"]


def _sources(files: Mapping[str, int], split: RepositorySplit, name: str) -> Iterator[list[_CountFile]]:
    """The files that may have counts: those of many shards, one by one, then those of one shard, a kind at a time."""
    folders = list(dict.fromkeys(["", *(posixpath.dirname(path) for path in split.shards)]))
    stems = dict.fromkeys([*_own_stems(split), *_WORDS.get(_canonical(split.name), ()), *_INDEX_NAMES])
    named = parse_name(name)
    of_index = partial(_of_index, root=name if named is None else named.root)
    readers: list[tuple[Iterable[str], _Parse]] = [
        ((f"{stem}.json" for stem in stems), of_index),
        (_TIMM, _of_timm),
        (("sizes.json",), _of_sizes),
    ]
    for names, parse in readers:
        last = list(names)
        for path in (posixpath.join(folder, each) for folder in folders for each in last):
            if path in files:
                yield [_CountFile(path, None, parse)]
    for path in _ENERGON:
        if path in files:
            yield [_CountFile(path, None, _of_energon)]
    stem_of = {shard: posixpath.splitext(shard)[0] for shard in split.shards}
    for ending, of_one in (("_stats.json", _of_stats), (".json", _of_webshart)):
        yield [
            _CountFile(stem + ending, shard, partial(of_one, shard=shard))
            for shard, stem in stem_of.items()
            if stem + ending in files
        ]


def _parse(data: bytes, source: str) -> dict[str, Any]:
    try:
        raw = TOLERANT.parse(data)
    except JsonError as error:
        raise SpecError(f"not valid JSON ({error})", url=source) from error
    return raw if isinstance(raw, dict) else {}


def _of_index(data: bytes, source: str, _: Mapping[str, int], *, root: str) -> dict[str, Any]:
    """An index of wids: its rows by path in the repository."""
    raw = _parse(data, source)
    rows = raw.get("shardlist")
    if "wids_version" not in raw or not isinstance(rows, list):
        return {}
    base = raw.get("base") or raw.get("base_path")
    home = _path_of(base, posixpath.dirname(source), root) if isinstance(base, str) else posixpath.dirname(source)
    found: dict[str, Any] = {}
    for row in rows if home is not None else ():
        url = row.get("url") if isinstance(row, dict) else None
        path = _path_of(url, home or "", root) if isinstance(url, str) else None
        if path is not None:
            found[path] = row.get("nsamples")
    return found


def _path_of(url: str, home: str, root: str) -> str | None:
    """The path in the repository; None: it is elsewhere."""
    own = root.partition("@")[0]
    if "://" in url:
        found = re.match(rf"{re.escape(own)}(?:@[^/]+)?(?:/|$)", url)
        return None if found is None else url[found.end() :].strip("/")
    path = posixpath.normpath(posixpath.join(home, url))
    return None if path.startswith(("..", "/")) else "" if path == "." else path


def _timm_of(files: Mapping[str, int], read: Read, name: str) -> dict[str, list[tuple[str, Any]]]:
    """The splits in timm's file at the top of the repository."""
    for path in _TIMM:
        if files.get(path):
            data = _read_small(path, files, read, name)
            try:
                found = _parse_timm(data, path)
            except SpecError:
                continue
            if found:
                return found
    return {}


def _parse_timm(data: bytes, source: str) -> dict[str, list[tuple[str, Any]]]:
    """Split -> (path, count) of each of its shards."""
    splits = _parse(data, source).get("splits")
    found: dict[str, list[tuple[str, Any]]] = {}
    for split, each in splits.items() if isinstance(splits, dict) else ():
        names = each.get("filenames") if isinstance(each, dict) else None
        if not isinstance(names, list) or not all(isinstance(text, str) for text in names):
            continue
        foreign.warn_of_keys(each, _TIMM_KEYS, f"{source}: splits.{split}")
        counts = each.get("shard_lengths")
        if not isinstance(counts, list) or len(counts) != len(names):
            raise SpecError(
                f"splits.{split}: has {len(names)} filenames and a different number of shard_lengths", url=source
            )
        home = posixpath.dirname(source)
        found[split] = [
            (posixpath.normpath(posixpath.join(home, text)), n) for text, n in zip(names, counts, strict=True)
        ]
    return found


def _of_timm(data: bytes, source: str, _: Mapping[str, int]) -> dict[str, Any]:
    return {shard: count for pairs in _parse_timm(data, source).values() for shard, count in pairs}


def _of_stats(data: bytes, source: str, _: Mapping[str, int], *, shard: str) -> dict[str, Any]:
    raw = _parse(data, source)
    return {shard: raw["successes"]} if "successes" in raw else {}


def _of_sizes(data: bytes, source: str, _: Mapping[str, int]) -> dict[str, Any]:
    home = posixpath.dirname(source)
    digits = {
        path: int(n) if isinstance(n, str) and n.isascii() and n.isdigit() and len(n) < 20 else n
        for path, n in _parse(data, source).items()
    }
    return {posixpath.normpath(posixpath.join(home, path)): n for path, n in digits.items()}


def _of_energon(data: bytes, source: str, _: Mapping[str, int]) -> dict[str, Any]:
    return {row["url"]: row["nsamples"] for row in TOLERANT.parse(energon.convert_info(data, url=source))["shardlist"]}


def _of_webshart(data: bytes, source: str, files: Mapping[str, int], *, shard: str) -> dict[str, Any]:
    """The number of samples in the listed members, which are grouped by the rules of wids."""
    raw = _parse(data, source)
    members, size = raw.get("files"), raw.get("filesize")
    if not isinstance(members, (dict, list)) or size is None:
        return {}
    if size != files[shard]:
        raise SpecError(f"is of a shard of {size!r:.30} bytes, and {shard} has {files[shard]:,}")
    pairs = (
        members.items()
        if isinstance(members, dict)
        else (
            (each.get("path") or each.get("fname") or each.get("filename"), each)
            for each in members
            if isinstance(each, dict)
        )
    )
    found = []
    for name, each in pairs:
        offset = each.get("offset") if isinstance(each, dict) else None
        if not isinstance(name, str) or type(offset) is not int:
            raise SpecError("has a member without a name or an offset")
        found.append((offset, name))
    count, last = 0, b""
    for _, name in sorted(found):
        split = first_dot(name.encode("utf-8", "surrogatepass"))
        if split is not None and split[0] != last:
            count, last = count + 1, split[0]
    return {shard: count}
