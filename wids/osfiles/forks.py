"""Forks wait while something is done that a forked child would find half done for good.

Rules: a fork copies one thread and all locks. One that another thread holds in that moment, the import lock of a module
say, is never released in the child, and a wait for it never ends. So ``with held:`` goes around what takes such locks,
and is short: first imports and the like. A thread may hold it and fork, or hold it twice.
"""

from __future__ import annotations

import os
import threading

held = threading.RLock()

if hasattr(os, "register_at_fork"):  # where there are forks
    os.register_at_fork(before=held.acquire, after_in_parent=held.release, after_in_child=held.release)
