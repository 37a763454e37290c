"""Writing shards: one after the other from a program, or packed in bulk."""
