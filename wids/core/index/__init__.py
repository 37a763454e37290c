"""Indexes: which shards a dataset has; parsed, compiled, written, edited; views, which are indexes of some rows."""
