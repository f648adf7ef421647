"""Connections to nodes, metadata, and routing of requests."""
