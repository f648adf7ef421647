"""A partition can be published to again within five seconds after its owner was cut off, whichever way."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.faults.namespaces import way_in
from tests.faults.takeover import BOUND_S, WAYS

pytestmark = [pytest.mark.e2e, pytest.mark.machine]

ROOT = Path(__file__).parents[2]
ROUNDS = 2


@pytest.mark.long
def test_another_node_serves_soon_after_a_silent_cut() -> None:
    way, reason = way_in()
    if not way:
        pytest.skip(f"the network cannot be cut here: {reason}")
    command = [sys.executable, "-m", "tests.faults.takeover", "--rounds", str(ROUNDS)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    print(ended.stdout)
    assert ended.returncode == 0, f"{ended.stdout}\n{ended.stderr}"
    rows = re.findall(r"^ +(\w+) +(\d+) +[\d,]+ ms +([\d,]+) ms$", ended.stdout, re.MULTILINE)
    assert {name: int(rounds) for name, rounds, _ in rows} == dict.fromkeys(WAYS, ROUNDS)
    assert all(int(worst.replace(",", "")) <= BOUND_S * 1000 for _, _, worst in rows)
