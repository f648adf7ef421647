from __future__ import annotations

from collections.abc import Iterator

import pytest

from tidelog_cli.base.failures import CommandFailed
from tidelog_cli.sql.by_record import is_by_record
from tidelog_cli.sql.duckdb_engine import DuckDbEngine


@pytest.fixture(scope="module")
def engine() -> Iterator[DuckDbEngine]:
    engine = DuckDbEngine(64)
    yield engine
    engine.close()


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT * FROM t",
        'FROM "t-1"',
        "SELECT * EXCLUDE (value), upper(a) AS b FROM t AS x WHERE x.n > 3 AND NOT (a IS NULL OR b IN (1, 2))",
        "SELECT CASE WHEN n BETWEEN 1 AND 2 THEN 'x' ELSE value->>'$.a' END, try_cast(n AS INT), -n % 2 FROM t",
        "SELECT a || 'x', n + 1 FROM t WHERE a LIKE 'x%' AND timestamp > now() - INTERVAL 1 HOUR;",
        "SELECT COLUMNS('a.*') FROM t",
        "SELECT list_transform([a], lambda x: x + 1), CAST(value AS JSON)->'$.a' FROM t",
    ],
)
def test_rows_of_one_record_each(engine: DuckDbEngine, statement: str) -> None:
    assert engine.is_by_record(statement)


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT count(*) FROM t",
        "SELECT 1 + max(n) FROM t",
        "SELECT a FROM t GROUP BY a",
        "SELECT a FROM t GROUP BY ALL",
        "SELECT a FROM t HAVING true",
        "SELECT DISTINCT a FROM t",
        "SELECT DISTINCT ON (a) a, b FROM t",
        "SELECT a FROM t ORDER BY a",
        "SELECT a FROM t LIMIT 3",
        "SELECT a FROM t OFFSET 3",
        "SELECT a FROM t USING SAMPLE 3",
        "SELECT a FROM t TABLESAMPLE 10%",
        "SELECT row_number() OVER () FROM t",
        "SELECT a FROM t QUALIFY row_number() OVER () < 3",
        "SELECT a FROM t, u",
        "SELECT a FROM t JOIN u USING (a)",
        "SELECT a FROM t UNION ALL SELECT a FROM t",
        "SELECT a FROM (SELECT a FROM t)",
        "SELECT a FROM t WHERE a > (SELECT avg(a) FROM t)",
        "SELECT a FROM t WHERE a IN (SELECT a FROM u)",
        "SELECT a FROM t WHERE EXISTS (FROM u)",
        "WITH u AS (FROM t) SELECT a FROM t",
        "SELECT unnest([1, 2]) FROM t",
        "SELECT wavg(a, b) FROM t",
        "SELECT nobody_knows(a) FROM t",
        "SELECT list_transform([a], lambda x: x + (SELECT 1)) FROM t",
        "DESCRIBE t",
        "SUMMARIZE t",
        "SELECT 1",
        "FROM range(3)",
        "VALUES (1)",
    ],
)
def test_rows_of_more_than_one(engine: DuckDbEngine, statement: str) -> None:
    assert not engine.is_by_record(statement)


def test_statement_that_writes_is_refused(engine: DuckDbEngine) -> None:
    for statement, said in (("DROP TABLE t", "a single query"), ("SELECT a FROM", "syntax error")):
        with pytest.raises(CommandFailed, match=said):
            engine.is_by_record(statement)


PLAIN = {
    "type": "SELECT_NODE",
    "aggregate_handling": "STANDARD_HANDLING",
    "select_list": [{"class": "COLUMN_REF"}],
    "from_table": {"type": "BASE_TABLE"},
}


@pytest.mark.parametrize(
    "statements",
    [
        None,
        [],
        [None],
        [{"node": None}],
        [{"node": PLAIN}, {"node": PLAIN}],
        [{"node": PLAIN, "more": 1}],
        [{"node": {**PLAIN, "at_the_end": None}}],
        [{"node": {**PLAIN, "select_list": [{"class": "A_NEW_ONE"}]}}],
    ],
)
def test_unknown_node_types_are_not_by_record(statements: object) -> None:
    assert is_by_record([{"node": PLAIN}], lambda name: True)
    assert not is_by_record(statements, lambda name: True)
