"""Output of query results: a table for people, JSON or CSV for programs, row by row in bounded memory."""

from __future__ import annotations

import base64
import itertools
import json
import math
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tidelog_cli.base.failures import CommandFailed
from tidelog_cli.base.output import ABSENT, PIPE_COLUMNS
from tidelog_proto.printable import printable
from tidelog_proto.process.standard_streams import is_unicode

if TYPE_CHECKING:
    import pyarrow as pa

_QUOTED_IN_CSV: Final = frozenset(',"\r\n')
_PLAN: Final = ["explain_key", "explain_value"]
TABLE_ROWS: Final = 1000
"""Default number of rows in a table, which is held in memory."""
CELL_CHARS: Final = 200
"""Maximum number of characters of a cell in a table."""


class StatementError(CommandFailed):
    """An engine's error in a statement.

    Attributes:
        excerpt: the statement's line with a marker below the position; empty if the position is unknown.
    """

    def __init__(self, message: str, excerpt: str = "") -> None:
        super().__init__(message)
        self.excerpt = excerpt


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of a statement.

    Attributes:
        names: names of the columns.
        rows: the rows.
        batches: the rows as Arrow columns, in place of `rows`; None if the engine has none.
    """

    names: Sequence[str]
    rows: Iterator[tuple[Any, ...]]
    batches: Iterator[pa.RecordBatch] | None = None


def is_plan(answer: Answer) -> bool:
    """Return whether the rows are the plan of a statement, as EXPLAIN has it."""
    return list(answer.names) == _PLAN


def print_plan(answer: Answer) -> None:
    """Write the plan of a statement, which is text with line breaks."""
    for row in answer.rows:
        sys.stdout.writelines(f"{printable(line)}\n" for line in str(row[-1]).splitlines())
    sys.stdout.flush()


def as_table(answer: Answer, limit: int) -> tuple[Table, bool]:
    """Return the first rows as a table, and whether there are more."""
    rows = list(itertools.islice(answer.rows, limit + 1))
    table = Table(header_style="bold", box=SIMPLE_HEAD, pad_edge=False)
    for at, name in enumerate(answer.names):
        numeric = any(_is_number(row[at]) for row in rows)
        table.add_column(Text(printable(name)), justify="right" if numeric else "left", overflow="fold")
    for row in rows[:limit]:
        table.add_row(*(Text(cell_of(value)) for value in row))
    return table, len(rows) > limit


def print_table_of(table: Table) -> None:
    """Write a table to stdout, without wrapping if it is a pipe."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(width=PIPE_COLUMNS, highlight=False)
    console.print(table)


def print_json_lines(answer: Answer, limit: int | None) -> None:
    """Write one JSON object per row."""
    names = distinct(answer.names)
    for row in itertools.islice(answer.rows, limit):
        document = dict(zip(names, map(plain, row), strict=True))
        line = json_of(document)
        sys.stdout.write((line if is_unicode(sys.stdout) else ascii_json(line)) + "\n")
    sys.stdout.flush()


def print_csv(answer: Answer, limit: int | None, *, is_more: bool = False) -> None:
    """Write the column names and one line per row (RFC 4180); nested values are JSON.

    Null is an empty cell, and empty text is `""`, as in CSV that `tidelog produce` reads.

    Args:
        limit: maximum number of rows; None: all.
        is_more: whether the rows continue an earlier output, so that the column names are left out.
    """
    names = [] if is_more else [tuple(answer.names)]
    for row in itertools.chain(names, itertools.islice(answer.rows, limit)):
        line = ",".join(_csv_cell(plain(value)) for value in row) + "\n"
        if is_unicode(sys.stdout):
            sys.stdout.write(line)
        else:  # As UTF-8 in spite of the stream's encoding, because CSV has no escapes for other characters.
            sys.stdout.buffer.write(line.encode())
    sys.stdout.flush()


def distinct(names: Sequence[str]) -> list[str]:
    """Return the names with numbers appended to repeated ones, because keys of a JSON object are unique."""
    unique: list[str] = []
    for name in names:
        number, one = 1, name
        while one in unique:
            number += 1
            one = f"{name}_{number}"
        unique.append(one)
    return unique


def plain(value: Any) -> Any:
    """Return a value as JSON types: times in ISO 8601, bytes as text, or as base64 if they are not UTF-8.

    Decimals are kept; `json_of` writes their digits.
    """
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else "NaN" if math.isnan(value) else str(value).replace("inf", "Infinity")
    if isinstance(value, (datetime, date, time)):
        return value.isoformat().replace("+00:00", "Z")
    if isinstance(value, (bytes, bytearray, memoryview)):
        return _text_of(bytes(value))
    if isinstance(value, Decimal):
        return value if value.is_finite() else str(value)
    if isinstance(value, dict):
        return {str(plain(key)): plain(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(part) for part in value]
    return str(value)


def json_of(value: Any) -> str:
    """Return the result of `plain` as JSON text; decimals keep all digits."""
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except TypeError:  # `json.dumps` cannot encode a Decimal
        return _json_of_decimals(value)


def ascii_json(text: str) -> str:
    """Return JSON text with all characters outside ASCII escaped; these only occur inside strings."""
    return re.sub(r"[^\x00-\x7f]+", lambda match: json.dumps(match.group())[1:-1], text)


def _json_of_decimals(value: Any) -> str:
    if isinstance(value, Decimal):
        return f"{value:f}"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{json_of(name)}: {_json_of_decimals(part)}' for name, part in value.items())}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(_json_of_decimals, value))}]"
    return json_of(value)


def cell_of(value: Any) -> str:
    """Return a value for a table cell: one line without terminal control characters."""
    if value is None:
        return ABSENT
    value = plain(value)
    text = value if isinstance(value, str) else json_of(value)
    return printable(text if len(text) <= CELL_CHARS else text[:CELL_CHARS] + "…")


def _csv_cell(value: Any) -> str:
    """Return a cell; the module `csv` of Python 3.11 writes null and empty text alike."""
    if value is None:
        return ""
    cell = json_of(value) if isinstance(value, (dict, list, bool, Decimal)) else str(value)
    return cell if cell and not {*cell} & _QUOTED_IN_CSV else '"' + cell.replace('"', '""') + '"'


def _text_of(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return base64.b64encode(value).decode()


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float, Decimal)) and not isinstance(value, bool)
