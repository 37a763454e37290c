"""The bytes, here: fetch, verify, publish, open, read. The only part of wids that does I/O on shards.

One fetch is: lock -> look again -> download to a unique part file -> verify -> build member table -> publish.
"""
