"""Proof of the client's identity on a connection."""
