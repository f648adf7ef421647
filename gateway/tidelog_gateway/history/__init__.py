"""Metrics of the last hour, sampled at intervals and kept in memory."""
