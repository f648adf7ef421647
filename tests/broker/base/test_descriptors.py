from __future__ import annotations

import pytest

from tidelog_broker.base.descriptors import RESERVE, clients_max
from tidelog_broker.storage.segment.active_files import active_files_max
from tidelog_broker.storage.segment.disk import FILES_PER_SEGMENT, open_segments_max


@pytest.mark.parametrize("limit", [600, 1024, 4096, 20_000, 1 << 20])
def test_log_files_clients_and_reserve_fit_the_limit(limit: int) -> None:
    active = active_files_max(limit)
    cached = max(0, open_segments_max(limit) - active)
    assert active + FILES_PER_SEGMENT * cached + clients_max(limit) + RESERVE <= limit


def test_low_limit_leaves_minimum_connections() -> None:
    assert 0 < clients_max(256) < 256 - active_files_max(256)
