from __future__ import annotations

import re
import shutil
import subprocess

import pytest
from tests.gateway.conftest import node_address

__all__ = ["node_address"]

NODE_MIN = (18, 0)
OWN_WEBSOCKET = (22, 0)
FLAGGED_WEBSOCKET = (20, 10)


def node_version() -> tuple[int, int] | None:
    """Return the version of the `node` on the path; None without one."""
    path = shutil.which("node")
    if path is None:
        return None
    told = subprocess.run([path, "--version"], capture_output=True, text=True, check=False, timeout=30).stdout
    found = re.match(r"v(\d+)\.(\d+)", told)
    return None if found is None else (int(found[1]), int(found[2]))


@pytest.fixture(scope="session")
def node_command() -> list[str]:
    """How to run node with a global WebSocket."""
    version = node_version()
    if version is None or version < NODE_MIN:
        pytest.skip(f"needs node {NODE_MIN[0]} or newer on the path; found {version}")
    if version < FLAGGED_WEBSOCKET:
        pytest.skip(f"node {version[0]}.{version[1]} has no WebSocket: needs 20.10 or newer for these tests")
    return ["node", *([] if version >= OWN_WEBSOCKET else ["--experimental-websocket"])]
