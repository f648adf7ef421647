from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.cli.sql.values_as_tables import table_of
from tests.json_texts import EXAMPLES, NOT_JSON, numbers, strings, values

from tidelog_cli.base.failures import CommandFailed
from tidelog_cli.sql import null_reports
from tidelog_cli.sql.columns import FieldKind, ValueKind, shape_of
from tidelog_cli.sql.duckdb_engine import DuckDbEngine, explained, view_of
from tidelog_cli.sql.tables import TopicTable
from tidelog_proto.text.json_text import exact_json


@pytest.fixture
def engine() -> Iterator[DuckDbEngine]:
    engine = DuckDbEngine(64)
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def shared() -> Iterator[DuckDbEngine]:
    """One engine for all examples of the properties: opening one takes as long as an example."""
    engine = DuckDbEngine(64)
    yield engine
    engine.close()


def test_a_statement_without_topics(engine: DuckDbEngine) -> None:
    answer = engine.answer("SELECT range AS n FROM range(2500)", lambda names, optional=(): [], lambda rows: None)
    assert (answer.names, [row[0] for row in answer.rows]) == (["n"], list(range(2500)))


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("DROP TABLE x", "a single query"),
        ("SELECT 1; SELECT 2", "a single query"),
        ("", "a single query"),
        ("SELECT\n  FROM x WHERE", "line 2, column"),
        ("SELECT engine FROM self", "nothing of this program"),
        ("INSERT INTO x SELECT 1", "a single query; give one SELECT.*store an answer in a topic with --into TOPIC"),
        ("COPY (SELECT 1) TO '/no/such/directory/x.parquet' (FORMAT parquet)", "/no/such/directory/x.parquet"),
        ("COPY x TO 'x.parquet'", "nothing of this program"),
        ("EXPLAIN SELECT * FROM x", "nothing of this program"),
        ("PIVOT x ON y USING sum(z)", "nothing of this program"),
        ("COPY (SELECT 1) TO 'x.parquet'; SELECT 2", "a single query"),
        ("ATTACH 'x.db'", "a single query"),
        ("SET threads = 1", "a single query"),
    ],
)
def test_invalid_statement_is_refused(engine: DuckDbEngine, statement: str, said: str) -> None:
    def none_of(names: object, optional: object = ()) -> list[object]:
        raise CommandFailed("nothing of this program is a table")

    with pytest.raises(CommandFailed, match=said):
        engine.answer(statement, none_of, lambda rows: None)  # type: ignore[arg-type]


def test_time_zone_is_utc_wherever_the_command_runs() -> None:
    code = (
        "from tidelog_cli.sql.duckdb_engine import DuckDbEngine; engine = DuckDbEngine(64); "
        "answer = engine.answer(\"SELECT current_setting('TimeZone')\", lambda *_: [], lambda rows: None); "
        "print(*next(answer.rows)); engine.close()"
    )
    zone = {**os.environ, "TZ": "America/New_York"}
    ran = subprocess.run([sys.executable, "-c", code], env=zone, capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "UTC"


def test_memory_is_bounded_and_the_disk_takes_the_rest(engine: DuckDbEngine) -> None:
    statement = "SELECT count(*) FROM (SELECT DISTINCT hash(range) FROM range(3000000))"
    answer = engine.answer(statement, lambda names, optional=(): [], lambda rows: None)
    assert list(answer.rows) == [(3_000_000,)]


def test_the_place_of_an_error() -> None:
    message = "Parser Error: syntax error\n\nLINE 2: FROM x WHERE\n             ^"
    failed = explained(message, "SELECT 1\nFROM x WHERE")
    assert (str(failed), failed.excerpt) == ("line 2, column 6: Parser Error: syntax error", "FROM x WHERE\n     ^")
    statement = "x" * 100 + " here " + "y" * 100
    cut = f"E\n\nLINE 1: ...xxx here yyy...\n{' ' * 15}^"
    assert str(explained(cut, statement)) == "line 1, column 102: E"


def test_names_and_fields_are_quoted() -> None:
    made = view_of('a"b', shape_of([([], [b'{"it\'s \\"x\\"":"v"}'])], None))
    assert made.startswith('CREATE OR REPLACE TEMPORARY VIEW "a""b" AS SELECT "partition"')
    assert '"field 0" AS "it\'s ""x"""' in made
    assert 'j."it\'s ""x"""' in made
    assert """'{"it''s \\\\"x\\\\"": "VARCHAR"}'""".replace("\\\\", "\\") in made


def test_missing_engine_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)
    with pytest.raises(CommandFailed, match="pip install 'tidelog\\[sql\\]'"):
        DuckDbEngine(64)


def names_of(engine: DuckDbEngine, statement: str) -> tuple[list[str], list[str]]:
    asked: list[tuple[list[str], list[str]]] = []

    def provide(names: list[str], optional: list[str]) -> list[object]:
        asked.append((names, optional))
        raise CommandFailed("enough")

    with pytest.raises(CommandFailed, match="enough"):
        engine.answer(statement, provide, lambda rows: None)  # type: ignore[arg-type]
    return asked[0]


def test_which_tables_a_statement_names(engine: DuckDbEngine, tmp_path: Path) -> None:
    assert names_of(engine, 'SELECT * FROM a JOIN "b-c" USING (x) WHERE y IN (SELECT z FROM d.e)') == (
        ["a", "b-c", "d.e"],
        [],
    )
    assert names_of(engine, "WITH a AS (SELECT * FROM a), b AS (FROM c) SELECT * FROM a, b") == (["c"], ["a", "b"])
    assert names_of(engine, "WITH A AS (SELECT 1) SELECT * FROM a, b") == (["b"], ["a"])
    assert names_of(engine, "WITH a AS (SELECT 1) SELECT * FROM A, b") == (["b"], ["A"])
    assert names_of(engine, "DESCRIBE a") == (["a"], [])
    assert names_of(engine, "SUMMARIZE a") == (["a"], [])
    (tmp_path / "more.csv").write_text("x\n1\n")
    for more in (tmp_path / "more.csv", "*.parquet"):
        assert names_of(engine, f"SELECT * FROM a, '{more}'") == (["a"], [])


def column_of(engine: DuckDbEngine, table: TopicTable, name: str) -> list[Any]:
    statement = f'SELECT "{name}" FROM t ORDER BY "offset"'
    return [row[0] for row in engine.answer(statement, lambda names, optional=(): [table], lambda rows: None).rows]


def is_same(answered: Any, number: str) -> bool:
    """Whether what a column has is the number that was sent, to the last digit."""
    if isinstance(answered, str):
        return answered == number
    return Decimal(repr(answered) if isinstance(answered, float) else answered) == Decimal(number)


@settings(max_examples=100)
@given(st.lists(numbers, min_size=1, max_size=5), strings)
@example(["12345678901234567890123"], '"a"')  # few of the generated numbers are whole and too long for 64 bits
def test_any_numbers_are_answered_exactly(shared: DuckDbEngine, texts: list[str], other: str) -> None:
    table = table_of([f'{{"x":{other},"n":{text}}}'.encode() for text in texts])
    answered = column_of(shared, table, "n")
    assert all(map(is_same, answered, texts)), (answered, table.shape)


@settings(max_examples=100)
@given(st.lists(numbers, min_size=1, max_size=5), st.lists(numbers, min_size=1, max_size=5))
@example(["12345678901234567890123"], ["12345678901234567890124"])
def test_numbers_that_were_not_looked_at_are_exact_or_an_error(
    shared: DuckDbEngine, seen: list[str], texts: list[str]
) -> None:
    lines = [[f'{{"n": {text} }}'.encode() for text in some] for some in (seen, texts)]
    table = table_of(lines[1], lines[0])
    refused = ""
    answered: list[Any] = []
    try:
        answered = column_of(shared, table, "n")
    except CommandFailed as failed:
        refused = str(failed)
    if refused:
        assert "does not represent every number exactly" in refused
    else:
        assert list(map(is_same, answered, texts)) == [True] * len(texts), (answered, table.shape)


@pytest.mark.parametrize(
    ("seen", "exact", "rounded"),
    [
        ("1", "2.0", "1.5"),
        ("1", "9223372036854775807", "9223372036854775808"),
        ("18446744073709551616", "2.0", "1.5"),
        ("18446744073709551616", "9" * 38, "9" * 39),
        ("0.5", "0.50", "0.25"),
        ("0.5", "123456789012345678", "1234567890123456789"),
        ("1e-7", "9007199254740992", "9007199254740993"),
        ("1e-7", "1.234567890123456", "9999999.1234567891"),
        ("1e-7", "1e300", "1e400"),
    ],
)
def test_a_number_that_its_column_would_round_is_an_error(
    engine: DuckDbEngine, seen: str, exact: str, rounded: str
) -> None:
    sampled = [f'{{"n":{seen}}}'.encode()]
    (answered,) = column_of(engine, table_of([f'{{"n":{exact}}}'.encode()], sampled), "n")
    assert is_same(answered, exact)
    with pytest.raises(CommandFailed, match=f"does not represent every number exactly.*Number: {rounded}"):
        column_of(engine, table_of([f'{{"n":{rounded}}}'.encode()], sampled), "n")


def test_text_of_another_form_is_null_and_counted(engine: DuckDbEngine) -> None:
    values = [b'{"it\'s":"2024-02-29"}', b'{"it\'s":"soon"}', b'{"it\'s":"2024-02-30"}', b'{"it\'s":null}']
    table = table_of(values, values[:1])
    assert [at and at.isoformat() for at in column_of(engine, table, "it's")] == ["2024-02-29", None, None, None]
    (line,) = engine.notes()
    assert line == (
        """t: column "it's" is null in 2 records, because it is DATE according to the sampled records; the first is """
        "in partition 0 at offset 1: 'soon'. The column value has the whole record; a larger --sample may make the "
        "column text"
    )
    assert column_of(engine, table_of(values[:1]), "it's") != []
    assert engine.notes() == []


@pytest.mark.parametrize("other", [b"garbage", b'{"n":2', b"[1]", b'"n"', b"7", b"null", b"", b"\xff", b'{"n":NaN}'])
def test_a_value_outside_the_sample_that_is_not_a_json_object_is_reported(engine: DuckDbEngine, other: bytes) -> None:
    table = table_of([b'{"n":1}', b'{"n":2}', other, b'{"n":3}', other], [b'{"n":1}'])
    assert column_of(engine, table, "n") == [1, 2, None, 3, None]
    (line,) = engine.notes()
    assert line.startswith(
        "t: all fields are null in 2 records with a value that is not a JSON object; the first is in "
    )
    assert "partition 0 at offset 2: " in line
    assert line.endswith('. Show that value with: SELECT value FROM "t" WHERE "partition" = 0 AND "offset" = 2')


@pytest.mark.parametrize(
    ("seen", "other"),
    [
        (b"1", b'"x"'), (b"1", b"true"), (b"1", b"{}"), (b"1.5", b'"x"'), (b"1e300", b'"x"'), (b"true", b"1"),
        (b"true", b'"x"'), (b"18446744073709551617", b'"x"'), (b'"2024-02-29"', b"5"),
    ],
)  # fmt: skip
def test_a_value_of_another_kind_than_the_sampled_ones_is_reported(
    engine: DuckDbEngine, seen: bytes, other: bytes
) -> None:
    lines = [b'{"n":%b}' % each for each in (seen, seen, other)]
    assert column_of(engine, table_of(lines, lines[:1]), "n")[2] is None
    (line,) = engine.notes()
    assert "column 'n' is null in 1 record, because it is" in line
    assert "in partition 0 at offset 2" in line


@pytest.mark.parametrize("statement", ["SELECT sum(n) FROM t", "SELECT a.n FROM t a JOIN t b USING (n)"])
def test_each_record_is_counted_once(engine: DuckDbEngine, statement: str) -> None:
    table = table_of([b'{"n":1}', b"x", b"y"] * 5, [b'{"n":1}'])
    list(engine.answer(statement, lambda names, optional=(): [table], lambda rows: None).rows)
    (line,) = engine.notes()
    assert "in 10 records" in line


def test_records_whose_fields_are_not_used_are_not_reported(engine: DuckDbEngine) -> None:
    table = table_of([b'{"n":1}', b"x"], [b'{"n":1}'])
    for statement in ("SELECT count(*) FROM t", "SELECT value FROM t", 'SELECT n FROM t WHERE "offset" = 0'):
        list(engine.answer(statement, lambda names, optional=(): [table], lambda rows: None).rows)
        assert engine.notes() == []


def test_count_of_reported_records_is_bounded(engine: DuckDbEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(null_reports, "COUNTED_MAX", 3)
    assert column_of(engine, table_of([b"x"] * 5, [b'{"n":1}']), "n") == [None] * 5
    assert "in at least 3 records" in engine.notes()[0]


def test_sums_of_short_fractions_are_exact(engine: DuckDbEngine) -> None:
    table = table_of([b'{"n":0.1}', b'{"n":0.20}', b'{"n":22390545.03}', b'{"n":1}'])
    statement = "SELECT sum(n), sum(n) FILTER (n < 0.3) = 0.3, typeof(any_value(n)) FROM t"
    ((total, same, kind),) = engine.answer(statement, lambda names, optional=(): [table], lambda rows: None).rows
    assert (total, same, kind) == (Decimal("22390546.33"), True, "DECIMAL(20,2)")


@settings(max_examples=100)
@given(st.lists(values.filter(lambda text: text != "null"), min_size=1, max_size=5))
def test_parts_are_the_text_of_their_json_with_all_digits(shared: DuckDbEngine, texts: list[str]) -> None:
    table = table_of([b'{"v":true}', b'{"v":{}}', *(f'{{"v":{text}}}'.encode() for text in texts)])
    assert table.shape is not None
    assert table.shape.fields == {"v": FieldKind.JSON}
    answered = column_of(shared, table, "v")[2:]
    assert [repr(exact_json(one)) for one in answered] == [repr(exact_json(text)) for text in texts]


@pytest.mark.parametrize("text", ["1.10", "-0", "5.0", "100.00", "1e5", "0.00001", "123456789.5", "0.123456789"])
def test_a_number_where_text_was_seen_has_its_digits(engine: DuckDbEngine, text: str) -> None:
    table = table_of([f'{{"v":{text}}}'.encode()], [b'{"v":"x"}'])
    assert column_of(engine, table, "v") == [text]


def test_json_is_the_shared_definition(engine: DuckDbEngine) -> None:
    odd = [b'{"n":2,"v":%s}' % content for content in NOT_JSON]
    bare = [content for content in NOT_JSON if content.startswith(b"\xef")]
    good = [f'{{"n":1,"v":{text}}}'.encode() for text in EXAMPLES if text[0] != "["]
    table = table_of([*odd, *bare, *good], good, ValueKind.JSON)
    assert column_of(engine, table, "n") == [None] * len([*odd, *bare]) + [1] * len(good)


@pytest.mark.parametrize("seen", ["1", "18446744073709551616", "1.5", "12345678901234567.89", "1e999", "true", '"x"'])
def test_null_and_what_is_missing_are_null(engine: DuckDbEngine, seen: str) -> None:
    table = table_of([f'{{"n":{seen}}}'.encode(), b'{"n":null}', b"{}", b"no"], [f'{{"n":{seen}}}'.encode()])
    first, *others = column_of(engine, table, "n")
    assert first is not None
    assert others == [None, None, None]


def test_another_kind_is_null_and_the_value_has_it(engine: DuckDbEngine) -> None:
    seen = [b'{"n":1,"f":1.5,"t":true,"d":"2024-02-29"}']
    table = table_of([b'{"n":"x","f":"nan","t":1,"d":"soon"}', b'{"n":true,"f":{},"t":"x","d":20240229}'], seen)
    assert table.shape is not None
    for name in table.shape.fields:
        assert column_of(engine, table, name) == [None, None]
    assert column_of(engine, table, "value")[0] == '{"n":"x","f":"nan","t":1,"d":"soon"}'
