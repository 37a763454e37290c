"""Commits an index to the repository of its data set on the Hugging Face Hub, where opening it by name finds it.

The index is a file at the top, ``SPLIT.json``, or ``wids-SPLIT.json`` if another file has that name. Rules: predictable
failures are raised before a shard is read. The commit is made only on top of the commit whose shards were indexed. An
existing index of the split is replaced and keeps its own keys and those of its shards; an equal one needs no commit. An
index that could not be read back is not committed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from wids.core.files import atomic
from wids.core.index import discovery, repository, writing
from wids.core.index.earlier import EarlierIndex
from wids.core.index.spec import PACKS, parse_json
from wids.core.transport import hub
from wids.core.transport.session import PLAIN, Session
from wids.core.transport.upload import Branch
from wids.errors import InputError, OutputError

if TYPE_CHECKING:
    from collections.abc import Sequence

# Keys that the new index sets itself.
_OWN = ("__kind__", "wids_version", "base", "base_path", "shardlist", "datasets")


class Published(msgspec.Struct, frozen=True):
    """The result of an upload.

    Attributes:
        root: of the repository, ``hf://datasets/ORG/NAME``, and ``@BRANCH`` if any. split: of its shards.
        config: the configuration of its card that was asked for, if any.
        path: of the index in the repository.
        change: "added", "replaced", or "unchanged" (no commit was needed).
        commit: the commit with the index. page: its web page; "": unchanged.
    """

    root: str
    split: str
    path: str
    change: str
    commit: str
    page: str = ""
    config: str | None = None


class IndexUpload:
    """The place in a repository for the index of a split.

    Args:
        sources: of the index: the name of one data set.
        session: opens URLs.

    Attributes:
        name: the default name of the index.

    Raises:
        InputError: the sources are not the name of one data set. SpecError: it has no shards.
        FetchError: the repository cannot be read.
        OutputExistsError: other files have both names.
        DependencyError, OutputError: it cannot be written to; see `wids.core.transport.upload.Branch`.
    """

    name: str

    def __init__(self, sources: Sequence[str], *, session: Session = PLAIN) -> None:
        named = repository.parse_name(sources[0]) if len(sources) == 1 else None
        if named is None:
            raise InputError(
                "an index is uploaded to the data set that it is of: name one data set, hf://datasets/ORG/NAME, "
                "with ?split=SPLIT if it has several splits"
            )
        given, self._root = sources[0], named.root
        listing = hub.list_files(named.root, session)
        read = discovery.reader_of(named, session)
        _, split = discovery.find_split(named, given, read, session=session)
        self._files = {path: file.size for path, file in listing.files.items()}
        self._given, self._split, self._parent = given, split, listing.commit
        self._path = repository.index_place(self._files, split, read, name=given)
        self._before = read(self._path) if self._path in self._files else None
        self._branch = Branch(named.root, session)
        own = None if self._before is None else parse_json(self._before, self._path).get("name")
        root = named.root.removeprefix("hf://datasets/").partition("@")[0]
        self.name = own if isinstance(own, str) else f"{root} {split.name}"

    def publish(self, output: str) -> Published:
        """Commit the new index.

        Args:
            output: its path.

        Raises:
            OutputError: it cannot be committed, or would not be found there.
        """
        data, path, split = self._index(output), self._path, self._split
        if data == self._before:
            return Published(self._root, split.name, path, "unchanged", self._parent, config=split.config)
        change = "added" if self._before is None else "replaced"
        rows = parse_json(data, output)["shardlist"]
        message = f"{'Add' if change == 'added' else 'Replace'} {path}: wids index of the split {split.name}, "
        message += f"{sum(row['nsamples'] for row in rows):,} samples in {len(rows):,} shards"
        made = self._branch.commit(data, path, message=message, parent=self._parent)
        return Published(self._root, split.name, path, change, made.name, made.page, split.config)

    def _index(self, output: str) -> bytes:
        """The published form of the index: its URLs are relative to the top of the repository."""
        with open(atomic.open_file(output)[0], "rb") as file:
            made = parse_json(file.read(), output)
        made.pop(PACKS, None)  # packs are beside the local file
        before = {} if self._before is None else parse_json(self._before, self._path)
        kept = {key: value for key, value in before.items() if key not in _OWN and key not in made}
        entries = made.pop("shardlist")
        earlier = EarlierIndex(f"{self._root}/{self._path}", before)
        places = earlier.find([entry["url"] for entry in entries])
        rows = []
        for entry in entries:
            own = earlier.own_keys_of(places[entry["url"]]) if entry["url"] in places else {}
            rows.append({**own, **entry, "url": writing.written(entry["url"], self._root)})
        data = writing.dump_index({**made, **kept, "shardlist": rows})
        files, split = {self._path: len(data)}, self._split
        claims = repository.find_counts(files, split, lambda _: data, name=self._given).nsamples
        if [claims[path] for path in split.shards if path in claims] != [row["nsamples"] for row in rows]:
            raise OutputError(
                f"{self._given}: an index in the repository could not be read back: it has at most 64 MiB, and paths "
                "without . and ..",
                url=self._given,
            )
        return data
