"""Members of one shard: from a local file, a cached one, or byte ranges; and the pool of open shards."""
