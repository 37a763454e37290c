"""``wids.wids_lru`` of the original."""

from wids.readers.lru import LRUCache

__all__ = ["LRUCache"]
