from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.tiers import FAST_ONLY, PARTS, SLOW_ONLY, WHOLE, is_left_out, is_slow

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("path", WHOLE)
def test_each_slow_path_has_tests(path: str) -> None:
    place = ROOT / path
    assert place.is_dir() is path.endswith("/")
    assert place.is_file() or [*place.rglob("test_*.py")]


def test_each_slow_test_exists() -> None:
    """Pytest fails for the name of a test that does not exist, or not with that parameter."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-qq", "-p", "no:cacheprovider", *sorted(PARTS)]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=100)
    assert found.returncode == 0, found.stdout + found.stderr


def test_tests_of_a_slow_folder_are_slow(request: pytest.FixtureRequest) -> None:
    assert is_slow("tests/faults/test_short.py")
    assert not is_slow("tests/test_tiers.py")
    assert is_slow("tests/simulation/whole/test_whole.py::test_every_invariant_holds[2]")
    assert not is_slow("tests/simulation/whole/test_whole.py::test_every_invariant_holds[0]")
    assert request.node.get_closest_marker("slow") is None


def test_continuous_integration_runs_what_make_test_leaves_out() -> None:
    recipes = (ROOT / "Makefile").read_text()
    assert f'-m "{FAST_ONLY}"' in recipes
    assert f'-m "{SLOW_ONLY}"' in recipes
    assert "test testslow" in (ROOT / ".ci/run").read_text()


def test_either_command_collects_each_file() -> None:
    files = [path.relative_to(ROOT).as_posix() for path in (ROOT / "tests").rglob("test_*.py")]
    partly = {name.partition("::")[0] for name in PARTS}
    slow = [path for path in files if is_slow(path) or path in partly]
    for expression, chosen in ((FAST_ONLY, [path for path in files if not is_slow(path)]), (SLOW_ONLY, slow)):
        found = [path for path in files if not any(is_left_out(each, expression) for each in [*folders_of(path), path])]
        assert found == chosen
        assert 0 < len(found) < len(files)


def test_other_commands_leave_out_nothing() -> None:
    paths = ["tests/", "tests/faults/", "tests/faults/test_short.py", "tests/test_tiers.py"]
    assert not any(is_left_out(path, expression) for path in paths for expression in ("", "not long", "slow"))


def test_only_the_list_makes_tests_slow() -> None:
    """Else `make testslow` would not collect the file of a test that is marked itself."""
    mark = "mark." + "slow"
    marking = [path for path in (ROOT / "tests").rglob("*.py") if mark in path.read_text()]
    assert marking == [ROOT / "tests/conftest.py"]


def folders_of(path: str) -> list[str]:
    """Return the folders above a file, each with a slash at its end."""
    return [f"{folder.as_posix()}/" for folder in Path(path).parents if folder != Path()]
