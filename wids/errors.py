"""Every error that wids raises, as one tree.

::

    WidsError
    ├── SpecError (ValueError)         the shard index is malformed; names the path to the bad value
    ├── NotAllowedError (PermissionError)  a remote index points at local files, or a `pipe:` URL was not allowed
    ├── ShardError                     one shard is not what it should be; names the shard
    │   ├── TarError                   its bytes are not a readable tar; names the byte offset
    │   │   ├── EmptyShardError        no bytes, or no samples
    │   │   ├── CompressedShardError   gzip, zstd, bz2, xz or lz4 around the tar
    │   │   ├── TruncatedShardError    it ends inside a member, a header, or before the end marker
    │   │   ├── CorruptHeaderError     a header that fails its checksum or cannot be parsed
    │   │   └── UnsupportedMemberError a sparse or multi-volume member, a symbolic link, a device
    │   ├── DuplicateMemberError       two members of one sample have the same extension
    │   ├── CountMismatchError         the index promises another number of samples than the shard holds
    │   ├── ChangedShardError          a shard in place changed, or differs from the index in size or digest
    │   ├── ShardReadError             the disk failed to give some bytes of an open shard
    │   ├── ClosedReaderError          its reader was closed, by its owner or to give way: open the shard again
    │   └── TableError                 a saved member table is damaged or of another version
    ├── FetchError (OSError)           a download failed for good; names the URL
    │   ├── ShardNotFoundError (FileNotFoundError)
    │   ├── FetchDeniedError (PermissionError)
    │   ├── UnreachableError           no connection: the name, the port, the certificate
    │   ├── WrongContentError          the server sent a web page instead of a shard
    │   ├── SizeMismatchError          the bytes that arrived are not as many as promised
    │   ├── TooLongError               more bytes come than a file of its kind may have
    │   ├── DigestMismatchError        their checksum is not the one in the index
    │   └── NoRangesError              the server gives no byte ranges
    ├── CacheError (OSError)           the cache directory cannot be used
    │   └── CacheFull                  no space, and no shard may be evicted; says how many bytes are missing
    ├── JsonError (ValueError)         a text that should be JSON is none, or of another type; callers name the file
    ├── StateError (ValueError)        a sampler's state belongs to another order, or is damaged
    ├── SampleError (ValueError)       a sample cannot be written; names key, field and file
    ├── SelectionError (LookupError)   there is no such shard, sample, step or field; names what there is
    ├── InputError (ValueError)        what a job or a sampler was given cannot be used; names it
    ├── ColumnsError (ValueError)      a table of columns cannot be used: damaged, of another index, keys that repeat
    │   └── MissingTableError          there is none at this place
    ├── QueryError (ValueError)        SQL that cannot be answered; names the SQL and the columns there are
    ├── OutputError (OSError)          what a writer or a job makes cannot be written; names the place
    │   └── OutputExistsError (FileExistsError)   it exists, and replacing it was not asked for
    ├── JobError (RuntimeError)        work on many shards failed as a whole; says how many and the first cause
    │   ├── WorkerError                a process that worked on a task ended in the middle of it
    │   └── ClusterError               no Ray cluster is there, or it failed
    ├── TooManyErrorsError             more samples failed than max_errors allows; names their log
    ├── DependencyError (ImportError)  an optional package is not installed; names the extra that has it
    └── DecodeError (ValueError)       a member cannot be decoded; names shard, key and field
        └── UnsafeFormatError          decoding it could run code (pickle), and that was not allowed

Each error can be rebuilt from its message alone, because a DataLoader worker re-raises
``type(e)(message)`` in the main process; each keeps its message and attributes through pickle. No message holds the
query or the credentials of a URL, also where the text is from a library: the whole URL is in the attributes.

Example:
    >>> import os
    >>> dataset = wids.ShardListDataset("train.json")
    >>> os.remove("train-000000.tar")
    >>> try:
    ...     sample = dataset[0]
    ... except wids.errors.ShardNotFoundError as error:
    ...     print(os.path.basename(error.url))
    train-000000.tar
"""

from __future__ import annotations

import contextlib
import copy
import re
from typing import Any, TypeVar

E = TypeVar("E", bound=BaseException)

_WITH_QUERY = ("http", "https", "ftp", "ftps")
# The part before the "@" in an Azure URL is the container.
_WITH_CONTAINER = ("abfs", "abfss", "wasb", "wasbs")
_PARAMETER = re.compile(r"(?<=.)\?[^\s=?&/]+=")
# The configuration and split of a data set of the Hub, which are part of its name.
_SPLIT = re.compile(
    r"[^?]*hf://datasets/[^/?]+/[^/?]+/?\?(?:(?:config|split)=[^&?]*&)?(?:config|split)=[^&?]*(?![^&?]|&)"
)
_ACCESS = re.compile(r"(?<=://)[^/]*@|\?.{4,}", re.DOTALL)
_PUNCTUATION = ":;,.)]}>'\""


def without_secrets(text: str, *known: str | None) -> str:
    """A text without the credentials in its URLs: queries, which servers sign, and ``user:password@``.

    Args:
        text: of a message or a log line.
        known: URLs that may stand in it, or parts of them; only of these it is certain where they end.
    """
    for url in known:
        if url and "://" in url and not url.startswith("pipe:"):
            shown = _cut(url)
            text = text.replace(url, shown)
            for part in _ACCESS.findall(url):  # clients tell of parts, too: a "bucket" that is user:password@bucket
                text = text if part in shown else text.replace(part, "")
    return re.sub(r"\S+", lambda word: _cut(word[0]), text) if "://" in text or "?" in text else text


def _cut(word: str) -> str:
    head, *rest = word.split("://")
    pieces, tail = [head], word[len(word.rstrip(_PUNCTUATION)) :]
    for part in rest:
        scheme = re.split(r"[^A-Za-z0-9+.-]", pieces[-1][-12:])[-1].lower()
        host = part.partition("/")[0]
        shown = part if scheme in _WITH_CONTAINER else part[host.rfind("@") + 1 :]
        if scheme in _WITH_QUERY and (mark := re.search(r"[?#]", shown)):
            return "://".join([*pieces, shown[: mark.start()]]) + tail
        pieces.append(shown)
    shown = "://".join(pieces)
    split = _SPLIT.match(shown)
    parameter = _PARAMETER.search(shown, split.end() if split else 0)  # the end of a URL with spaces
    return shown if parameter is None else shown[: parameter.start()] + tail


_MAX_SHOWN = 100
_NAMED_FIELDS = 12


def shown(value: Any) -> str:
    """A value as messages show it: as in a program, on one line (arrays have several), no more than its beginning.

    Args:
        value: of a file or a caller, of any size.
    """
    if not isinstance(value, (str, bytes)):
        return shorten(" ".join(line.strip() for line in repr(value).splitlines()))
    rest = len(value) - _MAX_SHOWN  # the whole of a picture takes long to be written out
    return repr(value[:_MAX_SHOWN]) + (f"... ({rest:,} more)" if rest > 0 else "")


def a_kind(value: Any) -> str:
    """The type of a value, as messages name it: ``"an int"``, ``"a Subset"``, ``"None"``."""
    if value is None:
        return "None"
    name = harmless(type(value).__name__)
    return f"{'an' if name[0] in 'AEIOaeio' or name in ('ndarray', 'NoneType') else 'a'} {name}"


def shorten(text: str, *, most: int = _MAX_SHOWN) -> str:
    """A text of which no more than ``most`` letters stand in a message."""
    return text if len(text) <= most else f"{text[:most]}... ({len(text) - most:,} more)"


# Letters that act on a terminal: control characters except line breaks and tabs, and changes of the writing direction.
_ACTS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def is_harmless(text: str) -> bool:
    """True if a text, perhaps from a stranger's file, has no letters that act on a terminal."""
    return _ACTS.search(text) is None


def harmless(text: str) -> str:
    """A text of several lines, perhaps from a stranger's file, without letters that act on a terminal."""
    if is_harmless(text):
        return text
    return _ACTS.sub(lambda match: match[0].encode("unicode_escape").decode("ascii"), text)


def printable(name: str) -> str:
    """Escape control characters and line breaks, which would act on a terminal or split a line of a log."""
    if name.isprintable():
        return name
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode("ascii") for letter in name
    )


class WidsError(Exception):
    """The root of all errors raised by wids.

    Args:
        message: the whole story in words: what happened, where, and what to do. Secrets in its URLs are taken out.
        context: the same as attributes (``shard``, ``offset``, ``url``, ...). They are absent, that
            is ``None``, on an error that crossed from a DataLoader worker, where only the message travels.
            ``hint`` names what a caller can do about it, by the parameter that does it (``"overwrite"``); messages
            name no flags of the command line, which words hints itself. ``parameter`` names an argument that is wrong
            in itself, or does not fit the others.

    Attributes:
        kind: one word for its class, as tables and programs have it.
        summary: the fault, in a few words; ``""``: the message says it.
        advice: a remedy, in a few words.

    Example:
        >>> try:
        ...     dataset = wids.ShardListDataset("missing.json")
        ... except wids.WidsError as error:
        ...     print(type(error).__name__, error.kind)
        ShardNotFoundError missing
    """

    kind: str = "error"
    summary: str = ""
    advice: str = ""

    shard: str | None = None
    offset: int | None = None
    url: str | None = None
    path: str | None = None
    key: str | None = None
    field: str | None = None
    expected: Any = None
    found: Any = None
    hint: str | None = None
    parameter: str | None = None

    def __init__(self, message: str = "", **context: Any) -> None:
        super().__init__(harmless(without_secrets(message, context.get("url"), context.get("shard"))))
        self.__dict__.update(context)

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self),), self.__dict__ or None


class SpecError(WidsError, ValueError):
    """The shard index is malformed; ``path`` names the bad value, like ``shardlist[3].nsamples``."""


class JsonError(WidsError, ValueError):
    """A text is not JSON, or not of the wanted type; its reader raises an error that names its file."""


class NotAllowedError(WidsError, PermissionError):
    """Refused for safety: a local path or ``pipe:`` from a remote index, or ``pipe:`` without leave."""

    kind = "refused"
    summary = "is the output of a program, which was not run"
    advice = "look at it where it is trusted"


class ShardError(WidsError):
    """A shard is damaged, changed or not the expected one; ``shard`` names it."""

    kind = "tar"
    advice = "write or upload the shard again"


class TarError(ShardError):
    """The bytes of ``shard`` at ``offset`` are not a readable tar archive."""


class EmptyShardError(TarError):
    """The shard has no bytes at all, or no samples where the index says that it has some."""

    summary = "is empty"


class CompressedShardError(TarError):
    """The shard is a compressed file; members of a compressed archive cannot be read at random."""

    summary = "is compressed"
    advice = "decompress it to a plain .tar"


class TruncatedShardError(TarError):
    """The shard ends too early: inside a member or a header, or without the end-of-archive marker."""

    summary = "is cut short"


class CorruptHeaderError(TarError):
    """A tar header fails its checksum or cannot be parsed."""

    summary = "has a damaged header"


class UnsupportedMemberError(TarError):
    """A member of a sample has no byte range: it is sparse, multi-volume, a device, a link to no earlier file."""

    summary = "has a member that is sparse, a link or a device"
    advice = "pack it again (tar -h --hard-dereference)"


class DuplicateMemberError(ShardError):
    """Two members of one sample have the same extension, so one would hide the other."""

    summary = "has two members of one name in a sample"
    advice = "write it without the repeat"


class CountMismatchError(ShardError):
    """The shard holds ``found`` samples where the index promises ``expected``."""


class ChangedShardError(ShardError):
    """A shard that is read in place changed under its reader, or differs from what the index says."""

    kind = "changed"
    summary = "changed while it was looked at"
    advice = "look again when no process writes it"


class ShardReadError(ShardError):
    """The disk or the file system failed to give some bytes of a shard that is open."""


class ClosedReaderError(ShardError):
    """The reader was closed, by its owner or to give way; its shard has to be opened again."""


class TableError(ShardError):
    """A saved member table is damaged, of another version, or not a member table."""


class FetchError(WidsError, OSError):
    """A download failed for good; ``url`` names the shard or index."""

    kind = "fetch"
    advice = "try again; check the server or the disk"


class ShardNotFoundError(FetchError, FileNotFoundError):
    """There is nothing at that URL or path."""

    kind = "missing"
    summary = "is not there"
    advice = "bring it back, or check the URLs and the base of the index"


class FetchDeniedError(FetchError, PermissionError):
    """The server or the file system refused to hand it out."""

    kind = "denied"
    advice = "check permissions, credentials and signatures"


class UnreachableError(FetchError):
    """There was no connection: unknown name, refused, a certificate that is not valid, or offline mode."""

    kind = "unreachable"
    advice = "check host, port and network"


class WrongContentError(FetchError):
    """A web page (of a login, a proxy, an error) came where a shard was promised."""

    kind = "page"
    summary = "is a web page"
    advice = "open the URL in a browser to see what it says"


class SizeMismatchError(FetchError):
    """``found`` bytes arrived where ``expected`` were promised."""


class TooLongError(FetchError):
    """A file that comes from a server is longer than ``expected`` bytes, the most that it may have, unpacked."""

    kind = "long"
    summary = "is too long"
    advice = "check the URL, and what the server sends"


class DigestMismatchError(FetchError):
    """A checksum of the received bytes is ``found``, and the index says ``expected``."""


class NoRangesError(FetchError):
    """The server gives no byte ranges; the shard can be fetched as a whole."""


class CacheError(WidsError, OSError):
    """The cache directory cannot be used."""


class CacheFull(CacheError):  # noqa: N818 - a state of the cache, as `queue.Full`
    """There is no room for a shard: ``expected`` bytes are needed, ``found`` are available, the rest is in use."""


class StateError(WidsError, ValueError):
    """A sampler's state belongs to another dataset, seed or setting (the message says what differs), or is damaged."""


class SampleError(WidsError, ValueError):
    """A sample cannot be written; ``key`` and ``field`` say which, ``path`` is a file that it was to come from."""


class SelectionError(WidsError, LookupError):
    """There is no such shard, sample, step or field, or more than one; the message says which there are."""


class InputError(WidsError, ValueError):
    """An input of a job or a sampler (folder, range, ranks) cannot be used; ``path`` or ``url`` names it."""


class ColumnsError(WidsError, ValueError):
    """A table of columns cannot be used: it is damaged, of another index, or its keys are not those of the samples."""


class MissingTableError(ColumnsError):
    """There is no table of columns at this place."""


class QueryError(WidsError, ValueError):
    """SQL that cannot be answered; ``found`` is the SQL, the message names the columns there are."""


class OutputError(WidsError, OSError):
    """An output cannot be written; ``url`` or ``path`` names it."""


class OutputExistsError(OutputError, FileExistsError):
    """An output exists, and replacing it was not asked for; ``url`` names it."""


class JobError(WidsError, RuntimeError):
    """Work on many shards failed as a whole; failures of single shards are in the job's outcome."""


class WorkerError(JobError):
    """A process ended in the middle of a task: it was killed, or what it ran crashed; ``found`` is its exit code."""


class ClusterError(JobError):
    """A Ray cluster cannot be reached, or failed while it worked."""


class DependencyError(WidsError, ImportError):
    """An optional package is not installed; the message names the extra of wids that brings it."""


class DecodeError(WidsError, ValueError):
    """A member cannot be decoded; ``shard``, ``key`` and ``field`` say which."""


class TooManyErrorsError(WidsError):
    """More samples failed than ``max_errors`` allows, or all that could take one's place; ``path`` is their log."""


class UnsafeFormatError(DecodeError):
    """Decoding this member could run code (pickle), and that was not allowed."""


def _other_fields(error: BaseException, sample: dict[str, Any]) -> str:
    """The fields that a sample has instead of the requested one: ``.jpeg``, say, or ``.jpg`` for ``jpg``."""
    name = error.args[0] if type(error) is KeyError and len(error.args) == 1 else None
    if not isinstance(name, str) or name in sample or not (name.startswith(".") or f".{name}" in sample):
        return ""
    there = [field for field in map(str, sample) if not field.startswith("__")]
    listed = ", ".join(map(shorten, there[:_NAMED_FIELDS])) + (", ..." if len(there) > _NAMED_FIELDS else "")
    return f"; it has the fields {listed}" if there else "; it has no fields"


def copied(error: E) -> E:
    """The same error with its cause, to be raised elsewhere: it holds no frames, and its notes are its own."""
    other = copy.copy(error)
    other.__cause__ = error.__cause__
    return other


def note_sample(error: E, sample: Any) -> E:
    """Note to an error which sample it is about, for its traceback; returns the error.

    Python 3.10 shows no notes: they are in its ``__notes__``. A `DecodeError` names the sample itself.

    Args:
        error: of a transformation, say.
        sample: as it was read.
    """
    if isinstance(sample, dict) and "__index__" in sample and not isinstance(error, DecodeError):
        name, shard = sample.get("__dataset__"), sample.get("__shard__")
        words = f"sample {sample['__index__']}{f' of {name!r}' if name else ''}, key {sample.get('__key__')!r:.200}, "
        words += f"row {sample.get('__shardindex__')} of {without_secrets(str(shard), str(shard))}"
        note(error, harmless(words + _other_fields(error, sample)))
    return error


def note(error: BaseException, words: str) -> None:
    """Add a note to an error, which has it in its ``__notes__``, also with Python 3.10."""
    with contextlib.suppress(Exception):  # an exception may have no attributes
        error.__notes__ = [*getattr(error, "__notes__", ()), words]
