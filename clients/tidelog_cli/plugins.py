"""Sub-commands of installed parts, found through the entry-point group `tidelog.commands`.

Each entry is a `register(app: typer.Typer) -> None`. For a part whose extra is not installed, stubs report how to
install it, so that on a machine with only the client, `tidelog node` is not reported as an unknown command. Rejected:
importing the parts here (an import cycle) and loading them for every command (each would import FastAPI).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Final

import typer

from tidelog_cli.base.extras import missing_from
from tidelog_cli.base.failures import CommandFailed

GROUP: Final = "tidelog.commands"


@dataclass(frozen=True, slots=True)
class Part:
    """An entry point of this package: the extras it needs, and its commands with their help lines."""

    extras: tuple[str, ...]
    commands: tuple[tuple[str, str], ...]


PARTS: Final = {
    "node": Part(("broker",), (("node", "Run a node."), ("log", "Inspect and verify segment files."))),
    "gateway": Part(("gateway",), (("gateway", "Run the HTTP and WebSocket gateway."),)),
    "bench": Part(("loadtest", "broker"), (("bench", "Measure throughput and latency."),)),
}


def installed_entries() -> list[EntryPoint]:
    """Return the entries of all installed distributions, sorted by name."""
    return sorted(entry_points(group=GROUP), key=lambda entry: entry.name)


def has_command(command: str | None) -> bool:
    """Return whether one of `PARTS` has the command."""
    return any(command in dict(part.commands) for part in PARTS.values())


def entries_with(command: str | None) -> list[EntryPoint]:
    """Return the installed entry point whose part (see `PARTS`) has the command; all entry points if no part has it."""
    entries = installed_entries()
    having = {name for name, part in PARTS.items() if command in dict(part.commands)}
    return [entry for entry in entries if entry.name in having] or entries


def register_plugins(app: typer.Typer, entries: Iterable[EntryPoint]) -> None:
    """Add the commands of each plug-in to `app`.

    A plug-in that cannot be imported, or that lacks packages, gets commands that only report what is missing.

    Args:
        app: the command line `tidelog`.
        entries: the plug-ins' entry points, see `installed_entries`.
    """
    for entry in entries:
        part = PARTS.get(entry.name)
        missing = "" if part is None else missing_from(*part.extras)
        if part is not None and missing:
            _register_missing(app, part, missing)
            continue
        try:
            register = entry.load()
        except ImportError as error:
            _register_stubs(app, entry, error)
        else:
            register(app)


def _register_stubs(app: typer.Typer, entry: EntryPoint, error: ImportError) -> None:
    part = PARTS.get(entry.name)
    if part is not None:
        extras = ",".join(part.extras)
        _register_missing(app, part, f"not installed here ({error}); run: pip install 'tidelog[{extras}]'")
        return
    advice = f"the plug-in {entry.value} cannot be imported ({error}); reinstall or remove it"
    _register_stub(app, entry.name, "Not available.", advice)


def _register_missing(app: typer.Typer, part: Part, missing: str) -> None:
    for name, help_line in part.commands:
        _register_stub(app, name, help_line, f"`tidelog {name}` is {missing}")


def _register_stub(app: typer.Typer, name: str, help_line: str, message: str) -> None:
    def stub() -> None:
        raise CommandFailed(message)

    # The stub accepts the options of the real command.
    app.command(
        name,
        help=f"{help_line} (Not installed.)",
        add_help_option=False,
        context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    )(stub)
