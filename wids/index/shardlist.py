"""Shard list: URL, sample count, size and checksum of each shard of a dataset, in order.

Pure. Shards are held as columns, because a list of a million shards is pickled into every worker. Keys that
wids does not know are kept.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Annotated, Any, cast

import msgspec

from wids.errors import without_secrets

MAX_COUNT = (1 << 63) - 1
# More rows than this come of an index that multiplies itself, or of a brace pattern with a slip in it.
MAX_SHARDS = 1 << 22
Count = Annotated[int, msgspec.Meta(ge=0, le=MAX_COUNT)]


class Shard(msgspec.Struct, frozen=True, kw_only=True):
    """One shard as an index describes it.

    Attributes:
        url: resolved; what ``sample["__shard__"]`` says.
        nsamples: samples promised; None where no index says (plain lists of local tars).
        filesize: bytes promised, or None.
        md5sum: hexadecimal digest promised, in lower case, or None.
    """

    url: str
    nsamples: Count | None
    filesize: Count | None = None
    md5sum: str | None = None


class Row(msgspec.Struct):
    """One shard as it is written in an index, its types checked. ``nsamples`` is -1 where no index says."""

    url: str
    nsamples: Count
    filesize: Count | None = None
    md5sum: str | None = None


KNOWN_KEYS = frozenset(Row.__struct_fields__)


class ShardList:
    """The shards of a dataset, in order, as columns.

    Attributes:
        header: the index's top-level keys but its shards: name, info, base, and any others.
        urls, nsamples, filesizes, md5sums: one entry a shard; -1 or "" is unknown. No URL has a NUL in it.
    """

    __slots__ = ("_defaults", "_extras", "_starts", "filesizes", "header", "md5sums", "nsamples", "urls")

    def __init__(self, header: dict[str, Any] | None = None) -> None:
        self.header: dict[str, Any] = header or {}
        self.urls: list[str] = []
        self.nsamples: list[int] = []
        self.filesizes: list[int] = []
        self.md5sums: list[str] = []
        self._extras: dict[int, dict[str, Any]] = {}
        self._starts: list[int] = []  # first shard of each component, and
        self._defaults: list[dict[str, Any]] = []  # the keys that all its shards have

    def __len__(self) -> int:
        return len(self.urls)

    def __getitem__(self, k: int) -> Shard:
        return Shard(
            url=self.urls[k],
            nsamples=None if self.nsamples[k] < 0 else self.nsamples[k],
            filesize=None if self.filesizes[k] < 0 else self.filesizes[k],
            md5sum=self.md5sums[k] or None,
        )

    def find(self, url: str) -> Shard:
        """The first shard with this URL.

        Raises:
            KeyError: there is none.
        """
        try:
            return self[self.urls.index(url)]
        except ValueError:
            raise KeyError(f"{without_secrets(url, url)} is not a shard of this dataset") from None

    def describe(self, k: int) -> dict[str, Any]:
        """Shard ``k`` (0 <= k < len) as the dict that the original's ``ds.shards`` held, unknown keys and all."""
        shard = self[k]
        desc: dict[str, Any] = {"url": shard.url, "nsamples": shard.nsamples}
        if shard.filesize is not None:
            desc["filesize"] = shard.filesize
        if shard.md5sum is not None:
            desc["md5sum"] = shard.md5sum
        desc.update(self._extras.get(k, {}))
        at = bisect_right(self._starts, k)
        return {**self._defaults[at - 1], **desc} if at else desc

    def dataset_of(self, k: int) -> str | None:
        """The name of the sub-dataset that shard ``k`` came from; what ``describe(k).get("dataset")`` says."""
        own = self._extras.get(k)
        if own is not None and "dataset" in own:
            return cast("str | None", own["dataset"])
        at = bisect_right(self._starts, k)
        return self._defaults[at - 1].get("dataset") if at else None

    def __getstate__(self) -> tuple[Any, ...]:
        columns = tuple("\0".join(column) for column in (self.urls, self.md5sums))
        rest = (self.nsamples, self.filesizes, self._extras, self._starts, self._defaults)
        return self.header, len(self), columns, rest

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.header, count, (names, digests), rest = state
        self.nsamples, self.filesizes, self._extras, self._starts, self._defaults = rest
        self.urls = names.split("\0") if count else []
        self.md5sums = digests.split("\0") if count else []

    def begin_component(self, defaults: dict[str, Any]) -> None:
        """All shards appended from here on have these keys, unless they bring their own."""
        self._starts.append(len(self.urls))
        self._defaults.append(defaults)

    def append(self, url: str, row: Row, raw: dict[str, Any]) -> None:
        """Add one checked row; ``raw`` is the row as it was written, whose unknown keys are kept."""
        self.urls.append(url)
        self.nsamples.append(row.nsamples)
        self.filesizes.append(-1 if row.filesize is None else row.filesize)
        self.md5sums.append((row.md5sum or "").lower())
        if extras := _unknown(raw):
            self._extras[len(self.urls) - 1] = extras

    def replace(self, k: int, row: ShardList) -> None:
        """Make shard ``k`` the one shard of ``row``. ``nsamples`` becomes another list if its count is another one."""
        if self._starts:  # the keys that all shards of a component have become each one's own, to be changed alone
            self._extras = {n: extras for n in range(len(self)) if (extras := _unknown(self.describe(n)))}
            self._starts, self._defaults = [], []
        self.urls[k], self.filesizes[k], self.md5sums[k] = row.urls[0], row.filesizes[0], row.md5sums[0]
        if row.nsamples[0] != self.nsamples[k]:
            self.nsamples = [*self.nsamples[:k], row.nsamples[0], *self.nsamples[k + 1 :]]
        self._extras.pop(k, None)
        if extras := _unknown(row.describe(0)):
            self._extras[k] = extras


def _unknown(raw: dict[str, Any]) -> dict[str, Any]:
    """The keys that are not ours."""
    return {} if KNOWN_KEYS.issuperset(raw) else {key: raw[key] for key in raw if key not in KNOWN_KEYS}
