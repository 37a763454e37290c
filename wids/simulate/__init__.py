"""How a job would go, without a byte of data: who reads what, what nodes fetch and evict, and where steps wait.

Rules: pure: no I/O, no clock, no randomness of its own. The order is that of `wids.order`, what goes from a cache is
chosen by `wids.policy.eviction`; here is only what stands around them: nodes, links, loaders and time.
"""
