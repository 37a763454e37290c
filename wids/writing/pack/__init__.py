"""Packing: files, rows or shards -> shards with an index, in several processes.

A source is listed first (every sample, and its fault if it has one), then cut into shards, and then each shard is
written from its part of the list alone. So its bytes depend neither on the number of processes nor on who writes it.
"""
