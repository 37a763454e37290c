"""Which shards come next, and when."""
