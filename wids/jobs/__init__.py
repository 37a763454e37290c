"""Work on many shards: index, verify, warm; in threads, processes, or on Ray."""
