"""Shard lists and member tables: which shards a dataset has, and where each sample lies in a shard.

Pure: nothing here opens a file, a socket or a thread; bytes come in as arguments or through a
``read`` callable, and go out as return values.
"""
