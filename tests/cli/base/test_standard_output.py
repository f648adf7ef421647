from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from tidelog_cli.base.standard_output import CONFIRMS, PRINTS, output_lost
from tidelog_cli.main import build_app, main
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


class _Full(io.RawIOBase):
    def writable(self) -> bool:
        return True

    def write(self, data: object, /) -> int:
        raise OutputLostError(OSError(28, "No space left on device"))


@contextlib.contextmanager
def full_output() -> Iterator[None]:
    """Replace standard output by one that cannot be written."""
    full = io.TextIOWrapper(io.BufferedWriter(_Full()), "utf-8")
    with contextlib.redirect_stdout(full):
        yield
    with contextlib.suppress(OutputLostError):
        full.close()


@pytest.mark.parametrize(
    ("words", "code"),
    [(["topic", "create", "t"], 0), (["topic", "list"], 1), (["produce"], 0), (["topic", "schema", "evolve", "t"], 0)],
)
def test_a_lost_confirmation_is_success_and_a_lost_result_is_not(
    words: list[str], code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert output_lost(words, OutputLostError(OSError(28, "No space left on device")), has_run=True) == code
    assert "No space left on device" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--help", "--version"])
@pytest.mark.parametrize("command", sorted(CONFIRMS))
def test_lost_help_is_not_called_success(command: str, option: str, capsys: pytest.CaptureFixture[str]) -> None:
    with full_output():
        assert main([*command.split(), option]) == 1
    told = capsys.readouterr().err
    assert "succeeded" not in told
    assert "standard output could not be written" in told


def test_confirmation_lost_at_the_end_of_the_command_is_success(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TIDELOG_CONTEXTS", str(tmp_path / "contexts.toml"))
    with full_output():
        assert main(["context", "add", "here", "--bootstrap", "127.0.0.1:1"]) == 0
    assert "context add succeeded, do not repeat it" in capsys.readouterr().err
