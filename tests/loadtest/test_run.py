from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.machine]


@pytest.mark.long
def test_a_short_load_test_passes_and_prints_every_kind_of_user() -> None:
    command = [sys.executable, "-m", "tidelog_loadtest.run", "--seconds", "4", "--users", "4"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=200)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    table = ended.stdout + ended.stderr
    for row in ("publish 10 records", "publish 100 records", "fetch", "publish to arrival"):
        assert row in table, table
