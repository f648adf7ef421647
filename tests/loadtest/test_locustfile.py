"""Locust patches the standard library when it is imported, so these tests look at it from another process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import tidelog_loadtest

LOCUSTFILE = Path(tidelog_loadtest.__file__).with_name("locustfile.py")


def test_locust_finds_every_user() -> None:
    listed = subprocess.run(
        [sys.executable, "-m", "locust", "-f", str(LOCUSTFILE), "--list"], capture_output=True, text=True, check=True
    )
    for user in ("RestUser", "WebSocketUser", "NativeUser"):
        assert user in listed.stdout
