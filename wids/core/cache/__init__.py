"""Shards on this disk: the directory, its space, leases, hints of use, eviction, cleaning."""
