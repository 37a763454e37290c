"""What all tests of whole programs share."""

import multiprocessing

# What the forkserver of a test process imports before it forks; only there, for it makes each fork of a process slower.
multiprocessing.set_forkserver_preload(["tests.support.programs.imports"])
