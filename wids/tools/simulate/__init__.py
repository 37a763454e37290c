"""The course of a job, without a byte of data: who reads what, what nodes download and evict, and where steps wait.

Pure: no I/O, no clock, no randomness of its own. The order is that of `wids.core.order`; downloads ahead,
evictions and waits are decided by `wids.core.prefetch`; modelled here are nodes, links, loaders and time.
"""
