"""The Spark engine, in a local session of this process: topics are temporary views, created when Spark misses a table.

Spark does not report all tables of a statement, only the first missing one. So the view of each missing table is
created when Spark reports it, and the statement is analysed again.
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, cast

from tidelog_cli.base.failures import EXIT_USAGE, CommandFailed
from tidelog_cli.sql.answers import Answer, StatementError
from tidelog_cli.sql.columns import JSON_NUMBER, Dialect, FieldKind, SafeNumbers, Shape, ValueKind, select_list
from tidelog_cli.sql.null_reports import TEXT_CHARS_MAX, NullRecord, Record, counted, not_objects
from tidelog_cli.sql.tables import TABLES_MAX, Provide, TopicTable, refuse_twins
from tidelog_proto.limits import JSON_DEPTH_MAX, JSON_NUMBER_CHARS_MAX

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType

_READS: Final = re.compile(
    r"(\s|\(|--[^\n]*\n|/\*.*?\*/)*(select|with|from|values|describe|explain)\b", re.IGNORECASE | re.DOTALL
)
_TEXT_OR_COMMENT: Final = re.compile(r"""'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|--[^\n]*|/\*.*?\*/""", re.DOTALL)
_MISSING: Final = "TABLE_OR_VIEW_NOT_FOUND"
_PLACE: Final = re.compile(r"\(line (\d+), pos (\d+)\)")
_TRACEBACK: Final = "Traceback (most recent call last):"
_CONDITION: Final = re.compile(r"^\[[A-Z0-9_.]+\]\s*|\s*SQLSTATE: \w+\s*\Z")
NUMBERS: Final = SafeNumbers()
_STRICT: Final = {"allowSingleQuotes": "false", "allowNonNumericNumbers": "false"}
_STRING: Final = r'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_BEFORE_NUMBER: Final = rf'[^-0-9"]*+(?:{_STRING}[^-0-9"]*+)*+'
"""DuckDB's pattern with possessive quantifiers, because Java uses a stack frame for each repetition of other
quantifiers."""
_PAIR: Final = r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
_HALF: Final = r"\\u[dD][89a-fA-F]"


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


DIALECT: Final = Dialect(
    types={
        FieldKind.INTEGER: "BIGINT",
        FieldKind.LONG_INTEGER: "DECIMAL(38, 0)",
        FieldKind.NUMBER: "DOUBLE",
        FieldKind.DECIMAL: "DECIMAL({precision}, {scale})",
        FieldKind.BOOLEAN: "BOOLEAN",
        FieldKind.DATE: "DATE",
        FieldKind.TIME: "TIMESTAMP_NTZ",
        FieldKind.ZONED_TIME: "TIMESTAMP",
        FieldKind.TEXT: "STRING",
    },
    quote=_quoted,
    matches=lambda text, form: f"{text} RLIKE '^({form})$'",
    digits=lambda text: f"trim('0' FROM regexp_replace(regexp_replace({text}, '[eE].*', ''), '[^0-9]', ''))",
    whole=lambda text: f"split_part({text}, '.', 1)",
    raises="raise_error",
    reports=lambda *_: "NULL",
)


class SparkEngine:
    """Runs statements in Spark.

    Args:
        memory_mb: size of the Java heap in MB; less than 512 is raised to 512.
        place: connection options of the data source.
    """

    def __init__(self, memory_mb: int, place: dict[str, str]) -> None:
        try:
            from pyspark.sql import SparkSession  # noqa: PLC0415 - an extra

            from pyspark_tidelog import local_spark  # noqa: PLC0415
        except ImportError as error:
            raise CommandFailed(
                "Spark is not installed here; run: pip install 'tidelog[spark]', or choose --engine duckdb"
            ) from error
        self._place = place
        # This logger writes each error with its Java stack, including those that only report a missing table.
        logging.getLogger("SQLQueryContextLogger").disabled = True
        self._is_ours = SparkSession.getActiveSession() is None
        self._spark = local_spark("tidelog sql", memory_mb=max(memory_mb, 512))
        self._spark.conf.set("spark.sql.debug.maxToStringFields", "100000")  # see `_parses_values`
        self._observed: DataFrame | None = None
        """The last answer, if it parses values."""
        self._metrics: dict[str, str] = {}
        """Topic -> the name of the metric that counts its values that are not JSON objects."""

    def close(self) -> None:
        """Stop the session if this engine started it."""
        if self._is_ours:
            self._spark.stop()

    def answer(self, statement: str, provide: Provide, on_read: Callable[[int], None]) -> Answer:
        """Run a statement; rows are computed as they are read.

        Args:
            statement: a statement that only reads.
            on_read: not used, because Spark tasks read the records.

        Raises:
            CommandFailed: the statement is invalid, does not only read, uses an unknown table, or failed.
            TidelogError: a topic could not be sampled.
        """
        del on_read
        if not _READS.match(statement):
            raise CommandFailed(
                f"statement {statement.strip()[:40]!r} is not a query; give one SELECT, DESCRIBE, EXPLAIN "
                "or SHOW TABLES; store an answer in a topic with --into TOPIC",
                EXIT_USAGE,
            )
        self._observed, self._metrics = None, {}
        frame, tables = self._planned(statement, provide)
        if _parses_values(frame):
            for number, table in enumerate(tables):
                self._metrics[table.extent.topic] = f"values of {number}"
                self._make_view(table, metric=f"values of {number}")
            with _explained():
                self._observed = frame = self._spark.sql(statement)
        kinds = [field.dataType for field in frame.schema.fields]
        return Answer(frame.columns, self._rows(frame, kinds))

    def is_by_record(self, statement: str) -> bool:
        """Return False: Spark does not expose its syntax tree, so --follow runs the whole statement each time."""
        del statement
        return False

    def null_records(self) -> list[NullRecord]:
        """Return nothing: Spark tasks do not report the places of records."""
        return []

    def notes(self) -> list[str]:
        """Return notes about values that are not JSON objects in the last answer; other nulls are not reported."""
        if self._observed is None:
            return []
        lines = []
        with _uninterrupted():
            metrics = _execution(self._observed).observedMetrics()
            for topic, name in self._metrics.items():
                found = metrics.get(name)
                if found.isDefined() and (count := found.get().getLong(0)):
                    first = found.get().getStruct(1)
                    record = Record(first.getInt(0), first.getLong(1), first.getString(2))
                    lines.append(not_objects(topic, counted(count), record, "`"))
        return lines

    def _planned(self, statement: str, provide: Provide) -> tuple[DataFrame, list[TopicTable]]:
        """Return the statement's plan, and its topics."""
        from pyspark.errors import AnalysisException  # noqa: PLC0415

        # Views of the last result have an older offset range.
        for view in self._spark.catalog.listTables():
            self._spark.catalog.dropTempView(view.name)
        tables: list[TopicTable] = []
        for _ in range(TABLES_MAX + 1):
            try:
                with _explained():
                    frame = self._spark.sql(statement)
            except CommandFailed as failed:
                error = failed.__cause__
                if not isinstance(error, AnalysisException) or error.getCondition() != _MISSING:
                    raise
                missing = (error.getMessageParameters() or {}).get("relationName", "")
            else:
                # View names are case-insensitive, so another spelling of a topic may be a different topic.
                topics = [table.extent.topic for table in tables]
                twins = provide([], other_spellings(statement, topics))
                refuse_twins([*topics, *(table.extent.topic for table in twins)])
                return frame, tables
            (table,) = provide([missing.strip("`").replace("``", "`")])
            self._make_view(table)
            tables.append(table)
        raise CommandFailed(f"the statement uses more than {TABLES_MAX} topics; divide it into several statements")

    def _make_view(self, table: TopicTable, metric: str | None = None) -> None:
        extent = table.extent
        reading = self._spark.read.format("tidelog").options(
            **self._place,
            assign=json.dumps({extent.topic: sorted(extent.starts)}),
            startingOffsets=_by_partition(extent.topic, extent.starts),
            endingOffsets=_by_partition(extent.topic, extent.ends),
        )
        if table.shape is None:
            assert table.schema is not None, "a typed topic has a schema"
            view = reading.options(includeRecordColumns="true", schemaNumber=str(table.schema.number)).load()
        else:
            frame = reading.options(includeHeaders="true", includeTags="true").load()
            view = view_of(frame, extent.topic, table.shape, metric)
        view.createOrReplaceTempView(_quoted(extent.topic))

    def _rows(self, frame: DataFrame, kinds: list[DataType]) -> Iterator[tuple[Any, ...]]:
        with _explained():
            for row in frame.toLocalIterator():
                yield tuple(_plain(value, kind.typeName()) for value, kind in zip(row, kinds, strict=True))


def other_spellings(statement: str, topics: Iterable[str]) -> list[str]:
    """Return words in a statement that differ from these topics only in case, sorted."""
    code = _TEXT_OR_COMMENT.sub(" ", statement)
    spellings = {
        spelling for topic in topics for spelling in re.findall(rf"\b{re.escape(topic)}\b", code, re.IGNORECASE)
    }
    return sorted(spellings.difference(topics))


def _parses_values(frame: DataFrame) -> bool:
    """Return whether a statement uses fields of JSON values; Spark removes unused columns from its plan."""
    with _explained():
        return "from_json(" in _execution(frame).optimizedPlan().toString()


def _execution(frame: DataFrame) -> Any:
    """Return Spark's Java object `QueryExecution` of a query, to which Python has no other access."""
    return cast(Any, frame)._jdf.queryExecution()  # noqa: SLF001


def view_of(frame: DataFrame, topic: str, shape: Shape, metric: str | None = None) -> DataFrame:
    """Return a topic's columns from those of the data source, see `columns`.

    Args:
        frame: the columns of the data source.
        topic: the topic's name.
        shape: the topic's columns.
        metric: name of the observed metric that counts values that are not JSON objects, and has the first one. It
            makes Spark parse all values.
    """

    def text(name: str) -> str:
        return f"coalesce(try_validate_utf8(CAST({name} AS STRING)), hex({name})) AS {name}"

    keys = text("key") if shape.text_keys else "key"
    values = "value" if shape.values is ValueKind.BYTES else text("value")
    rows = frame.selectExpr("partition", "offset", "timestamp", keys, values, "headers", "tag")
    at = {name: f"field {number}" for number, name in enumerate(shape.fields)}
    if shape.fields:
        rows = _with_fields(rows, shape, at, metric)
    return rows.selectExpr(*select_list(topic, shape, lambda name: _quoted(at[name]), DIALECT))


def _with_fields(rows: DataFrame, shape: Shape, at: Mapping[str, str], metric: str | None) -> DataFrame:
    """Add the texts of fields, null for values that are not JSON; see `view_of` for `metric`.

    The value is parsed as the first element of an array with a known last element, because Spark ignores text after a
    value. Numbers are replaced in one pass anchored at the start: otherwise the search in text that is not JSON would
    restart at each character.
    """
    from pyspark.sql import functions as sql  # noqa: PLC0415
    from pyspark.sql.types import ArrayType, StringType, StructField, StructType  # noqa: PLC0415

    mark, last = NUMBERS.mark, f"{NUMBERS.mark}last"
    marked = sql.concat("value", sql.lit(NUMBERS.appended))
    marked = sql.regexp_replace(marked, sql.lit(rf"\G({_BEFORE_NUMBER})({JSON_NUMBER})"), sql.lit(f'$1"{mark}$2"'))
    rows = rows.withColumn("made", marked)
    rows = rows.withColumn("safe", sql.substring("made", sql.lit(1), sql.length("made") - len(NUMBERS.end)))
    fields = StructType([StructField(name, StringType()) for name in (*shape.fields, last)])
    array = sql.concat(sql.lit("["), "safe", sql.lit(f',{{"{last}":""}}]'))
    rows = rows.withColumn("j", sql.from_json(array, ArrayType(fields), _STRICT))
    is_json = (
        sql.col("made").endswith(NUMBERS.end)
        & (sql.size("j") == 2)
        & sql.col("j")[1][last].isNotNull()
        & ~_is_beyond(sql.col("value"), sql.col("safe"))
    )
    rows = rows.withColumn("is_json", is_json)
    if metric is not None:
        is_object = sql.coalesce("is_json", sql.lit(False)) & sql.startswith(sql.ltrim("value"), sql.lit("{"))
        is_other = sql.col("value").isNotNull() & ~is_object
        record = sql.struct("partition", "offset", sql.substring("value", 1, TEXT_CHARS_MAX))
        rows = rows.observe(metric, sql.count_if(is_other), sql.min(sql.when(is_other, record)))
    texts = [
        sql.when(
            sql.col("is_json"),
            sql.replace(sql.regexp_replace(text, f'"{mark}([^"]*)"', "$1"), sql.lit(mark), sql.lit("")),
        ).alias(at[name])
        for name in shape.fields
        for text in (sql.col("j")[0].getField(name),)
    ]
    return rows.select(*(name for name in rows.columns if name not in {"made", "safe", "j", "is_json"}), *texts)


def _is_beyond(value: Column, safe: Column) -> Column:
    """Return whether a value that Spark parses as JSON is not JSON by the rules of `tidelog_proto.text.json_text`.

    Such a value has a number as a name or a lone surrogate, or exceeds the limits of nesting and of a number's length.
    """
    from pyspark.sql import functions as sql  # noqa: PLC0415

    mark = NUMBERS.mark
    brackets = sql.regexp_replace(sql.regexp_replace(value, _STRING, ""), r"[^\[\]{}]", "")
    zero = sql.struct(sql.lit(0).alias("now"), sql.lit(0).alias("most"))

    def step(at: Column, bracket: Column) -> Column:
        now = at["now"] + sql.when(bracket.isin("[", "{"), 1).otherwise(-1)
        return sql.struct(now.alias("now"), sql.greatest(at["most"], now).alias("most"))

    depth = sql.aggregate(sql.split(brackets, ""), zero, step, lambda at: at["most"])
    opening = sql.length(value) - sql.length(sql.translate(value, "[{", ""))
    halves = sql.regexp_replace(sql.regexp_replace(value, r"\\\\", ""), _PAIR, "")
    return (
        sql.when(opening > JSON_DEPTH_MAX, depth > JSON_DEPTH_MAX).otherwise(sql.lit(False))
        | safe.rlike(f'"{mark}[^"]*"\\s*:')
        | safe.rlike(f'"{mark}[^"]{{{JSON_NUMBER_CHARS_MAX + 1}}}')
        | sql.when(sql.contains(value, sql.lit("\\u")), halves.rlike(_HALF)).otherwise(sql.lit(False))
    )


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """Delay Ctrl-C until the end of short calls, because an interrupted one breaks py4j's connection to Spark."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    arrived: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: arrived.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if arrived:
        raise KeyboardInterrupt


@contextlib.contextmanager
def _explained() -> Iterator[None]:
    """Convert Spark's errors to one line, with an excerpt if the position is known."""
    from py4j.protocol import Py4JJavaError  # noqa: PLC0415
    from pyspark.errors import ParseException, PySparkException  # noqa: PLC0415

    try:
        yield
    except Py4JJavaError as error:  # Raised while rows are read; its text contains a Java stack.
        cause = error.java_exception
        while cause.getCause() is not None:
            cause = cause.getCause()
        raise CommandFailed(last_said(cause.getMessage() or cause.toString())) from error
    except PySparkException as error:
        message, _, excerpt = str(error).strip().partition("\n\n== SQL")
        place = _PLACE.search(message)
        if isinstance(error, ParseException) and place is not None:
            line, column = int(place[1]), int(place[2]) + 1
            text = " ".join(message[: place.start()].split())
            lines = "\n".join(excerpt.splitlines()[1:])
            raise StatementError(f"line {line}, column {column}: {text}", lines) from error
        raise CommandFailed(message.splitlines()[0]) from error


def last_said(message: str) -> str:
    """Return the essential line of an error: the exception of a Python task, or a Java message without its class."""
    message = message.strip()
    if _TRACEBACK in message:
        lines = message.rpartition(_TRACEBACK)[2].splitlines()  # follows the chained exceptions
        essential = [line for line in lines if line.strip() and not line.startswith((" ", "\t"))]
        return essential[0].strip() if essential else message.splitlines()[0]
    return _CONDITION.sub("", message).splitlines()[0].strip()


def _by_partition(topic: str, offsets: Any) -> str:
    return json.dumps({topic: {str(number): offset for number, offset in offsets.items()}})


def _plain(value: Any, kind: str) -> Any:
    from pyspark.sql import Row  # noqa: PLC0415

    if isinstance(value, datetime) and kind == "timestamp":
        return value.astimezone(UTC)  # Spark returns a naive time in the local time zone.
    if isinstance(value, Row):
        return value.asDict(recursive=True)
    if isinstance(value, list):
        return [_plain(part, "") for part in value]
    return value
