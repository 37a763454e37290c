"""``wids.wids_lru`` of the original."""

from wids.core.readers.lru import LRUCache

__all__ = ["LRUCache"]
