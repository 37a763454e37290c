"""Packing: files, rows or shards -> shards with an index, in several processes.

Packing first lists a source (every sample, or its fault), then cuts the list into shards, and then writes each shard
from its part of the list alone. So the bytes of a shard do not depend on the number of processes, or on its writer.
"""
