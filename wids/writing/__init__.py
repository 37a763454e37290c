"""Writes shards: sample by sample from a program, or packed in bulk."""
