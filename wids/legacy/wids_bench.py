"""``wids.wids_bench`` of the original, a script for two lines of shell; it is left out."""

raise ImportError(
    "wids.wids_bench is not part of wids any more: iterate over wids.ShardListDataset(index), or run "
    "benchmarks/run.py of a checkout",
    name="wids.wids_bench",
)
