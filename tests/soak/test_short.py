"""A soak of less than a minute, as `make soak` does long ones."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.machine, pytest.mark.timeout(400)]

ROOT = Path(__file__).parents[2]


@pytest.mark.long
def test_a_short_soak_finds_nothing(tmp_path: Path) -> None:
    picture = tmp_path / "soak.svg"
    command = [sys.executable, "-m", "tests.soak.run", "--minutes", "0.6", "--seed", "12", "--picture", str(picture)]
    ended = subprocess.run(
        [*command, "--data", str(tmp_path / "data")], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, f"{ended.stdout}\n{ended.stderr}"
    assert "0 faults found" in ended.stdout
    assert "has lost its disk" in ended.stdout
    assert "kill -9" in ended.stdout
    left, acked, compacted, epochs = (
        int(number.replace(",", ""))
        for number in re.findall(
            r"state: ([\d,]+) records left of ([\d,]+), ([\d,]+) behind a last pass, ([\d,]+) epochs", ended.stdout
        )[0]
    )
    # How much less depends on how fast the machine is.
    assert left < acked, "no automatic compaction has run"
    assert 0 < compacted <= left
    assert epochs > 4, "no epoch was ended by a pass"
    kept, sent = (
        int(number.replace(",", "")) for number in re.findall(r"events: ([\d,]+) left of ([\d,]+)", ended.stdout)[0]
    )
    assert kept < sent, "nothing has expired"
    assert picture.read_text().startswith("<svg")
