"""The original's submodule names over the new code; found as ``wids.wids``, ``wids.wids_cleanup``, ... (see ``wids``).

Rules: a few lines each; no behaviour of their own where the new code has it; new programs import from ``wids``.
"""
