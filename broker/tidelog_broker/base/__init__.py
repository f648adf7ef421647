"""Foundations of all rooms: settings, metrics, threads for blocking work, management answers."""
