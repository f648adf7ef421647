"""The consumer: records, commits, topic discovery and dead letters."""
