"""Measuring Tidelog: the limit probe, the benchmark commands and the locust users."""
