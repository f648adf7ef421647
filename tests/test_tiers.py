from __future__ import annotations

from pathlib import Path

import pytest
from tests.tiers import SLOW, is_slow

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("path", SLOW)
def test_each_slow_path_has_tests(path: str) -> None:
    place = ROOT / path
    assert place.is_dir() is path.endswith("/")
    assert place.is_file() or [*place.rglob("test_*.py")]


def test_tests_of_a_slow_folder_are_slow(request: pytest.FixtureRequest) -> None:
    assert is_slow("tests/faults/test_short.py")
    assert not is_slow("tests/test_tiers.py")
    assert request.node.get_closest_marker("slow") is None


def test_continuous_integration_runs_what_make_test_leaves_out() -> None:
    recipes = (ROOT / "Makefile").read_text()
    assert '-m "not long and not slow"' in recipes
    assert '-m "slow and not long"' in recipes
    assert "test testslow" in (ROOT / ".ci/run").read_text()
