"""Framing of requests on a socket, and name resolution."""
