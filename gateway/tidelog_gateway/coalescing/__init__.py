"""Requests of one caller that share work: one producer for each topic, one read of the same records."""
