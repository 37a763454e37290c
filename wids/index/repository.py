"""Finds the shards of a split in a data set's repository, and their sample counts.

Pure: the names and sizes of the files, and a function that reads one, come from the caller. The first of these that
exists assigns files to splits:

1. the card, ``README.md``: ``data_files`` (or ``data_dir``) of its ``configs``, in the YAML at its top;
2. ``_info.json`` (or ``info.json``) of timm: ``{"splits": {"train": {"filenames": [...], "shard_lengths": [...]}}}``;
3. ``.nv-meta/split.yaml`` of Megatron-Energon: ``split_parts``, split -> patterns;
4. names, by the rules of huggingface's ``datasets``: ``data/SPLIT-00000-of-00009.tar``; folders, else files, with the
   name of a split set off by ``-._ `` or digits; otherwise all files are ``train``.

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

from wids.errors import DependencyError, InputError, JsonError, OutputExistsError, SpecError, WidsError, shown
from wids.events import logger
from wids.files.json_text import TOLERANT
from wids.index import energon
from wids.index.shardlist import MAX_COUNT
from wids.tables.keys import first_dot
from wids.transport import urls

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
    r"/?(?:\?split=(?P<split>[^&/]+))?"
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
_NUMBERED = re.compile(r"data/(?P<split>[\w.]+)-\d{5}-of-\d{5}[^/]*")
_TIMM = ("_info.json", "info.json")
_ENERGON, _ENERGON_SPLITS = (".nv-meta/.info.json", ".nv-meta/.info.yaml"), ".nv-meta/split.yaml"
_INDEX_NAMES = ("index", "wids", "shards", "shardlist", "dataset")
_MAX_BYTES, _MAX_CARD_BYTES = 64 << 20, 4 << 20
_SHOWN = 10
_MANY = 500
# Values in YAML, including those that aliases repeat.
_MAX_NODES = 1 << 20
_FRONT = re.compile(rb"(?s)(?:\xef\xbb\xbf)?---[ \t]*\r?\n(.*?\n)---[ \t]*(?:\r?\n|$)")


class Named(NamedTuple):
    """A data set by its name.

    Attributes:
        root: of its files, as ``hf://datasets/ORG/NAME@REVISION``. split: its name; None: not given.
    """

    root: str
    split: str | None

    @property
    def text(self) -> str:
        """The name, in the form that users give."""
        return self.root if self.split is None else f"{self.root}?split={self.split}"


class RepositorySplit(NamedTuple):
    """The shards of a split.

    Attributes:
        name: of the split. shards: paths, in order.
        others: other splits -> their number of shards. left: shards of no split.
    """

    name: str
    shards: list[str]
    others: dict[str, int]
    left: list[str]


class _CountFile(NamedTuple):
    """A file that may have counts: its path, its shard (None: it has counts of many), and its parser."""

    path: str
    shard: str | None
    parse: _Parse


class RepositoryCounts(NamedTuple):
    """Sample counts of shards.

    Attributes:
        nsamples: path -> count, if a file has it. sources: file -> the number of counts from it.
    """

    nsamples: dict[str, int]
    sources: dict[str, int]


def parse_name(given: str) -> Named | None:
    """``hf://datasets/ORG/NAME[@REVISION][?split=SPLIT]``, or the URL of its web page; None: it is another place.

    Raises:
        SpecError: it is such a name with another query, or the page of a part of a data set.
    """
    found = _NAME.fullmatch(given)
    if found is None:
        if _QUERY.fullmatch(given):
            what = "only ?split=SPLIT may follow the name of a data set"
            raise SpecError(f"{given.partition('?')[0]}: {what}", path="shards", url=given)
        if within := _WITHIN.fullmatch(given):
            what = f"is a web page; give the data set, hf://datasets/{within[1]}"
            if within[3]:
                what += f", or a part of it, hf://datasets/{within[1]}@{within[3]}{'/' if within[2] == 'tree' else ''}"
            raise SpecError(f"{given}: {what}", path="shards", url=given)
        return None
    revision = found["revision"] or found["tree"]
    return Named(f"hf://datasets/{found['name'] or found['page']}{f'@{revision}' if revision else ''}", found["split"])


def with_split(given: Any, *, split: str | None, revision: str | None) -> Any:
    """The name of a data set with its split and revision, which no other source has.

    Raises:
        InputError: ``given`` is not such a name, or has another split or revision. TypeError: one is not a str.
    """
    if split is None and revision is None:
        return given
    for what, value in (("split", split), ("revision", revision)):
        if value is not None and not isinstance(value, str):
            raise TypeError(f"{what} is {value!r:.200}; it must be a text")
    named = parse_name(given) if isinstance(given, str) else None
    if named is None:
        raise InputError(
            "split and revision are only for the name of a data set of the Hugging Face Hub, hf://datasets/ORG/NAME; "
            f"shards is {shown(given)}"
        )
    root, _, own = named.root.partition("@")
    pairs = (("split", split, named.split), ("revision", revision and quote(revision, safe=""), own or None))
    for what, value, before in pairs:
        if value is not None and before is not None and unquote(before) != unquote(value):
            raise InputError(f"{what} is {value!r:.100}, but {given} has {before!r:.100}; give one of them")
    at, which = (revision and quote(revision, safe="")) or own, split or named.split
    return f"{root}{f'@{at}' if at else ''}{f'?split={which}' if which else ''}"


# --- which files


def find_split(
    files: Mapping[str, int], archives: Iterable[str], read: Read, *, split: str | None, name: str
) -> RepositorySplit:
    """The shards of a split.

    Args:
        files: path -> bytes, of all files of the repository.
        archives: the files with the names of shards.
        read: returns the bytes of a file.
        split: its name; None: ``"train"``, or the only one.
        name: of the data set, for messages.

    Raises:
        SpecError: no such split exists, or no shard in it; or the card is malformed.
        DependencyError: it cannot be read without PyYAML.
    """
    kept = [path for path in archives if not any(part.startswith((".", "__")) for part in path.split("/"))]
    kept.sort(key=urls.natural_key)
    if not kept:
        raise SpecError(f"{name}: {_what_instead(files, name)}", url=name)
    splits = _splits_of(files, kept, read, name)
    found = _choose(splits, split, name)
    if not splits[found]:
        raise SpecError(f"{name}: the split {shown(found)} has no .tar files in this repository", url=name)
    used = set().union(*splits.values())
    others = {other: len(paths) for other, paths in splits.items() if other != found}
    return RepositorySplit(found, splits[found], others, [path for path in kept if path not in used])


def _what_instead(files: Iterable[str], name: str) -> str:
    """The contents of a repository without shards, and advice."""
    shown_files = [path for path in files if not path.startswith(".")]
    if not shown_files:
        return "this repository is empty; upload shards (wids pack makes them)"
    endings = sorted({posixpath.splitext(path)[1] or "no extension" for path in shown_files})
    what = f"there are no .tar files in this repository; its files end in {', '.join(endings[:_SHOWN])}"
    if ".parquet" in endings:
        named = parse_name(name)
        root = name if named is None else named.root
        command = f"wids pack '{root}/**/*.parquet' --field .jpg=COLUMN -o 'train-%06d.tar'"
        return f"{what}; to make shards of their rows: {command}"
    return f"{what}; wids pack makes shards of files"


def _choose(splits: Mapping[str, Sequence[str]], asked: str | None, name: str) -> str:
    wanted = asked or DEFAULT_SPLIT
    if wanted in splits:
        return wanted
    if asked is None and len(splits) == 1:
        return next(iter(splits))
    same = [split for split in splits if _canonical(split) == _canonical(wanted)]
    if len(same) == 1:
        return same[0]
    there = ", ".join(f"{split} ({len(paths):,})" for split, paths in list(splits.items())[:_SHOWN])
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


def _splits_of(files: Mapping[str, int], archives: Sequence[str], read: Read, name: str) -> dict[str, list[str]]:
    if (config := _config_of(files, read, name)) is not None:
        if (named := _card_files(config, name)) is not None:
            return {split: _matching(patterns, archives) for split, patterns in named.items()}
        home = _home_of(config)
        archives = [path for path in archives if path.startswith(home)]
        return _by_names(archives, home) or {DEFAULT_SPLIT: []}
    timm = _timm_of(files, read)
    if timm:
        there = set(archives)
        found = {split: list(dict.fromkeys(p for p, _ in pairs if p in there)) for split, pairs in timm.items()}
        if any(found.values()):
            return found
    if _ENERGON_SPLITS in files:
        parts = _load_yaml(read(_ENERGON_SPLITS), _ENERGON_SPLITS, name).get("split_parts")
        if isinstance(parts, dict) and parts:
            return {str(split): _energon_part(given, archives, name) for split, given in parts.items()}
    return _by_names(archives, "")


def _config_of(files: Mapping[str, int], read: Read, name: str) -> dict[str, Any] | None:
    """The configuration of the card, which names the files."""
    if not 0 < files.get(CARD, 0) <= _MAX_CARD_BYTES:
        return None
    found = _FRONT.match(read(CARD))
    text = b"" if found is None else found[1]
    if not re.search(rb"(?m)^configs[ \t]*:", text):
        return None
    configs = _load_yaml(text, CARD, name).get("configs")
    if not isinstance(configs, list) or not all(isinstance(each, dict) for each in configs):
        raise SpecError(f"{name}: {CARD}: configs is not a list of configurations", path="configs", url=name)
    configs = [each for each in configs if "data_files" in each or "data_dir" in each]
    if len(configs) < 2:
        return configs[0] if configs else None
    default = [each for each in configs if each.get("default") is True or each.get("config_name") == "default"]
    if not default:
        names = ", ".join(str(each.get("config_name")) for each in configs[:_SHOWN])
        raise SpecError(
            f"{name}: has several configurations, and none is the default: {names}; give the files of one, as "
            f"{name}/FOLDER/*.tar",
            path="configs",
            url=name,
        )
    found_config: dict[str, Any] = default[0]
    return found_config


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
            found.setdefault(str(each["split"]), []).extend(patterns(each["path"]))
        return found
    return {DEFAULT_SPLIT: patterns(given)}


def _matching(patterns: Iterable[str], archives: Sequence[str]) -> list[str]:
    """The archives that patterns match, each once, pattern by pattern; a pattern may be a folder, too."""
    found, names = dict[str, None](), frozenset(archives)
    for pattern in map(posixpath.normpath, patterns):
        if pattern in names:  # the card may name each of thousands of files
            found[pattern] = None
        else:
            own = re.compile(regex_of(pattern) + "(?:/.*)?")
            found.update(dict.fromkeys(path for path in archives if own.fullmatch(path)))
    return list(found)


def regex_of(pattern: str) -> str:
    """A glob of fsspec as a regular expression."""
    parts = []
    for text in re.findall(r"\*\*/|\*\*|\*|\?|\[[^\]/]+\]|.", pattern, re.DOTALL):
        fixed = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}.get(text)
        if fixed is None and len(text) > 1:
            inner = text[1:-1]
            fixed = f"[^{re.escape(inner[1:])}]" if inner[0] in "!^" else f"[{re.escape(inner)}]"
            fixed = fixed.replace("\\-", "-")
            with contextlib.suppress(re.error):
                parts.append(re.compile(fixed).pattern)
                continue
            fixed = None  # [!] and [z-a] are not sets, but literal text
        parts.append(fixed or re.escape(text))
    return "".join(parts)


def _energon_part(given: Any, archives: Sequence[str], name: str) -> list[str]:
    """Energon's patterns are names with braces, or regular expressions."""
    found: dict[str, None] = {}
    for text in given if isinstance(given, list) else [given]:
        if not isinstance(text, str):
            raise SpecError(f"{name}: {_ENERGON_SPLITS}: a pattern is {shown(text)}", path="split_parts", url=name)
        names = set(urls.expand(text)) if "{" in text and ".." in text else {text}
        own = [path for path in archives if path in names]
        if not own:
            try:
                own = [path for path in archives if re.fullmatch(text, path)]
            except re.error:
                own = []
        found.update(dict.fromkeys(own))
    return list(found)


def _by_names(archives: Sequence[str], home: str) -> dict[str, list[str]]:
    """The splits by the names of folders and files, by the rules of huggingface's ``datasets``."""
    numbered: dict[str, list[str]] = {}
    for path in archives:
        if found := _NUMBERED.fullmatch(path.removeprefix(home)):
            numbered.setdefault(found["split"], []).append(path)
    if numbered:
        return numbered
    for of_folders in (True, False):
        splits: dict[str, list[str]] = {}
        for split, words in _WORDS.items():
            word = "|".join(words)
            own = re.compile(rf"(?:.*{_APART})?(?:{word})" + (rf"(?:{_APART}.*)?" if of_folders else rf"{_APART}.*"))
            for path in archives:
                *folders, last = path.removeprefix(home).split("/")
                if any(own.fullmatch(part) for part in (folders if of_folders else [last])):
                    splits.setdefault(split, []).append(path)
        if splits:
            return splits
    return {DEFAULT_SPLIT: list(archives)} if archives else {}


def _load_yaml(data: bytes, path: str, name: str) -> dict[str, Any]:
    try:
        import yaml
    except ImportError as error:
        raise DependencyError(f"{name}: its {path} assigns files to splits: pip install 'wids[hub]'") from error
    count, counts = 0, dict[int, int]()  # sizes of all nodes; of those below each

    class Loader(yaml.SafeLoader):  # type: ignore[misc]
        """A loader that counts the values of an alias at each use, also of aliases within aliases."""

        def compose_node(self, parent: Any, index: Any) -> Any:
            nonlocal count
            before, is_alias = count, self.check_event(yaml.AliasEvent)
            node = super().compose_node(parent, index)
            count += counts.get(id(node), 1) if is_alias else 1
            counts.setdefault(id(node), count - before)
            if count > _MAX_NODES:
                raise yaml.YAMLError(f"its aliases expand to more than {_MAX_NODES:,} values")
            return node

    try:
        found = yaml.load(data, Loader)  # noqa: S506 - it is a safe one
    except (yaml.YAMLError, ValueError, LookupError, AttributeError, TypeError, RecursionError) as error:
        raise SpecError(f"{name}: {path}: not valid YAML ({str(error)[:200]})", path=path, url=name) from error
    return found if isinstance(found, dict) else {}


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
            if files[source.path] <= _MAX_BYTES and (source.shard is None or source.shard in missing)
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
            if files[path] <= _MAX_BYTES:
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
    return [split.name, f"wids-{split.name}"]


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


def _timm_of(files: Mapping[str, int], read: Read) -> dict[str, list[tuple[str, Any]]]:
    """The splits in timm's file at the top of the repository."""
    for path in _TIMM:
        if 0 < files.get(path, 0) <= _MAX_BYTES:
            try:
                found = _parse_timm(read(path), path)
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
    return {
        row["url"]: row["nsamples"] for row in TOLERANT.parse(energon.convert_info(data, place=source))["shardlist"]
    }


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
