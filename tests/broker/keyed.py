"""Nodes that ask who their clients are, in tests: an administrator's key, and clients that show one."""

from __future__ import annotations

from tidelog import Client
from tidelog_broker.node.node import Node

ADMIN = "tlk_abcdefghij234567_" + "s" * 43


def client(port: int, api_key: str) -> Client:
    return Client(f"127.0.0.1:{port}", api_key=api_key, request_timeout_s=10)


def counted(node: Node, name: str) -> float | None:
    """Return what a node has counted."""
    return node.broker.metrics.registry.get_sample_value(name)
