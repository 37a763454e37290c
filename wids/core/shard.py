"""One shard, as an index describes it: the value that the rooms of the core hand on. Pure."""

from __future__ import annotations

from typing import Annotated

import msgspec

from wids.core.files.lazy import Lazy
from wids.core.place import Place

MAX_COUNT = (1 << 63) - 1
Count = Annotated[int, msgspec.Meta(ge=0, le=MAX_COUNT)]


class Shard(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """One shard as an index describes it.

    Attributes:
        url: resolved; the value of ``sample["__shard__"]``.
        nsamples: samples promised; None where no index says (plain lists of local tars).
        filesize: bytes promised, or None.
        md5sum: hexadecimal digest promised, in lower case, or None.
        crc32: likewise.
        packs: packs (`wids.core.tables.pack_format`) that the index names, which may have its member table.
    """

    url: str
    nsamples: Count | None
    filesize: Count | None = None
    md5sum: str | None = None
    crc32: str | None = None
    packs: tuple[str, ...] = ()

    @Lazy
    def place(self) -> Place:
        """Its URL, parsed."""
        return Place(self.url)
