"""Benchmarks of plain loops around clients."""
