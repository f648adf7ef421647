"""`tidelog sql`: run a statement about topics once, or again whenever there are new records."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Annotated, Final, Protocol

import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from tidelog_cli.base.failures import EXIT_USAGE, CommandFailed
from tidelog_cli.base.output import DEFAULT_BOOTSTRAP, BootstrapOption, note
from tidelog_cli.base.session import place_of
from tidelog_cli.base.start_points import parse_since
from tidelog_cli.sql.answers import (
    TABLE_ROWS,
    Answer,
    StatementError,
    as_table,
    is_plan,
    print_csv,
    print_json_lines,
    print_plan,
    print_table_of,
)
from tidelog_cli.sql.columns import ValueKind
from tidelog_cli.sql.null_reports import NullRecord, counted
from tidelog_cli.sql.tables import Provide
from tidelog_cli.sql.topics import Topics

_SPACE: Final = r"(?:\s|--[^\n]*(?:\n|\Z)|/\*.*?\*/)*"
_SHOW_TABLES: Final = re.compile(rf"{_SPACE}show\s{_SPACE}tables{_SPACE};?{_SPACE}", re.IGNORECASE | re.DOTALL)
NOTHING_TO_FOLLOW: Final = "--follow requires a statement that reads a topic"


class EngineChoice(StrEnum):
    """SQL engine."""

    DUCKDB = "duckdb"
    SPARK = "spark"


class BadRecords(StrEnum):
    """Result of a number of a JSON value that its column does not hold exactly."""

    ERROR = "error"
    NULL = "null"


class Engine(Protocol):
    """A SQL engine that answers the statements of `tidelog sql`."""

    def answer(self, statement: str, provide: Provide, on_read: Callable[[int], None]) -> Answer:
        """Return the result; its rows are computed as they are read."""
        ...

    def is_by_record(self, statement: str) -> bool:
        """Return whether each result row depends on a single record, so that new rows only need new records."""
        ...

    def notes(self) -> list[str]:
        """Return notes for the user about the last answer, once its rows have been read."""
        ...

    def null_records(self) -> list[NullRecord]:
        """Return the records of JSON that were null in a column of the last answer, once its rows have been read."""
        ...

    def close(self) -> None:
        """End the engine, with its connections and temporary files."""


ValuesOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="[TOPIC=]KIND",
        help="Kind of values: json (a column per field), text or bytes; detected by default.",
        show_default=False,
    ),
]
SqlSampleOption = Annotated[
    int,
    typer.Option(min=1, max=1_000_000, help="Number of records of each topic that are sampled to detect columns."),
]
SqlSinceOption = Annotated[
    str,
    typer.Option(
        metavar="WHERE",
        help="Start at the first record that is not older: earliest, a time, or an age (30m, 12h, 7d).",
    ),
]
SqlLimitOption = Annotated[
    int | None,
    typer.Option(min=1, help="Maximum number of rows to print.", show_default=f"{TABLE_ROWS} in a table"),
]
SqlFollowOption = Annotated[
    bool,
    typer.Option(
        "--follow",
        "-f",
        help="Run the statement again whenever there are new records; if possible, on the new ones only.",
    ),
]
IntoOption = Annotated[
    str | None,
    typer.Option(
        metavar="TOPIC",
        help="Publish the rows to a topic instead of printing them: as rows if it is typed, otherwise as JSON.",
    ),
]
KeyFieldOption = Annotated[
    str | None, typer.Option(metavar="COLUMN", help="With --into: column for the keys of JSON records.")
]
BadRecordsOption = Annotated[
    BadRecords,
    typer.Option(
        help="For JSON: whether a number that its column does not hold exactly ends the statement, or is null and "
        "counted, as other values that do not fit."
    ),
]
DeadLettersOption = Annotated[
    str | None,
    typer.Option(
        metavar="TOPIC",
        help="Publish records whose JSON does not fit their columns to a topic; implies --bad-records null.",
    ),
]
MemoryMbOption = Annotated[int, typer.Option(min=64, help="Memory limit of the engine in MB; DuckDB spills to disk.")]


def register(app: typer.Typer) -> None:
    """Add `sql` to the command."""
    app.command("sql")(sql)


def sql(
    statement: Annotated[
        str, typer.Argument(metavar="STATEMENT", help="SQL statement; its tables are topics.", show_default=False)
    ],
    *,
    engine: Annotated[EngineChoice, typer.Option(help="SQL engine.")] = EngineChoice.DUCKDB,
    values: ValuesOption = None,
    sample: SqlSampleOption = 1000,
    since: SqlSinceOption = "earliest",
    limit: SqlLimitOption = None,
    follow: SqlFollowOption = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per row instead of a table.")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="CSV instead of a table.")] = False,
    into: IntoOption = None,
    key_field: KeyFieldOption = None,
    bad_records: BadRecordsOption = BadRecords.ERROR,
    dead_letters: DeadLettersOption = None,
    memory_mb: MemoryMbOption = 1024,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
) -> None:
    """Query topics with an embedded SQL engine: SELECT carrier, avg(delay) FROM flights GROUP BY 1.

    A typed topic is a table with its fields, and the columns _partition, _offset, _timestamp, _key, _headers and _tag.
    Another topic has the columns partition, offset, timestamp, key, value, headers and tag, and a column for each
    field if values are JSON objects. Quote names with dots or dashes: FROM "orders.eu". Records are read up to the ends
    of the topics at the start of the command. SHOW TABLES lists the topics.
    """
    if as_json and as_csv:
        raise CommandFailed("--json and --csv are mutually exclusive; give one of them", EXIT_USAGE)
    if key_field is not None and into is None:
        raise CommandFailed("--key-field requires --into TOPIC; add it, or omit --key-field", EXIT_USAGE)
    if into is not None and (as_csv or limit is not None):
        raise CommandFailed(
            "--into publishes all rows: omit --csv and --limit, or use LIMIT in the statement", EXIT_USAGE
        )
    is_lenient = dead_letters is not None or bad_records is BadRecords.NULL
    if is_lenient and engine is EngineChoice.SPARK:
        raise CommandFailed("--bad-records null and --dead-letters require --engine duckdb; use it", EXIT_USAGE)
    begin = parse_since(since)
    quote = '"' if engine is EngineChoice.DUCKDB else "`"
    topics = Topics(bootstrap, begin, kinds_of(values or []), sample, quote)
    show: Callable[[Answer], None] = partial(_show_table, limit=limit or TABLE_ROWS)
    more: Callable[[Answer], None] = partial(_show_table, limit=limit or TABLE_ROWS, is_more=True)
    if as_csv:
        show, more = partial(print_csv, limit=limit), partial(print_csv, limit=limit, is_more=True)
    elif as_json:
        show = more = partial(print_json_lines, limit=limit)
    if into is not None:
        show = more = partial(_publish, into, key_field, bootstrap=bootstrap, as_json=as_json)
    # Not answered by the engine, which would list only the topics of earlier statements.
    if _SHOW_TABLES.fullmatch(statement):
        if follow:
            raise CommandFailed(NOTHING_TO_FOLLOW, EXIT_USAGE)
        show(Answer(["name"], ((name,) for name in topics.names())))
        return
    done: Callable[[Engine], None] = partial(_publish_dead_letters, dead_letters, topics, bootstrap)
    sql_engine = _engine(engine, memory_mb, bootstrap, raises=not is_lenient)
    try:
        if follow:
            _follow(sql_engine, statement, topics, Output(show, more, done, into, dead_letters))
        else:
            _answer(sql_engine, statement, topics, show, done, hidden=into is not None)
    except StatementError as failed:
        if failed.excerpt:
            note(failed.excerpt)
        raise
    finally:
        sql_engine.close()


def _answer(
    engine: Engine,
    statement: str,
    topics: Topics,
    show: Callable[[Answer], None],
    done: Callable[[Engine], None],
    *,
    hidden: bool = False,
) -> list[str]:
    """Run the statement once, pass its result to `show`, print the engine's notes, and return the column names.

    Args:
        done: called after the result was shown.
        hidden: whether no progress is shown, because `show` shows its own.
    """
    try:
        with _progress(hidden=hidden) as progress:
            task = progress.add_task("reading", total=None)
            answer = engine.answer(statement, topics.provide, partial(progress.advance, task))
            show(answer)
        for line in engine.notes():
            note(line)
        done(engine)
    except CommandFailed as failed:
        if topics.empty:
            note(f"{', '.join(sorted(topics.empty))}: no records yet from which to detect columns")
        if isinstance(failed, StatementError) and topics.mixed:
            raise StatementError("; ".join([str(failed), *topics.mixed.values()]), failed.excerpt) from failed
        raise
    return list(answer.names)


@dataclass(frozen=True, slots=True)
class Output:
    """Where followed answers go.

    Attributes:
        show: shows an answer.
        more: shows rows that continue the last answer.
        done: called after an answer was shown.
        into: the topic to which rows are published; None: they are printed.
        dead_letters: the topic for records of JSON that do not fit; None: no topic.
    """

    show: Callable[[Answer], None]
    more: Callable[[Answer], None]
    done: Callable[[Engine], None]
    into: str | None
    dead_letters: str | None


def _follow(engine: Engine, statement: str, topics: Topics, output: Output) -> None:
    """Run the statement whenever a topic has new records."""
    only_new = engine.is_by_record(statement)
    into = output.into
    published = {"--into": into, "--dead-letters": output.dead_letters}
    for option, topic in published.items():
        if topic is not None and not only_new:
            raise CommandFailed(
                f"--follow with {option} requires a statement that only filters and maps the records of one topic: "
                "others are run on all records each time, and would publish all again; run the statement without "
                "--follow",
                EXIT_USAGE,
            )
    names: list[str] = []

    def show(answer: Answer) -> None:
        for option, topic in published.items():
            if topic in topics.used:
                raise CommandFailed(
                    f"--follow {option} {topic} would read the records that it publishes; give another topic",
                    EXIT_USAGE,
                )
        (output.more if only_new and list(answer.names) == names else output.show)(answer)

    while True:
        try:
            names = _answer(engine, statement, topics, show, output.done, hidden=into is not None)
        except CommandFailed:
            if not topics.empty:
                raise
            # An empty topic has no columns yet: the missing one may be a field of records that are published later.
            topics.wait_for_more()
            continue
        if not topics.used:
            raise CommandFailed(NOTHING_TO_FOLLOW, EXIT_USAGE)
        topics.wait_for_more(only_new=only_new)


def _publish_dead_letters(target: str | None, topics: Topics, bootstrap: str, engine: Engine) -> None:
    """Publish records that were null in a column to the topic `target`; None: nothing."""
    if target is None or not (records := engine.null_records()):
        return
    from tidelog_cli.sql.dead_letter_records import publish_dead_letters  # noqa: PLC0415 - few statements need it

    publish_dead_letters(target, records, {name: one.topic_id for name, one in topics.used.items()}, bootstrap)
    note(f"published {counted(len(records))} to {target}, because columns cannot represent their values")


def _engine(choice: EngineChoice, memory_mb: int, bootstrap: str, *, raises: bool) -> Engine:
    # Imported on use, because other commands do not need the engines' dependencies.
    if choice is EngineChoice.DUCKDB:
        from tidelog_cli.sql.duckdb_engine import DuckDbEngine  # noqa: PLC0415

        return DuckDbEngine(memory_mb, raises=raises)
    from tidelog_cli.sql.spark_engine import SparkEngine  # noqa: PLC0415

    return SparkEngine(memory_mb, place_of(bootstrap))


def _publish(into: str, key_field: str | None, answer: Answer, *, bootstrap: str, as_json: bool) -> None:
    from tidelog_cli.sql.into_topic import IntoTopic  # noqa: PLC0415 - most statements publish nothing

    target = IntoTopic(into, bootstrap, key_field)
    target.publish(answer).tell(target.topic, "published {} to {}", as_json=as_json)


def _show_table(answer: Answer, limit: int, *, is_more: bool = False) -> None:
    if is_plan(answer):
        print_plan(answer)
        return
    table, more = as_table(answer, limit)
    if is_more and not table.row_count:
        return
    print_table_of(table)
    if more:
        note(f"Showing the first {limit:,} rows; use --limit for more, --json or --csv for all.")


def _progress(*, hidden: bool) -> Progress:
    """Return a progress line on stderr with the number of records read; also hidden if stderr is not a terminal."""
    console = Console(stderr=True)
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TextColumn("{task.completed:,.0f} records"))
    return Progress(
        *columns, TimeElapsedColumn(), console=console, transient=True, disable=hidden or not console.is_terminal
    )


def kinds_of(values: Sequence[str]) -> dict[str | None, ValueKind]:
    """Parse `--values`: kinds by topic; the key None is for all other topics.

    Raises:
        CommandFailed: a value is invalid.
    """
    kinds: dict[str | None, ValueKind] = {}
    for text in values:
        topic, _, kind = text.rpartition("=")
        if kind not in set(ValueKind):
            raise CommandFailed(
                f"--values {text!r}: give KIND or TOPIC=KIND, where KIND is json, text or bytes", EXIT_USAGE
            )
        kinds[topic or None] = ValueKind(kind)
    return kinds
