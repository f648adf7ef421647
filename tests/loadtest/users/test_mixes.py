from __future__ import annotations

import pytest

from tidelog_loadtest.users.mixes import MIXES, P95_MS, reported_by, users_at


def test_users_start_in_steps_and_stop_at_the_end() -> None:
    counts = [users_at(at, 100, 40) for at in (0, 14, 16, 31, 46, 99, 100)]
    assert counts == [10, 10, 20, 30, 40, 40, None]
    assert users_at(0, 10, 1) == 1


@pytest.mark.parametrize("mix", sorted(MIXES))
def test_every_reported_kind_of_a_mix_has_a_limit(mix: str) -> None:
    reported = reported_by(mix)
    assert reported
    assert set(reported) <= set(P95_MS)
