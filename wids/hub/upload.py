"""Commits an index to the repository of its data set on the Hugging Face Hub, where opening it by name finds it.

The index is a file at the top, ``SPLIT.json``, or ``wids-SPLIT.json`` if another file has that name. Rules: predictable
failures are raised before a shard is read. The commit is made only on top of the commit whose shards were indexed. An
existing index of the split is replaced and keeps its own keys and those of its shards; an equal one needs no commit. An
index that could not be read back is not committed.
"""

from __future__ import annotations

import contextlib
import inspect
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from wids.core.files import atomic
from wids.core.index import writing
from wids.core.index.earlier import EarlierIndex
from wids.core.index.spec import PACKS, parse_json
from wids.core.place import Place
from wids.core.transport.failures import public_cause
from wids.core.transport.session import PLAIN, Session
from wids.errors import InputError, OutputError, WidsError
from wids.hub import datasets, repository, source

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

# Keys that the new index sets itself.
_OWN = ("__kind__", "wids_version", "base", "base_path", "shardlist", "datasets")


class Commit(NamedTuple):
    """A commit in a repository of the Hub.

    Attributes:
        name: 40 hexadecimal digits.
        page: its address, for people.
    """

    name: str
    page: str


class Branch:
    """A branch of a repository of the Hugging Face Hub, to which files are committed by huggingface_source.

    Args:
        root: ``hf://datasets/ORG/NAME``, and ``@BRANCH`` for any but ``main``. The caller knows that it exists.
        session: opens URLs; the token is that of its options, or of huggingface_source.

    Raises:
        DependencyError: huggingface_hub is not installed.
        OutputError: no token exists, it may not write, or the revision is not a branch.
    """

    def __init__(self, root: str, session: Session = PLAIN) -> None:
        where = source.find(root, session)
        client = source.client(root)
        self._root, self._where, self._session = root, where, session
        self._branch = where.revision or "main"
        self._kind = where.kind.removesuffix("s")
        if source.is_commit(self._branch):
            raise self._read_only("a commit")
        token = source.find_token(where.endpoint, session.options_for(Place(root)))
        if token is None:
            raise OutputError(
                f"{root}: a commit needs a token with write access, and none was found; log in (hf auth login), or set "
                "HF_TOKEN",
                url=root,
            )
        self._api = client.HfApi(endpoint=where.endpoint, token=token)
        with self._explained():
            self._check()

    def commit(self, data: bytes, path: str, *, message: str, parent: str) -> Commit:
        """Commit a file.

        Args:
            data: its bytes.
            path: of the file in the repository.
            message: of the commit.
            parent: the commit that it must follow.

        Raises:
            OutputError: it cannot be committed, or another commit follows that one already.
        """
        from huggingface_hub import CommitOperationAdd, constants

        where = self._where
        with self._explained():
            try:
                made = self._api.create_commit(
                    where.repository,
                    [CommitOperationAdd(path, data)],
                    commit_message=message,
                    repo_type=self._kind,
                    revision=self._branch,
                    parent_commit=parent,
                ).oid
            except ValueError:
                # Before 1.8 huggingface_hub cannot parse the answer of an endpoint that it was not imported with.
                made = self._api.repo_info(where.repository, repo_type=self._kind, revision=self._branch).sha
                if where.endpoint == constants.ENDPOINT or made in (None, parent):
                    raise
        source.note_commit(self._root, made, self._session)
        return Commit(made, f"{where.page}/commit/{made}")

    def _check(self) -> None:
        """Check in advance that a commit is allowed, as far as the Hub's client can."""
        if self._branch != "main" and not self._branch.startswith("refs/pr/"):
            refs = self._api.list_repo_refs(self._where.repository, repo_type=self._kind)
            if self._branch not in {ref.name for ref in refs.branches}:
                raise self._read_only("a tag" if self._branch in {ref.name for ref in refs.tags} else "no branch")
        if "write" in inspect.signature(self._api.auth_check).parameters:
            self._api.auth_check(self._where.repository, repo_type=self._kind, write=True)

    def _read_only(self, what: str) -> OutputError:
        return OutputError(
            f"{self._root}: {self._branch} is {what}, and commits are made to branches; give the name of one, or none "
            "for main",
            url=self._root,
        )

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        """Raise an OutputError with advice for any error of the Hub or of its client."""
        try:
            yield
        except WidsError:
            raise
        except Exception as error:  # noqa: BLE001 - raised again, explained
            where, first = self._where, error
            while getattr(first, "response", None) is None and (first.__cause__ or first.__context__) is not None:
                first = first.__cause__ or first.__context__  # type: ignore[assignment]
            status = getattr(getattr(first, "response", None), "status_code", None)
            said = " ".join(str(getattr(first, "server_message", None) or first).split())[:300]
            what = {
                401: "the Hub does not accept the token; log in again (hf auth login), or set HF_TOKEN",
                403: f"the token has no write access to this repository ({said}); use one with write access "
                f"({where.endpoint}/settings/tokens), or offer the file: hf upload {where.repository} FILE "
                f"--repo-type {self._kind} --create-pr",
                412: "another commit was made since its files were listed; run it again",
                429: "the Hub limits the rate of requests; run it again in some minutes",
            }.get(status or 0, f"the commit failed ({said or type(error).__name__}); run it again, or check the URL")
            raise OutputError(f"{self._root}: {what}", url=self._root) from public_cause(error, self._root)


class Published(msgspec.Struct, frozen=True):
    """The result of an upload.

    Attributes:
        root: of the repository, ``hf://datasets/ORG/NAME``, and ``@BRANCH`` if any.
        split: of its shards.
        config: the configuration of its card that was asked for, if any.
        path: of the index in the repository.
        change: "added", "replaced", or "unchanged" (no commit was needed).
        commit: the commit with the index.
        page: its web page; "": unchanged.
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
        DependencyError, OutputError: it cannot be written to; see `Branch`.
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
        _, self._parent, self._files, read, _, split = datasets.open_split(given, session)
        self._given, self._split = given, split
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
