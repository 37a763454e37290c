"""``wids.wids_cleanup`` of the original."""

from wids.cache.cleanup import create_cleanup_background_process, keep_most_recent_files

__all__ = ["create_cleanup_background_process", "keep_most_recent_files"]
