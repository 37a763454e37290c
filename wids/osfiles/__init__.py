"""Files of the operating system: atomic writes, locks, temporary directories, forks. Nothing of shards is known here."""
