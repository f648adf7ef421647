"""Benchmarks of a cluster under faults."""
