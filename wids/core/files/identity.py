"""Size, mtime, md5 and version of the shard that a member table belongs to, and their comparison with a shard.

Pure. A fact that is not known counts neither for nor against.
"""

from __future__ import annotations

import msgspec


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """Properties of the bytes of one shard. ``None`` is unknown.

    Attributes:
        size: bytes.
        mtime_ns: modification time in nanoseconds of the file that was read.
        md5: hexadecimal digest of the whole shard.
        etag: the server's entity tag, as sent.
    """

    size: int
    mtime_ns: int | None = None
    md5: str | None = None
    etag: str | None = None

    def is_same(self, other: Identity) -> bool:
        """True if both describe the same bytes: equal sizes, one more fact known to both, and none that differs.

        A digest known to both decides alone; mtime only stands in where none exists.
        """
        if self.size != other.size:
            return False
        if self.md5 and other.md5:
            return self.md5 == other.md5
        pairs = [(self.mtime_ns, other.mtime_ns), (self.etag or None, other.etag or None)]
        known = [a == b for a, b in pairs if a is not None and b is not None]
        return bool(known) and all(known)
