"""The Hugging Face Hub: its files, its data sets by name, and indexes committed to it. Needs ``wids[hub]``.

The modules are imported by `wids.core.transport.schemes`, for the first place that may be on the Hub.
"""
