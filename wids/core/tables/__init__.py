"""Member tables: the offsets of the members of a shard; made from its headers, saved, published, packed."""
