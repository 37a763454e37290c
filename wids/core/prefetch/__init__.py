"""The shards that come next, and their times."""
