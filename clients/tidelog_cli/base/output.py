"""Output of commands: tables for people, JSON for programs.

Results go to stdout, and everything else (progress, notes, errors) to stderr, so that pipes only contain results.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Annotated, Final

import typer

from tidelog_proto.process.standard_streams import is_unicode

BootstrapOption = Annotated[
    str,
    typer.Option(
        "--bootstrap",
        envvar="TIDELOG_BOOTSTRAP",
        help="A node's address, or several separated by commas.",
        show_default="those of the context, or 127.0.0.1:7400",
    ),
]
"""Address option of all commands."""

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]

DEFAULT_BOOTSTRAP: Final = ""
"""Value of the option if no address is given: see `session.with_client`."""

LOCAL_BOOTSTRAP: Final = "127.0.0.1:7400"
"""Default address of a node on this machine."""

ABSENT: Final = "\u2013"
"""Shown in tables for unknown or unset values."""

PIPE_COLUMNS: Final = 1000
"""Width in characters of tables that are written to a pipe, so that rows are not wrapped."""

_BINARY_UNITS: Final = (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10))


def print_json(document: object) -> None:
    """Write `document` to stdout as indented JSON."""
    sys.stdout.write(json.dumps(document, indent=2, ensure_ascii=not is_unicode(sys.stdout)) + "\n")
    sys.stdout.flush()


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, title: str | None = None) -> None:
    """Write a table to stdout; columns of ints are right-aligned with thousands separators."""
    from rich.box import SIMPLE_HEAD  # noqa: PLC0415 - rich takes 0.05 s of processor time of every command
    from rich.console import Console  # noqa: PLC0415 - as above
    from rich.markup import escape  # noqa: PLC0415 - as above
    from rich.table import Table  # noqa: PLC0415 - as above

    console = Console()
    if not console.is_terminal:
        console = Console(width=PIPE_COLUMNS)
    table = Table(
        title=title, title_justify="left", title_style="", header_style="bold", box=SIMPLE_HEAD, pad_edge=False
    )
    all_rows = [list(row) for row in rows]
    for at, column in enumerate(columns):
        numeric = bool(all_rows) and all(isinstance(row[at], int) for row in all_rows)
        table.add_column(column, justify="right" if numeric else "left", overflow="fold")
    for row in all_rows:
        # Escaped, because text of users (names, notes) may contain markup.
        table.add_row(*(f"{cell:,}" if isinstance(cell, int) else escape(str(cell)) for cell in row))
    console.print(table)


def note(line: str) -> None:
    """Write a line to stderr; errors of stderr are ignored."""
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write(line + "\n")
        sys.stderr.flush()


def is_confirmed(question: str) -> bool:
    """Ask a question on stderr and return whether the next line of stdin is `y` or `yes`."""
    sys.stderr.write(f"{question} [y/N]: ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in {"y", "yes"}


def line_of(text: str, chars_max: int) -> str:
    """Return untrusted text as one printable line of at most `chars_max` characters; `…` marks a cut."""
    line = "".join(each if each.isprintable() else repr(each)[1:-1] for each in text[: chars_max + 1])
    return line if len(line) <= chars_max else line[: chars_max - 1] + "…"


def bytes_text(size_bytes: int) -> str:
    """Return a size with a unit: `1.5 MiB`."""
    for unit, unit_bytes in _BINARY_UNITS:
        if size_bytes >= unit_bytes:
            return f"{size_bytes / unit_bytes:.1f} {unit}"
    return f"{size_bytes} B"


def time_text(timestamp_us: int) -> str:
    """Return a timestamp in microseconds since 1970 as ISO 8601 in UTC, in whole milliseconds."""
    seconds, microseconds = divmod(timestamp_us, 1_000_000)
    moment = datetime.fromtimestamp(seconds, tz=UTC).replace(microsecond=microseconds)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
