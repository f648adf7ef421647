from __future__ import annotations

from tests.metrics_table import PAGE, render


def test_the_page_is_current() -> None:
    assert PAGE.read_text() == render(), "run: python -m tests.metrics_table"
