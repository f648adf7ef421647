"""A short run of schemathesis with a fixed seed; `python -m tests.gateway.schema.run` is the long one."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.gateway.schema.run import check


@pytest.mark.timeout(400)
async def test_no_answer_of_a_short_run_contradicts_the_description(tmp_path: Path) -> None:
    code, printed = await check(tmp_path, "--seed=34", "--max-examples=2")
    assert code == 0, printed
