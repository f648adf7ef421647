"""Connections of clients and between nodes, with limits on every resource that they use."""
