"""What to evict, how far to download ahead, whether a cached file is up to date: decisions without I/O."""
