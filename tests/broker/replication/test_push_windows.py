"""The total memory of push windows is bounded, regardless of their number."""

from __future__ import annotations

from typing import cast

import pytest

from tidelog_broker.core.replication.ownership import Ownership
from tidelog_broker.replication.push_windows import WINDOW_BYTES_MAX, WINDOW_BYTES_MIN, divide_window_memory
from tidelog_proto.limits import MIB


class Window:
    def __init__(self, kept_bytes: int) -> None:
        self.window_kept_bytes = kept_bytes
        self.bound_bytes = 0

    def bound_window(self, window_bytes: int) -> None:
        self.bound_bytes = window_bytes


@pytest.mark.parametrize(
    ("busy", "idle", "each_bytes"),
    [(0, 0, WINDOW_BYTES_MAX), (1, 500, WINDOW_BYTES_MAX), (16, 16, 16 * MIB), (1000, 0, WINDOW_BYTES_MIN)],
)
def test_few_busy_partitions_get_large_windows(busy: int, idle: int, each_bytes: int) -> None:
    windows = [Window(1)] * busy + [Window(0)] * idle
    assert divide_window_memory(cast(list[Ownership], windows), 256 * MIB) == each_bytes
    assert {window.bound_bytes for window in windows} <= {each_bytes}, "also who keeps nothing yet"
