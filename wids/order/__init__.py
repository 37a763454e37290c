"""Which sample, when: the order of an epoch as a pure function of (lengths, seed, epoch, rank, world).

Rules: numpy only, no I/O, no global random state. Permutations come from raw counter-based bits (Philox) and a stable
argsort, so that an order never changes with a numpy release.
"""
