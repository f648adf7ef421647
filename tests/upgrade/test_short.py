"""Short upgrades from the last commit before feature levels; `make upgrade` does longer ones from any build."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.upgrade.builds import BEFORE_LEVELS, ROOT, has_history, other_build

pytestmark = [pytest.mark.e2e, pytest.mark.machine, pytest.mark.timeout(600)]

needs_history = pytest.mark.skipif(not has_history(), reason="this folder is not a clone, or a shallow one")


@needs_history
def test_the_default_build_is_a_commit_of_this_history() -> None:
    done = subprocess.run(["git", "-C", ROOT, "merge-base", "--is-ancestor", BEFORE_LEVELS, "HEAD"], check=False)
    assert done.returncode == 0, f"`make upgrade` begins at {BEFORE_LEVELS}, which is not in this history"


def test_a_commit_and_a_wheel_that_do_not_exist_are_refused() -> None:
    with pytest.raises(SystemExit, match="FROM=nothing is not a commit of this repository: give a commit, or the path"):
        other_build("nothing")
    with pytest.raises(SystemExit, match=r"FROM=no\.whl does not exist: give the path of a wheel, or a commit"):
        other_build("no.whl")


@needs_history
@pytest.mark.long
@pytest.mark.parametrize("way", ["upgrade", "downgrade"])
def test_a_cluster_under_load_loses_nothing(way: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.upgrade.run", "--seconds", "1", "--way", way, "--keep", tmp_path],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert f"{way}: 0 faults found" in done.stdout
