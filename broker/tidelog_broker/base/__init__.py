"""Shared foundations of the broker: settings, metrics, threads for blocking work, answers of the management port."""
