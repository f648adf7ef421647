from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import typer

from tidelog_cli.base.standard_output import CONFIRMS, PRINTS, output_lost
from tidelog_cli.main import build_app
from tidelog_proto.process.standard_streams import OutputLostError


def names_in(command: Any, prefix: str = "") -> Iterator[str]:
    parts = getattr(command, "commands", None)
    if parts is None:
        yield prefix
        return
    for name, part in parts.items():
        yield from names_in(part, f"{prefix} {name}".strip())


def test_every_command_says_whether_its_output_only_confirms() -> None:
    commands = list(names_in(typer.main.get_command(build_app(parts=[]))))
    assert sorted([*CONFIRMS, *PRINTS]) == sorted(commands)


@pytest.mark.parametrize(("words", "code"), [(["topic", "create", "t"], 0), (["topic", "list"], 1), (["produce"], 0)])
def test_a_lost_confirmation_is_success_and_a_lost_result_is_not(
    words: list[str], code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert output_lost(words, OutputLostError(OSError(28, "No space left on device"))) == code
    assert "No space left on device" in capsys.readouterr().err
