"""Partitions that a consumer reads: subscriptions, prefetch, positions, records of batches."""
