from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tidelog_cli.failures import CommandFailed
from tidelog_cli.sql.columns import shape_of
from tidelog_cli.sql.duckdb_engine import DuckDbEngine, explained, view_of


@pytest.fixture
def engine() -> Iterator[DuckDbEngine]:
    engine = DuckDbEngine(64)
    yield engine
    engine.close()


def test_a_statement_without_topics(engine: DuckDbEngine) -> None:
    answer = engine.answer("SELECT range AS n FROM range(2500)", lambda names, optional=(): [], lambda rows: None)
    assert (answer.names, [row[0] for row in answer.rows]) == (["n"], list(range(2500)))


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("DROP TABLE x", "one statement that reads"),
        ("SELECT 1; SELECT 2", "one statement that reads"),
        ("", "one statement that reads"),
        ("SELECT\n  FROM x WHERE", "line 2, column"),
        ("SELECT engine FROM self", "nothing of this program"),
        ("INSERT INTO x SELECT 1", "reads"),
    ],
)
def test_what_is_refused(engine: DuckDbEngine, statement: str, said: str) -> None:
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


def test_the_place_of_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    message = "Parser Error: syntax error\n\nLINE 2: FROM x WHERE\n             ^"
    assert str(explained(message, "SELECT 1\nFROM x WHERE")) == "line 2, column 6: Parser Error: syntax error"
    assert capsys.readouterr().err == "FROM x WHERE\n     ^\n"
    statement = "x" * 100 + " here " + "y" * 100
    cut = f"E\n\nLINE 1: ...xxx here yyy...\n{' ' * 15}^"
    assert str(explained(cut, statement)) == "line 1, column 102: E"


def test_names_and_fields_are_quoted() -> None:
    made = view_of('a"b', shape_of([([], [b'{"it\'s \\"x\\"":"v"}'])], None))
    assert made.startswith('CREATE OR REPLACE TEMPORARY VIEW "a""b" AS SELECT "partition"')
    assert 'j."it\'s ""x""" AS "it\'s ""x"""' in made
    assert """'{"it''s \\\\"x\\\\"": "VARCHAR"}'""".replace("\\\\", "\\") in made


def test_what_to_install_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
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
