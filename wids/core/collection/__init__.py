"""A list of shards without torch: samples by index, views, batches, substitutes, keys."""
