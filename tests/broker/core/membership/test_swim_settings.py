from __future__ import annotations

from typing import Any

import pytest

from tidelog_broker.core.membership.swim_settings import SwimSettings


def test_defaults_detect_a_killed_node_within_half_a_second_and_a_silent_one_within_four() -> None:
    plain = SwimSettings()
    assert plain.refused_suspicion_ms < 500
    assert plain.protocol_period_ms + plain.suspicion_ms < 1_000
    assert (plain.protocol_period_ms + plain.suspicion_ms) * (1 + plain.slowness_max) < 4_000


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"members_max": 0}, "members_max must be >= 1, got 0"),
        ({"slowness_max": -1}, "slowness_max must be >= 0, got -1"),
        ({"probe_timeout_ms": 51}, r"at least twice probe_timeout_ms \(51\), got 100"),
    ],
)
def test_inconsistent_settings_are_rejected(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SwimSettings(**changes)
    assert SwimSettings(indirect_probes=0, slowness_max=0) != SwimSettings()
