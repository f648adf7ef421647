"""Test stands: nodes and limit probes as child processes, and the payloads of benchmarks."""
