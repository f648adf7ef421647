from __future__ import annotations

import io

import pytest
from rich.console import Console

from tidelog_loadtest.measure.progress import say_nothing, shown


def test_a_terminal_shows_the_step_and_the_progress() -> None:
    screen = Console(file=io.StringIO(), force_terminal=True, width=100)
    with shown(3, console=screen) as tell:
        tell("round 3: reading back", 2)
    assert isinstance(screen.file, io.StringIO)
    drawn = screen.file.getvalue()
    assert "round 3: reading back" in drawn
    assert "2/3" in drawn


def test_without_a_terminal_nothing_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with shown(3) as tell:
        tell("round 1", 0)
    assert tell is say_nothing
    assert capsys.readouterr() == ("", "")
