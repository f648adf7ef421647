"""Connections, of clients and between nodes: everything about them that must stay bounded."""
