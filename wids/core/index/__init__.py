"""Indexes: the shards of a dataset; parsed, compiled, written, edited; views, which are indexes of some rows."""
