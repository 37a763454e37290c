"""What a list of shards can do, without torch: samples by index, views, batches, substitutes, keys."""
