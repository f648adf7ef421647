"""The consumer: topics, records, commits, dead letters."""
