"""Runs the contender of peers.py whose module is named in $PEER.

What all contenders have is imported first. The seconds that the contender's own packages take to import are part of
its first batch: it is no advantage to import them early or late.
"""

from __future__ import annotations

import importlib
import os
import time

import cold_worker  # noqa: F401 - torch and Pillow
import peer_worker

if __name__ == "__main__":
    begin = time.perf_counter()
    module = importlib.import_module(os.environ["PEER"])
    peer_worker.serve(module.CONTENDER, import_seconds=time.perf_counter() - begin)
