"""A short run under faults, as `make faults` does long ones: one of each kind, always in the same row."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest
from tests.faults.namespaces import way_in

pytestmark = [pytest.mark.e2e, pytest.mark.machine, pytest.mark.timeout(400)]

ROOT = Path(__file__).parents[2]
SEED: Final = "118000"
"""With it every fault of the row lasts 1 to 3 s: pauses and cuts more than 2 s, which is enough for a takeover."""
PROCESSES: Final = ("kill_owner", "pause_owner", "kill_all", "grow_topic", "kill_gateway", "make_topic_again")
ROW: Final = (
    "kill_owner",
    "pause_owner",
    "isolate_owner",
    "mute",
    "fill_disk",
    "kill_all",
    "grow_topic",
    "kill_gateway",
    "make_topic_again",
    "cut_off_member",
)


def faults_done(printed: str) -> dict[str, int]:
    """Return the number of each fault, from the table at the end."""
    rows = printed.partition("\nfault ")[2].partition("\nall faults ")[0].splitlines()[2:]
    return {name.strip().replace(" ", "_"): int(times) for name, times in (row.rsplit(maxsplit=1) for row in rows)}


def run(directory: Path, row: Sequence[str], *options: str) -> str:
    """Execute a sequence of faults, and return the output: no violation was found."""
    command = [sys.executable, "-m", "tests.faults.run", "--topics", "2", "--rate", "600", "--row", ",".join(row)]
    ended = subprocess.run(
        [*command, *options, "--seed", SEED, "--data", str(directory)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, f"{ended.stdout}\n{ended.stderr}"
    assert "0 faults found" in ended.stdout
    return ended.stdout


@pytest.mark.long
def test_a_short_run_with_identities_refuses_only_the_stranger(tmp_path: Path) -> None:
    row = ("replace_keys", "kill_owner", "renew_certificates", "replace_secret")
    printed = run(tmp_path, row, "--secure")
    assert faults_done(printed) == dict.fromkeys(row, 1), printed
    tries = re.search(r"a try of a stranger, refused +([\d,]+)", printed)
    assert tries is not None, printed
    assert int(tries[1].replace(",", "")) > 10


def test_a_short_run_under_faults_finds_nothing(tmp_path: Path) -> None:
    printed = run(tmp_path, ROW)
    way, reason = way_in()
    wanted = ROW if way else PROCESSES
    assert faults_done(printed) == dict.fromkeys(wanted, 1), printed
    if not way:
        pytest.skip(f"the network and the disk were left alone: {reason}")
