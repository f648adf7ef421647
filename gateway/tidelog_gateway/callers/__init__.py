"""Authenticated callers with their clients, and each caller's share of connections and of the event loop."""
