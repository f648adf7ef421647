"""Benchmarks of the Spark source."""
