"""Frames between a socket and requests, and name resolution."""
