"""The page of types shows what real round trips have."""

from __future__ import annotations

import pytest
from tests.types_table import PAGE, render

pytestmark = pytest.mark.e2e


def test_the_page_is_current() -> None:
    assert PAGE.read_text() == render(), "run: python -m tests.types_table"
