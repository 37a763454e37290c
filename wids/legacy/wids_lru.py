"""``wids.wids_lru`` of the original."""

from wids.readers.pool import LRUCache

__all__ = ["LRUCache"]
