"""Mixes of users, the ramp, and the default limits of the load test.

This module is separate from the locust file, because importing locust patches the standard library.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

TOPIC: Final = "loadtest"
"""The topic of single records; live users subscribe to it."""
BULK_TOPIC: Final = "loadtest-bulk"
"""The topic of bulk and native users."""
USERS_VARIABLE: Final = "TIDELOG_LOADTEST_USERS"
SECONDS_VARIABLE: Final = "TIDELOG_LOADTEST_SECONDS"
MIX_VARIABLE: Final = "TIDELOG_LOADTEST_MIX"

MIXES: Final[Mapping[str, Mapping[str, int]]] = {
    "all": {"SingleUser": 3, "BulkUser": 1, "StreamUser": 1, "WebSocketUser": 1, "NativeUser": 1},
    "single": {"SingleUser": 1},
    "bulk": {"BulkUser": 1},
    "live": {"SingleUser": 1, "StreamUser": 2, "WebSocketUser": 2},
    "native": {"NativeUser": 1},
}
"""Mix -> class in the locust file -> weight."""

P95_MS: Final[Mapping[str, float]] = {
    "single: publish 1 record": 250,
    "single: fetch": 250,
    "bulk: publish 1000 records": 1_000,
    "sse: publish to arrival": 1_000,
    "websocket: publish to arrival": 1_000,
    "native: publish 100 records": 250,
    "native: fetch": 250,
}
"""Kind of request -> default limit of the 95th percentile of its response time, in ms."""

_REPORTS: Final[Mapping[str, tuple[str, ...]]] = {
    "SingleUser": ("single: publish 1 record", "single: fetch"),
    "BulkUser": ("bulk: publish 1000 records",),
    "StreamUser": ("sse: publish to arrival",),
    "WebSocketUser": ("websocket: publish to arrival",),
    "NativeUser": ("native: publish 100 records", "native: fetch"),
}

STEPS: Final = (0.25, 0.5, 0.75, 1.0)
"""Steps of the ramp as fractions of the number of users; the last step lasts until the end."""
STEP_SHARE: Final = 0.15
"""Share of the duration that each step except the last takes."""


def reported_by(mix: str) -> tuple[str, ...]:
    """Return the kinds of requests that the users of a mix report."""
    return tuple(name for user in MIXES[mix] for name in _REPORTS[user])


def users_at(at_s: float, seconds: float, users: int) -> int | None:
    """Return the target number of users at a time since the start; None after the end."""
    if at_s >= seconds:
        return None
    step = min(int(at_s / (STEP_SHARE * seconds)), len(STEPS) - 1)
    return max(1, round(STEPS[step] * users))
