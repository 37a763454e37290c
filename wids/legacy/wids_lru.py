"""``wids.wids_lru`` of the original."""

from wids.cache.pool import LRUCache

__all__ = ["LRUCache"]
