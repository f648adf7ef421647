from __future__ import annotations

from importlib.metadata import EntryPoint

import pytest
import typer
from typer.testing import CliRunner

from tidelog_cli import plugins
from tidelog_cli.base.failures import CommandFailed


def app_with(*entries: EntryPoint) -> typer.Typer:
    app = typer.Typer()
    app.callback()(lambda: None)
    plugins.register_plugins(app, entries)
    return app


def register_greeting(app: typer.Typer) -> None:
    app.command("greet")(lambda: typer.echo("hello"))


def test_an_installed_part_adds_its_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = EntryPoint("greeting", "ignored", plugins.GROUP)
    monkeypatch.setattr(EntryPoint, "load", lambda _: register_greeting)
    assert CliRunner().invoke(app_with(entry), ["greet"]).output == "hello\n"


@pytest.mark.parametrize(
    ("name", "command", "advice"),
    [
        ("node", "node", r"pip install 'tidelog\[broker\]'"),
        ("node", "log", r"pip install 'tidelog\[broker\]'"),
        ("gateway", "gateway", r"pip install 'tidelog\[gateway\]'"),
        ("bench", "bench", r"pip install 'tidelog\[loadtest,broker\]'"),
        ("strange", "strange", "reinstall or remove it"),
    ],
)
def test_a_part_that_is_not_installed_says_what_to_install(name: str, command: str, advice: str) -> None:
    app = app_with(EntryPoint(name, "tidelog_is_not_here.commands:register", plugins.GROUP))
    with pytest.raises(CommandFailed, match=advice):
        app([command, "--any", "option"], standalone_mode=False)


def test_broken_part_is_not_reported_as_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    def explode(_: EntryPoint) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(EntryPoint, "load", explode)
    with pytest.raises(RuntimeError, match="a bug"):
        app_with(EntryPoint("node", "x:y", plugins.GROUP))


def test_our_own_entries_are_the_ones_with_stubs() -> None:
    ours = {entry.name for entry in plugins.installed_entries() if entry.value.startswith("tidelog_")}
    assert ours == set(plugins.PARTS)


def test_our_own_entries_have_the_commands_that_the_table_says() -> None:
    for entry in plugins.installed_entries():
        app = app_with(entry)
        group = typer.main.get_command(app)
        assert set(getattr(group, "commands", {})) == {name for name, _ in plugins.PARTS[entry.name].commands}
