"""Benchmarks of loops around clients."""
