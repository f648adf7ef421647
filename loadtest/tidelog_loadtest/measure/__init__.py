"""Timing of runs, their resource usage, and the output of results."""
