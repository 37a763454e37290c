"""What to evict, how far to download ahead, whether a cached file is current: decisions without I/O."""
