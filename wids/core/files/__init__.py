"""Files, locks, temporary directories and forks of the operating system. Nothing of shards is known here."""
