from __future__ import annotations

from tests.gateway.conftest import node_address

__all__ = ["node_address"]
