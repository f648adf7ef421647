"""A short run under faults, as `make faults` does long ones: a few of them, always by the same plan."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.machine, pytest.mark.timeout(400)]

ROOT = Path(__file__).parents[2]
SEED = "22"
"""Its first faults are of processes, of the network and of the disk."""


def test_a_short_run_under_faults_finds_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.faults.run", "--minutes", "0.3", "--topics", "2", "--rate", "600"]
    ended = subprocess.run(
        [*command, "--seed", SEED, "--data", str(tmp_path)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, f"{ended.stdout}\n{ended.stderr}"
    assert "0 faults found" in ended.stdout
