"""Member tables: where the members of a shard are; made from its headers, saved, published, packed."""
