"""Prometheus metrics of the gateway: their registry, their text format, and the sums over workers."""
