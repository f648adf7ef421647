"""The DuckDB engine, in this process: topics are views over Arrow scans, created for the tables of a statement.

DuckDB keeps intermediate results (groups, sorted rows) in a bounded part of memory, and spills the rest to a temporary
directory. DuckDB does not download extensions.
"""

from __future__ import annotations

import contextlib
import json
import re
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tidelog_cli.base.failures import EXIT_USAGE, CommandFailed
from tidelog_cli.sql.answers import Answer, StatementError
from tidelog_cli.sql.by_record import is_by_record
from tidelog_cli.sql.columns import (
    BEFORE_NUMBER,
    JSON_NUMBER,
    Dialect,
    FieldKind,
    SafeNumbers,
    Shape,
    ValueKind,
    select_list,
)
from tidelog_cli.sql.null_reports import NullRecord, NullReports, Record
from tidelog_cli.sql.parsed import branches_of
from tidelog_cli.sql.tables import TABLES_MAX, Provide, TopicTable, refuse_twins
from tidelog_proto.limits import JSON_DEPTH_MAX, JSON_NUMBER_CHARS_MAX
from tidelog_proto.text.json_text import json_text

if TYPE_CHECKING:
    import pyarrow as pa

    from tidelog.tables.topic_dataset import TopicDataset

ROWS_AT_ONCE: Final = 1000
BATCH_ROWS: Final = 8192
"""Maximum number of rows of an Arrow batch of an answer."""
_WITHOUT_TREE: Final = (["EXPLAIN"], ["COPY"], ["MULTI"])
"""Statements whose syntax tree DuckDB does not show. PIVOT is one of several statements for DuckDB."""
_MISSING: Final = re.compile("^Catalog Error: Table with name (.+?) does not exist!")
NUMBERS: Final = SafeNumbers()
"""The same marker for the whole process, because views exist longer than a statement."""
_RESERVED: Final = frozenset(
    {"at", "check", "column", "default", "desc", "end", "group", "limit", "offset", "order", "primary", "table", "to"}
)
"""Reserved words that are likely names of fields."""
_NANOSECONDS: Final = "_NS"
"""Suffix of types with nanoseconds."""
_STRICT: Final = "tidelog_strict_json"
_REPORT: Final = "tidelog_report_null"
_PLACE: Final = re.compile(r"\n+(LINE (\d+): )(.*)\n( *)\^", re.DOTALL)
_NEEDS_CAST: Final = re.compile("explicit (?:type )?cast")
_CAST_HINT: Final = "; a JSON string is a text column: cast it, for instance total::DECIMAL(18, 2)"
_LENIENT: Final = r",\s*[\]}]|[:\[,]\s*-?(?i:nan|inf)"
"""DuckDB's extensions of JSON: trailing commas, NaN and infinities; may also match inside strings."""
_LOSSY: Final = r"[:\[,]\s*-?(?:[0-9.]+[eE]|[0-9]*[.](?:[0-9]+0(?:[^0-9]|$)|[0-9]{8}|0000)|[0-9]{8,}[.]|0[^.0-9])"
"""Numbers whose text DuckDB may change by converting them to doubles; may also match inside strings."""


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _reported(topic: str, name: str, column_type: str, text: str) -> str:
    """Return the SQL expression that is null, and reports the row's partition and offset with `text` (`_report`)."""
    of = ", ".join(map(_literal, (topic, name, column_type)))
    return f"""nullif({_REPORT}({of}, "partition", "offset", {text}), '')"""


DIALECT: Final = Dialect(
    types={
        FieldKind.INTEGER: "BIGINT",
        FieldKind.LONG_INTEGER: "DECIMAL(38, 0)",
        FieldKind.NUMBER: "DOUBLE",
        FieldKind.DECIMAL: "DECIMAL({precision}, {scale})",
        FieldKind.BOOLEAN: "BOOLEAN",
        FieldKind.DATE: "DATE",
        FieldKind.TIME: "TIMESTAMP",
        FieldKind.ZONED_TIME: "TIMESTAMP WITH TIME ZONE",
        FieldKind.TEXT: "VARCHAR",
    },
    quote=_quoted,
    matches=lambda text, form: f"regexp_full_match({text}, '{form}')",
    digits=lambda text: f"trim(regexp_replace(regexp_replace({text}, '[eE].*', ''), '[^0-9]', '', 'g'), '0')",
    whole=lambda text: f"split_part({text}, '.', 1)",
    raises="error",
    reports=_reported,
)


class DuckDbEngine:
    """Runs statements in DuckDB.

    Args:
        memory_mb: memory limit in MB.
        raises: whether a number of a JSON value that its column does not hold exactly ends a statement. Otherwise it is
            null, and counted.
    """

    def __init__(self, memory_mb: int, *, raises: bool = True) -> None:
        try:
            import duckdb  # noqa: PLC0415 - an extra
        except ImportError as error:
            raise CommandFailed(
                "DuckDB is not installed here; run: pip install 'tidelog[sql]', or choose --engine spark"
            ) from error
        self._duckdb = duckdb
        self._raises = raises
        self._directory = tempfile.TemporaryDirectory(prefix="tidelog-sql-")
        self._config: dict[str, str | bool | int | float | list[str]] = {
            "memory_limit": f"{memory_mb}MB",
            "temp_directory": self._directory.name,
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
            "python_enable_replacements": False,  # Without this setting, Python variables could be used as tables.
        }
        self._datasets: list[TopicDataset] = []
        self._topics: list[str] = []
        """Topics that are tables of the connection."""
        self._nulls = NullReports()
        self._connect()

    def close(self) -> None:
        """Close the connection and remove temporary files."""
        self._disconnect()
        self._directory.cleanup()

    def answer(self, statement: str, provide: Provide, on_read: Callable[[int], None]) -> Answer:
        """Run a statement; rows are computed as they are read.

        Args:
            statement: a statement that only reads topics.
            on_read: called with the number of records read.

        Raises:
            CommandFailed: the statement is invalid or of another kind, or uses an unknown table.
            TidelogError: a topic could not be read.
        """
        self._open(statement, provide, on_read)
        with self._explained(statement):
            self._execute(statement, provide, on_read)
            columns = self._connection.description or []
            if any(str(column[1]).endswith(_NANOSECONDS) for column in columns):
                # Python has no times in nanoseconds, so their text is selected.
                picked = ", ".join(
                    f"replace(replace(CAST(#{at} AS VARCHAR), ' ', 'T'), '+00', 'Z')"
                    if str(column[1]).endswith(_NANOSECONDS)
                    else f"#{at}"
                    for at, column in enumerate(columns, 1)
                )
                self._connection.execute(f"SELECT {picked} FROM (\n{statement.rstrip().removesuffix(';')}\n)")  # noqa: S608
        names = [column[0] for column in columns]
        return Answer(names, self._rows(statement), self._batches(statement))

    def write_parquet(
        self, topic: str, path: Path, provide: Provide, on_read: Callable[[int], None], *, codec: str, group_rows: int
    ) -> int:
        """Write all columns of a topic to a Parquet file, and return how many records it has.

        Raises:
            CommandFailed: the file cannot be written, or a number does not fit the type of its column.
            TidelogError: the topic cannot be read.
        """
        rows = f"SELECT * FROM {_quoted(topic)}"  # noqa: S608 - the name is quoted
        self._open(rows, provide, on_read)
        place = str(path).replace("'", "''")
        options = f"FORMAT parquet, COMPRESSION {codec}, ROW_GROUP_SIZE {group_rows}"
        with self._explained(rows):
            ((count,),) = self._connection.execute(f"COPY ({rows}) TO '{place}' ({options})").fetchall()
        return int(count)

    def notes(self) -> list[str]:
        """Return notes about values that were null in the last answer, because their columns cannot represent them."""
        return self._nulls.notes()

    def null_records(self) -> list[NullRecord]:
        """Return the records of the last answer that were null in a column, because it cannot represent them."""
        return self._nulls.records()

    def _report(self, topic: str, name: str, column_type: str, partition: int, offset: int, text: str) -> str:  # noqa: PLR0917 - called by DuckDB
        self._nulls.add(topic, name, column_type, Record(partition, offset, text))
        return ""

    def _open(self, statement: str, provide: Provide, on_read: Callable[[int], None]) -> None:
        """Create the views of the topics that a statement names."""
        self._nulls = NullReports()
        self._disconnect()  # closes the scans of an earlier answer
        self._connect()
        parsed = self._parsed(statement)
        # The tables of other statements are found as DuckDB misses them.
        self._add_all([] if parsed is None else provide(*named_in(parsed)), on_read)

    def _execute(self, statement: str, provide: Provide, on_read: Callable[[int], None]) -> None:
        """Run a statement, and create the view of each topic that DuckDB misses before it has run."""
        for _ in range(TABLES_MAX):
            try:
                self._connection.execute(statement)
            except self._duckdb.CatalogException as error:
                missing = _MISSING.search(str(error))
                if missing is None or missing[1] in self._topics:
                    raise
                self._add_all(provide([missing[1]]), on_read)
            else:
                return
        raise CommandFailed(f"the statement uses more than {TABLES_MAX} topics; divide it into several statements")

    def _add_all(self, tables: list[TopicTable], on_read: Callable[[int], None]) -> None:
        self._topics += [table.extent.topic for table in tables]
        refuse_twins(self._topics)
        for table in tables:
            self._add(table, on_read)

    def _add(self, table: TopicTable, on_read: Callable[[int], None]) -> None:
        """Create the view of a topic."""
        from tidelog.tables.topic_dataset import TopicDataset  # noqa: PLC0415 - not needed without topics

        topic, shape = table.extent.topic, table.shape
        count_by = "offset" if table.schema is None else "_offset"
        dataset = TopicDataset(table.columns, table.read, count_by, on_read=on_read)
        self._datasets.append(dataset)
        if shape is None:
            self._connection.register(topic, dataset)
        else:
            self._create_functions()
            self._connection.register(_raw(topic), dataset)
            self._connection.execute(view_of(topic, shape, raises=self._raises))

    def is_by_record(self, statement: str) -> bool:
        """Return whether each result row depends on a single record.

        Raises:
            CommandFailed: the statement is invalid, or does not only read.
        """
        parsed = self._parsed(statement)
        if parsed is None:
            raise CommandFailed("--follow is for a SELECT; run other statements without it", EXIT_USAGE)
        return is_by_record(parsed, self._is_scalar)

    def _is_scalar(self, function: str) -> bool:
        query = "SELECT bool_and(function_type = 'scalar') FROM duckdb_functions() WHERE function_name = ?"
        ((is_scalar,),) = self._connection.execute(query, [function]).fetchall()
        return bool(is_scalar)

    def _connect(self) -> None:
        self._has_functions = False
        self._connection = self._duckdb.connect(config=self._config)
        self._connection.execute("SET TimeZone = 'UTC'")

    def _create_functions(self) -> None:
        """Create the functions of views of JSON values; other statements start faster without them."""
        if self._has_functions:
            return
        self._has_functions = True
        self._connection.create_function(_STRICT, strict_json, ["VARCHAR"], "VARCHAR")
        self._connection.create_function(
            _REPORT, self._report, ["VARCHAR", "VARCHAR", "VARCHAR", "INTEGER", "BIGINT", "VARCHAR"], "VARCHAR"
        )

    def _disconnect(self) -> None:
        for dataset in self._datasets:
            dataset.close()
        self._datasets = []
        self._topics = []
        self._connection.close()

    def _parsed(self, statement: str) -> list[object] | None:
        """Return the syntax tree of a query; None for another statement that is allowed.

        Raises:
            CommandFailed: the statement is invalid, or not allowed.
        """
        with self._explained(statement):
            statements = self._connection.extract_statements(statement)  # raises errors that contain their position
        if [one.type.name for one in statements] in _WITHOUT_TREE:
            return None
        ((text,),) = self._connection.execute("SELECT json_serialize_sql(?::VARCHAR)", [statement]).fetchall()
        parsed = json.loads(text)
        if parsed.get("error", True) or len(parsed["statements"]) != 1:
            raise CommandFailed(
                f"statement {statement.strip()[:40]!r} is not a single query; give one SELECT, PIVOT, DESCRIBE, "
                "SUMMARIZE, EXPLAIN, SHOW TABLES, or COPY (SELECT ...) TO 'FILE'; store an answer in a topic with "
                "--into TOPIC",
                EXIT_USAGE,
            )
        tree: list[object] = parsed["statements"]
        return tree

    def _batches(self, statement: str) -> Iterator[pa.RecordBatch]:
        connection: Any = self._connection
        with self._explained(statement):
            # Versions before 1.5 have the other name. Later ones warn of a copy, which costs less than a second run.
            read = getattr(connection, "to_arrow_reader", None) or connection.fetch_record_batch
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)
                reader = read(BATCH_ROWS)
            yield from reader

    def _rows(self, statement: str) -> Iterator[tuple[Any, ...]]:
        while True:
            with self._explained(statement):
                rows = self._connection.fetchmany(ROWS_AT_ONCE)
            if not rows:
                return
            yield from rows

    @contextlib.contextmanager
    def _explained(self, statement: str) -> Iterator[None]:
        """Convert DuckDB's errors to one line, with an excerpt if the position is known."""
        try:
            yield
        except self._duckdb.Error as error:
            for dataset in self._datasets:
                if dataset.failure is not None:
                    raise dataset.failure from error
            raise explained(str(error), statement) from error
        except RuntimeError as error:  # DuckDB's error for Ctrl-C
            if "interrupted" in str(error).lower():
                raise KeyboardInterrupt from error
            raise


class Named(NamedTuple):
    """Tables named in a statement.

    Attributes:
        tables: topics that must exist.
        shadowed: names that are also defined by WITH, so that the topic may be missing.
    """

    tables: list[str]
    shadowed: list[str]


def named_in(parsed: object) -> Named:
    """Return the tables of a statement from DuckDB's syntax tree, without files, which DuckDB reads itself."""
    tables: set[str] = set()
    parts: set[str] = set()  # In lower case, because these names are case-insensitive.
    for one in branches_of(parsed):
        if one.get("type") == "BASE_TABLE":
            tables.add(".".join(filter(None, (one.get("schema_name"), one["table_name"]))))
        parts.update(each["key"].lower() for each in one.get("cte_map", {}).get("map", []))
    # Topic names do not contain these characters.
    tables = {name for name in tables if not ({*name} & {*"/*?"} or Path(name).is_file())}
    shadowed = {name for name in tables if name.lower() in parts}
    return Named(sorted(tables - shadowed), sorted(shadowed))


def explained(message: str, statement: str) -> StatementError:
    """Return DuckDB's message as one line, with an excerpt at its position and the remedy for text columns."""
    position = _PLACE.search(message)
    cast = _CAST_HINT if "VARCHAR" in message and _NEEDS_CAST.search(message) else ""
    if position is None:
        return StatementError(message + cast)
    line, excerpt, before = int(position[2]), position[3], len(position[4]) - len(position[1])
    column = before + 1
    reserved = _reserved_at(excerpt, before)
    hint = f'; {reserved} is a reserved word: quote a column of that name, "{reserved}"' if reserved else ""
    lines = statement.splitlines()
    if excerpt.startswith("...") and line <= len(lines):  # DuckDB may have truncated a long line at both ends.
        column += lines[line - 1].find(excerpt.strip(".")) - 3
    place = f"line {line}, column {column}"
    return StatementError(f"{place}: {message[: position.start()]}{hint}{cast}", f"{excerpt}\n{' ' * before}^")


def _reserved_at(excerpt: str, at: int) -> str | None:
    """Return the reserved word at a position of a statement or right before it, if any, in lower case."""
    behind = re.match(r"\w+", excerpt[at:])
    before = re.search(r"(\w+)\W*\Z", excerpt[:at])
    words = [match[0].strip() if match is behind else match[1] for match in (before, behind) if match is not None]
    return next((word.lower() for word in words if word.lower() in _RESERVED), None)


def strict_json(text: str) -> str:
    """Return JSON with strings for numbers; "" if `tidelog_proto.text.json_text` does not accept the text."""
    try:
        return NUMBERS.replaced(json_text(text))
    except ValueError:
        return ""


def view_of(topic: str, shape: Shape, *, raises: bool = True) -> str:
    """Return the statement that creates a topic's view over its scan."""
    text, key = (f"coalesce(try(decode({name})), CAST({name} AS VARCHAR))" for name in ('"value"', '"key"'))
    keys = key if shape.text_keys else '"key"'
    values = '"value"' if shape.values is ValueKind.BYTES else text
    # Names are quoted and text is escaped, so that no part of a topic is interpreted as SQL.
    rows = f'SELECT * REPLACE ({keys} AS "key", {values} AS "value") FROM {_quoted(_raw(topic))}'  # noqa: S608
    at = {name: f'"field {number}"' for number, name in enumerate(shape.fields)}
    if shape.fields:
        kinds = {name: "JSON" if kind is FieldKind.JSON else "VARCHAR" for name, kind in shape.fields.items()}
        structure = json.dumps(kinds).replace("'", "''")
        parsed = f"""TRY(from_json({_parsable('"value"')}, '{structure}'))"""
        other = _reported(topic, "", "", '"value"')
        reported = f"""from_json(CASE WHEN "value" IS NOT NULL THEN {other} END, '{structure}')"""
        rows = f"SELECT *, coalesce({parsed}, {reported}) AS j FROM ({rows})"  # noqa: S608
        texts = ", ".join(f"{_unmarked(f'j.{_quoted(name)}')} AS {alias}" for name, alias in at.items())
        rows = f"SELECT * EXCLUDE (j), {texts} FROM ({rows})"  # noqa: S608
    columns = ", ".join(select_list(topic, shape, at.__getitem__, DIALECT, raises=raises))
    return f"CREATE OR REPLACE TEMPORARY VIEW {_quoted(topic)} AS SELECT {columns} FROM ({rows})"  # noqa: S608


def _parsable(value: str) -> str:
    """Return a SQL expression that prepares the JSON text `value` for `from_json`.

    It yields NULL unless the text may be a JSON object, which the only parse decides, and quotes numbers that DuckDB
    might alter by converting them to doubles. The slow Python check (`strict_json`) runs only for text that may use
    DuckDB's JSON extensions or exceed a limit.
    """
    brackets = f"length({value}) - length(translate({value}, '[{{', ''))"
    digits = f"regexp_matches({value}, '[-+.0-9eE]{{{JSON_NUMBER_CHARS_MAX}}}')"
    # CASE evaluates lazily; AND and OR evaluate both sides for every record.
    large = f"""CASE WHEN length({value}) <= {2 * JSON_DEPTH_MAX} THEN FALSE
        WHEN {brackets} > {JSON_DEPTH_MAX} THEN TRUE
        WHEN length({value}) <= {JSON_NUMBER_CHARS_MAX} THEN FALSE ELSE {digits} END"""
    pattern = f"({BEFORE_NUMBER})({JSON_NUMBER})"
    safe = f"""regexp_replace({value} || '{NUMBERS.appended}', '{pattern}', '\\1"{NUMBERS.mark}\\2"', 'gs')"""
    return f"""CASE
        WHEN NOT starts_with(ltrim({value}, E' \\t\\n\\r'), '{{') THEN NULL
        WHEN {large} THEN nullif({_STRICT}({value}), '')
        WHEN NOT regexp_matches({value}, '{_LENIENT}|{_LOSSY}') THEN {value}
        WHEN regexp_matches({value}, '{_LENIENT}') THEN nullif({_STRICT}({value}), '')
        ELSE left({safe}, -{len(NUMBERS.end)}) END"""


def _unmarked(text: str) -> str:
    """Return the SQL expression of a field's text, with numbers as they were written."""
    mark = NUMBERS.mark
    plain = f"""replace(regexp_replace({text}::VARCHAR, '"{mark}([^"]*)"', '\\1', 'g'), '{mark}', '')"""
    return f"CASE WHEN contains({text}::VARCHAR, '{mark}') THEN {plain} ELSE {text}::VARCHAR END"


def _raw(topic: str) -> str:
    return f"records of {topic}"
