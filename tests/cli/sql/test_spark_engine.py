"""The other engine: the same columns, and the same answers to the same statements."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import Any

import pytest
from tests.cli.conftest import Cli
from tests.cli.sql.test_into_topic import ROWS, create
from tests.json_texts import EXAMPLES, NOT_JSON

from tidelog_cli.base.failures import CommandFailed
from tidelog_cli.sql.answers import plain
from tidelog_cli.sql.columns import ValueKind
from tidelog_cli.sql.duckdb_engine import DuckDbEngine
from tidelog_cli.sql.spark_engine import SparkEngine, last_said, other_spellings
from tidelog_cli.sql.topics import Topics

SPARK_WARNS = pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning")


def test_error_while_reading_rows_has_its_cause() -> None:
    assert last_said("[USER_RAISED_EXCEPTION] t: n is not whole SQLSTATE: P0001") == "t: n is not whole"
    traceback = "Traceback (most recent call last):\n  File x\n    a b\n{}\n"
    in_python = (
        traceback.format("KeyError: 1") + "\nThe above exception\n\n" + traceback.format("p.LossError: gone\nnote")
    )
    assert last_said(in_python) == "p.LossError: gone"
    assert last_said("disk\n  at java.base") == "disk"


def _bare(text: str | None) -> str | None:
    """Return the text of a string as Spark gives it where a field was of several kinds: without its quotes."""
    return json.loads(text) if text is not None and text.startswith('"') else text


@pytest.mark.long
@pytest.mark.spark
@SPARK_WARNS
def test_both_engines_answer_the_same(cli: Cli, topic: str, node: str) -> None:
    lines = b'{"carrier":"UA","delay":12,"place":{"gate":3}}\n{"carrier":"AA","delay":-3}\n{"carrier":"UA","delay":1}\n'
    assert cli("produce", topic, "--key-field", "carrier", "--timestamp", "2013-01-01", stdin=lines).code == 0
    topics = Topics(node, "earliest", {}, 1000)
    spark, duckdb = SparkEngine(768, {"bootstrap": node}), DuckDbEngine(256)

    def asked(engine: SparkEngine | DuckDbEngine, statement: str) -> list[Any]:
        answer = engine.answer(statement, topics.provide, lambda rows: None)
        return [list(answer.names), *(list(map(plain, row)) for row in answer.rows)]

    def refused(statement: str, said: str) -> None:
        with pytest.raises(CommandFailed, match=said):
            asked(spark, statement)

    try:
        statement = (
            "SELECT carrier, avg(delay) AS delay, max(timestamp) AS newest, max(place) AS place, max(value) AS value "
            f"FROM {topic} GROUP BY carrier ORDER BY carrier"
        )
        assert len(asked(duckdb, statement)) == 3
        assert asked(spark, statement) == asked(duckdb, statement)
        counted = "SELECT count(*) AS n FROM"
        statement = f"{counted} {topic} t WHERE t.offset < 1 UNION ALL {counted} {topic} ORDER BY n"
        assert asked(duckdb, statement)[-1] == [3]
        assert asked(spark, statement) == asked(duckdb, statement), "the filter of one use is not the other one's"
        assert cli("topic", "create", "ids").code == 0
        assert cli("produce", "ids", stdin=b'{"id":%d}\n{"id":1}\n' % (2**53 + 1)).code == 0
        statement = "SELECT id FROM ids ORDER BY id"
        assert asked(spark, statement) == asked(duckdb, statement) == [["id"], [1], [2**53 + 1]]
        few = Topics(node, "earliest", {}, 4)
        for name, whole in (("parts", 1), ("far", 2**53 + 1)):
            line = b'{"n":%d}\n' % whole
            assert cli("topic", "create", name).code == 0
            assert cli("produce", name, stdin=line * 9 + b'{"n":1.5}\n' + line * 9).code == 0
            message = rf"\A{name}: n is BIGINT according to the sampled records[^\n]* 1[.]5\Z"
            with pytest.raises(CommandFailed, match=message):
                list(spark.answer(f"SELECT n FROM {name}", few.provide, lambda rows: None).rows)
        odd = "".join(
            f'{{"n":2,"v":{content.decode()}}}\n' for content in NOT_JSON if not {*content} & {0xFF, 0xED, 0x0A}
        )
        good = "".join(f'{{"n":1,"d":12345678901234567.89,"h":{2**64},"v":{text}}}\n' for text in EXAMPLES)
        dated = '{"day":"2024-02-29","seen":"2024-02-29T10:00:00.5+02:00","local":"2024-02-29 10:00"}\n'
        assert cli("topic", "create", "mixed").code == 0
        assert cli("produce", "mixed", stdin=(dated + good + odd + '\ufeff{"n":3}\n').encode()).code == 0
        mixed = Topics(node, "earliest", {None: ValueKind.JSON}, 1000)

        def of_mixed(engine: SparkEngine | DuckDbEngine) -> list[list[Any]]:
            statement = "SELECT n, d, h, v, day, seen, local FROM mixed ORDER BY n NULLS FIRST, value"
            return [list(map(plain, row)) for row in engine.answer(statement, mixed.provide, lambda rows: None).rows]

        by_spark, by_duckdb = of_mixed(spark), of_mixed(duckdb)
        assert by_spark == [[*row[:3], _bare(row[3]), *row[4:]] for row in by_duckdb]
        assert {repr(row[:3]) for row in by_spark} == {
            "[None, None, None]",
            f"[1, Decimal('12345678901234567.89'), Decimal('{2**64}')]",
        }
        refused("SELECT * FROM nothing", "topic 'nothing' does not exist")
        refused("SELECT 1 FROM t GROUP x", "line 1, column 23")
        assert cli("topic", "create", topic.upper()).code == 0
        refused(f"SELECT a.* FROM {topic} a, {topic.upper()} b", "differ only in case")
        assert asked(spark, f"SELECT count(*) AS n FROM {topic.upper()}") == [["n"], [0]]
        refused("DROP TABLE x", "is not a query.*redirect the output of --csv")
    finally:
        duckdb.close()
        spark.close()


@pytest.mark.long
@pytest.mark.spark
@SPARK_WARNS
def test_values_outside_the_sample_that_are_not_json_are_reported_by_spark(cli: Cli, topic: str, node: str) -> None:
    line = b'{"n":1,"m":2}\n'
    other = b'garbage\n[1]\n{"n":\n7\nnull\n'
    assert cli("produce", topic, "--partition", 0, stdin=line * 9 + other + line * 9).code == 0
    tombstone = b'{"value":null}\n'
    assert cli("produce", topic, "--partition", 0, "--format", "records", stdin=tombstone).code == 0
    topics = Topics(node, "earliest", {}, 4)
    spark = SparkEngine(768, {"bootstrap": node})

    def asked(statement: str) -> tuple[list[Any], list[str]]:
        rows = list(spark.answer(statement, topics.provide, lambda rows: None).rows)
        return rows, spark.notes()

    report = (
        f"{topic}: all fields are null in 5 records with a value that is not a JSON object; the first is in partition "
        f"0 at offset 9: 'garbage'. Show that value with: SELECT value FROM `{topic}` WHERE `partition` = 0 AND "
        "`offset` = 9"
    )
    try:
        assert asked(f"SELECT sum(n), count(*) FROM {topic}") == ([(18, 24)], [report])
        assert asked(f"SELECT count(*), max(value) FROM {topic}")[1] == []
        assert len(asked(f"SELECT n, value FROM {topic}")[0]) == 24
        assert spark.notes() == [report]
        assert asked(f"SELECT count(*) FROM {topic} a JOIN {topic} b ON a.n = b.m - 1")[1] == [report]
        assert asked(report.rpartition(": ")[2]) == ([("garbage",)], [])
    finally:
        spark.close()


@pytest.mark.long
@pytest.mark.spark
def test_spark_follows_a_topic_until_interrupted(cli: Cli, topic: str, node: str) -> None:
    assert cli("produce", topic, stdin=b'{"n":1}\n').code == 0
    statement = f"SELECT count(*) AS count, sum(n) AS sum FROM {topic}"
    command = [sys.executable, "-m", "tidelog_cli", "sql", statement, "--engine", "spark", "--follow", "--json"]
    environ = os.environ | {"TIDELOG_BOOTSTRAP": node}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environ, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        first = process.stdout.readline()
        assert first == '{"count": 1, "sum": 1}\n', process.stderr.read()
        assert cli("produce", topic, stdin=b'{"n":5}\n').code == 0
        assert process.stdout.readline() == '{"count": 2, "sum": 6}\n'
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
        assert "Traceback" not in process.stderr.read()


def test_missing_engine_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark_tidelog", None)
    with pytest.raises(CommandFailed, match="pip install 'tidelog\\[spark\\]'"):
        SparkEngine(64, {})


def test_spellings_that_differ_only_in_case() -> None:
    statement = 'SELECT \'T\' FROM t, T, `a.B`, `A.b` -- tT\nWHERE x = "it\\"T" /* Tx\n T */ AND `A.b-c` = 1'
    assert other_spellings(statement, ["t"]) == ["T"]
    assert other_spellings(statement.replace(", T,", ","), ["t"]) == []
    assert other_spellings(statement, ["a.B"]) == ["A.b"]


@pytest.mark.long
@pytest.mark.spark
@SPARK_WARNS
def test_both_engines_read_the_same_rows_of_a_typed_topic(cli: Cli, topic: str, node: str) -> None:
    name = f"{topic}-typed"
    create(name)
    assert cli("produce", name, stdin="\n".join(map(json.dumps, ROWS)).encode()).code == 0
    topics = Topics(node, "earliest", {}, 1000)
    spark, duckdb = SparkEngine(768, {"bootstrap": node}), DuckDbEngine(256)
    found = []
    for engine, quote in ((spark, "`"), (duckdb, '"')):
        try:
            statement = f"SELECT * FROM {quote}{name}{quote} ORDER BY _offset"
            answer = engine.answer(statement, topics.provide, lambda rows: None)
            found.append([list(answer.names), *(list(map(plain, row)) for row in answer.rows)])
        finally:
            engine.close()
    assert len(found[0]) == 1 + len(ROWS)
    assert repr(found[0]) == repr(found[1])
