"""What commands print: tables for people, JSON for programs.

Results go to stdout and everything else (progress, notes, errors) to stderr, so that a pipe carries results alone.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Annotated, Final

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tidelog_proto.process.standard_streams import is_unicode

BootstrapOption = Annotated[
    str,
    typer.Option(
        "--bootstrap",
        envvar="TIDELOG_BOOTSTRAP",
        help="A node's address; several with commas.",
        show_default="those of the context, or 127.0.0.1:7400",
    ),
]
"""Where to connect, the same on every command."""

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]

DEFAULT_BOOTSTRAP: Final = ""
"""No address was given: see `session.with_client`."""

LOCAL_BOOTSTRAP: Final = "127.0.0.1:7400"
"""Where a node of this machine listens unless told otherwise."""

ABSENT: Final = "\u2013"
"""Stands in a table where nothing is known."""

PIPE_COLUMNS: Final = 1000
"""A pipe has no width: rows are not wrapped there."""

_BINARY_UNITS: Final = (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10))


def print_json(document: object) -> None:
    """Write `document` to stdout as indented JSON."""
    sys.stdout.write(json.dumps(document, indent=2, ensure_ascii=not is_unicode(sys.stdout)) + "\n")
    sys.stdout.flush()


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, title: str | None = None) -> None:
    """Write a table to stdout; a column of ints is set right, with thousands separators."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=PIPE_COLUMNS)
    table = Table(
        title=title, title_justify="left", title_style="", header_style="bold", box=SIMPLE_HEAD, pad_edge=False
    )
    listed = [list(row) for row in rows]
    for at, column in enumerate(columns):
        numeric = bool(listed) and all(isinstance(row[at], int) for row in listed)
        table.add_column(column, justify="right" if numeric else "left", overflow="fold")
    for row in listed:
        # Escaped: what users have written (names, notes) is no markup, and must not be read as such.
        table.add_row(*(f"{cell:,}" if isinstance(cell, int) else escape(str(cell)) for cell in row))
    console.print(table)


def note(line: str) -> None:
    """Write a line for a person to stderr; a stderr that takes nothing ends no command."""
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write(line + "\n")
        sys.stderr.flush()


def line_of(text: str, chars_max: int) -> str:
    """Return a text of somebody else's as one printable line of so many characters: `…` stands for the rest."""
    line = "".join(each if each.isprintable() else repr(each)[1:-1] for each in text[: chars_max + 1])
    return line if len(line) <= chars_max else line[: chars_max - 1] + "…"


def bytes_text(size_bytes: int) -> str:
    """Return a size as people read it: `1.5 MiB`."""
    for unit, unit_bytes in _BINARY_UNITS:
        if size_bytes >= unit_bytes:
            return f"{size_bytes / unit_bytes:.1f} {unit}"
    return f"{size_bytes} B"


def time_text(timestamp_us: int) -> str:
    """Return a timestamp in microseconds since 1970 as ISO 8601 in UTC, in whole milliseconds."""
    seconds, microseconds = divmod(timestamp_us, 1_000_000)
    moment = datetime.fromtimestamp(seconds, tz=UTC).replace(microsecond=microseconds)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
