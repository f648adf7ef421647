"""Benchmarks of one node."""
