"""Load tests and benchmarks: the limit probe, the benchmark commands and the locust users."""
