"""`tidelog sql`: a statement about topics, answered once, or anew whenever records came."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from enum import StrEnum
from functools import partial
from typing import Annotated, Final, Protocol

import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from tidelog_cli.base.failures import EXIT_USAGE, CommandFailed
from tidelog_cli.base.output import DEFAULT_BOOTSTRAP, BootstrapOption, note
from tidelog_cli.base.session import place_of
from tidelog_cli.records.consume import parse_start
from tidelog_cli.sql.answers import (
    TABLE_ROWS,
    Answer,
    StatementError,
    as_table,
    print_csv,
    print_json_lines,
    print_table_of,
)
from tidelog_cli.sql.columns import ValueKind
from tidelog_cli.sql.tables import Provide
from tidelog_cli.sql.topics import Topics

_SPACE: Final = r"(?:\s|--[^\n]*(?:\n|\Z)|/\*.*?\*/)*"
_SHOW_TABLES: Final = re.compile(rf"{_SPACE}show\s{_SPACE}tables{_SPACE};?{_SPACE}", re.IGNORECASE | re.DOTALL)
NOTHING_TO_FOLLOW: Final = "this names no topic: there is nothing to follow"


class EngineChoice(StrEnum):
    """Who answers."""

    DUCKDB = "duckdb"
    SPARK = "spark"


class Engine(Protocol):
    """Answers statements about topics."""

    def answer(self, statement: str, provide: Provide, on_read: Callable[[int], None]) -> Answer:
        """Return the answer; its rows come as they are taken."""
        ...

    def is_by_record(self, statement: str) -> bool:
        """Whether each row of the answer comes of one record alone, so that new records alone make the new rows."""
        ...

    def close(self) -> None:
        """Give back what it holds."""


def register(app: typer.Typer) -> None:
    """Add `sql` to the command."""
    app.command("sql")(sql)


def sql(
    statement: Annotated[str, typer.Argument(metavar="STATEMENT", help="Topics are its tables.", show_default=False)],
    *,
    engine: Annotated[EngineChoice, typer.Option(help="Who answers.")] = EngineChoice.DUCKDB,
    values: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[TOPIC=]KIND",
            help="What values are: json (each field a column), text or bytes; found out unless told.",
            show_default=False,
        ),
    ] = None,
    sample: Annotated[int, typer.Option(min=1, max=1_000_000, help="Records to find out by, of each topic.")] = 1000,
    since: Annotated[
        str, typer.Option(metavar="WHERE", help="Only records from there on: earliest, a time, or how long ago (7d).")
    ] = "earliest",
    limit: Annotated[
        int | None, typer.Option(min=1, help="Rows of the answer to print.", show_default=f"{TABLE_ROWS} in a table")
    ] = None,
    follow: Annotated[
        bool,
        typer.Option(
            "--follow", "-f", help="Answer anew whenever records came: by what is new alone, where that does."
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a row instead of a table.")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="CSV instead of a table.")] = False,
    memory_mb: Annotated[
        int, typer.Option(min=64, help="What the engine may hold, in MB; DuckDB puts more on disk.")
    ] = 1024,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
) -> None:
    """Ask an embedded engine about topics: SELECT carrier, avg(delay) FROM flights GROUP BY 1.

    A topic is a table with the columns partition, offset, timestamp, key, value, headers and tag, and where values are
    JSON objects one for each field. A name with dots or dashes is quoted: FROM "orders.eu". What is read ends where the
    topics ended when the command began. SHOW TABLES lists the topics.
    """
    if as_json and as_csv:
        raise CommandFailed("--json and --csv exclude each other", EXIT_USAGE)
    begin = parse_start(since, "--since")
    if isinstance(begin, int):
        raise CommandFailed("--since is a time: an offset would be another record in each partition", EXIT_USAGE)
    quote = '"' if engine is EngineChoice.DUCKDB else "`"
    topics = Topics(bootstrap, begin, kinds_of(values or []), sample, quote)
    shown: Callable[[Answer], None] = partial(_show_table, limit=limit or TABLE_ROWS)
    more: Callable[[Answer], None] = partial(_show_table, limit=limit or TABLE_ROWS, is_more=True)
    if as_csv:
        shown, more = partial(print_csv, limit=limit), partial(print_csv, limit=limit, is_more=True)
    elif as_json:
        shown = more = partial(print_json_lines, limit=limit)
    if _SHOW_TABLES.fullmatch(statement):  # an engine knows those alone that it was given
        if follow:
            raise CommandFailed(NOTHING_TO_FOLLOW, EXIT_USAGE)
        shown(Answer(["name"], ((name,) for name in topics.names())))
        return
    asked = _engine(engine, memory_mb, bootstrap)
    try:
        if follow:
            _follow(asked, statement, topics, shown, more)
        else:
            _answer(asked, statement, topics, shown)
    except StatementError as failed:
        if failed.excerpt:
            note(failed.excerpt)
        raise
    finally:
        asked.close()


def _answer(asked: Engine, statement: str, topics: Topics, shown: Callable[[Answer], None]) -> list[str]:
    """Answer once, and return the names of the columns."""
    try:
        with _progress() as progress:
            task = progress.add_task("reading", total=None)
            answer = asked.answer(statement, topics.provide, partial(progress.advance, task))
            shown(answer)
    except CommandFailed:
        if topics.empty:
            note(f"{', '.join(sorted(topics.empty))}: no records yet to find columns by")
        raise
    return list(answer.names)


def _follow(
    asked: Engine,
    statement: str,
    topics: Topics,
    shown: Callable[[Answer], None],
    more: Callable[[Answer], None],
) -> None:
    """Answer again whenever a topic has more records, for ever; `more` shows rows that follow those of an answer."""
    only_new = asked.is_by_record(statement)
    names: list[str] = []

    def show(answer: Answer) -> None:
        (more if only_new and list(answer.names) == names else shown)(answer)

    while True:
        try:
            names = _answer(asked, statement, topics, show)
        except CommandFailed:
            if not topics.empty:  # a field that no record has yet is no column
                raise
            topics.wait_for_more()
            continue
        if not topics.used:
            raise CommandFailed(NOTHING_TO_FOLLOW, EXIT_USAGE)
        topics.wait_for_more(only_new=only_new)


def _engine(choice: EngineChoice, memory_mb: int, bootstrap: str) -> Engine:
    # Imported when they are asked: other commands do not pay for what an engine needs.
    if choice is EngineChoice.DUCKDB:
        from tidelog_cli.sql.duckdb_engine import DuckDbEngine  # noqa: PLC0415

        return DuckDbEngine(memory_mb)
    from tidelog_cli.sql.spark_engine import SparkEngine  # noqa: PLC0415

    return SparkEngine(memory_mb, place_of(bootstrap))


def _show_table(answer: Answer, limit: int, *, is_more: bool = False) -> None:
    table, more = as_table(answer, limit)
    if is_more and not table.row_count:
        return
    print_table_of(table)
    if more:
        note(f"These are the first {limit:,} rows: --limit shows more of them, --json and --csv show all.")


def _progress() -> Progress:
    """Return a line on stderr that says how many records were read; silent where one of both is no terminal."""
    console = Console(stderr=True)
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TextColumn("{task.completed:,.0f} records"))
    return Progress(*columns, TimeElapsedColumn(), console=console, transient=True, disable=not console.is_terminal)


def kinds_of(values: Sequence[str]) -> dict[str | None, ValueKind]:
    """Return what `--values` says: the kind by topic, and under None that of all others.

    Raises:
        CommandFailed: it is no kind.
    """
    found: dict[str | None, ValueKind] = {}
    for text in values:
        topic, _, kind = text.rpartition("=")
        if kind not in set(ValueKind):
            raise CommandFailed(f"--values {text!r}: give json, text or bytes, or TOPIC=json", EXIT_USAGE)
        found[topic or None] = ValueKind(kind)
    return found
