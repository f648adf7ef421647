"""Typed topics in `tidelog sql`, and answers that become records of a topic; at a real node."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from tests.cli.conftest import Cli

from tidelog.sync import Client

FIELDS = {
    "id": "int64 required",
    "flag": "bool",
    "small": "int8",
    "amount": "decimal128(38, 2)",
    "rate": "float64",
    "short": "float32",
    "name": "string",
    "raw": "binary",
    "day": "date32",
    "at": "timestamp[us, UTC]",
    "local": "timestamp[us]",
    "tags": "list<string>",
    "place": "struct<city: string, zip: int32>",
}
ROWS: list[dict[str, Any]] = [
    {
        "id": 2**53 + 1,
        "flag": True,
        "small": -128,
        "amount": "999999999999999999999999999999999999.99",
        "rate": "NaN",
        "short": 0.1,
        "name": "é\n,",
        "raw": "/w==",
        "day": "0001-01-01",
        "at": "2026-11-30T12:00:00.000001Z",
        "local": "9999-12-31T23:59:59.999999",
        "tags": ["a", None, ""],
        "place": {"city": "Köln", "zip": None},
    },
    {"id": 2, **dict.fromkeys(list(FIELDS)[1:])},
    {"id": 3, **dict.fromkeys(list(FIELDS)[1:]), "rate": "-Infinity", "tags": [], "place": {"city": None, "zip": 5}},
]


@pytest.fixture
def typed(cli: Cli, request: pytest.FixtureRequest) -> str:
    """Create a typed topic with a field of each type, and publish `ROWS`."""
    name = request.node.name.replace("[", ".").replace("]", "") + ".typed"
    create(name)
    lines = "\n".join(map(json.dumps, ROWS)).encode()
    published = cli("produce", name, stdin=lines)
    assert published.code == 0, published.err
    return str(name)


def create(name: str) -> None:
    with Client(os.environ["TIDELOG_BOOTSTRAP"]) as client:
        client.create_topic(name, schema=[f"{name} {kind}" for name, kind in FIELDS.items()])


def rows(cli: Cli, statement: str, *more: object) -> list[dict[str, Any]]:
    ended = cli("sql", statement, "--json", *more)
    assert ended.code == 0, ended.err
    assert not ended.err
    return [json.loads(line) for line in ended.out.splitlines()]


def test_columns_are_those_of_the_schema_and_all_values_exact(cli: Cli, typed: str) -> None:
    described = {row["column_name"]: row["column_type"] for row in rows(cli, f'DESCRIBE "{typed}"')}
    assert described == {
        "id": "BIGINT",
        "flag": "BOOLEAN",
        "small": "TINYINT",
        "amount": "DECIMAL(38,2)",
        "rate": "DOUBLE",
        "short": "FLOAT",
        "name": "VARCHAR",
        "raw": "BLOB",
        "day": "DATE",
        "at": "TIMESTAMP WITH TIME ZONE",
        "local": "TIMESTAMP",
        "tags": "VARCHAR[]",
        "place": "STRUCT(city VARCHAR, zip INTEGER)",
        "_partition": "INTEGER",
        "_offset": "BIGINT",
        "_timestamp": "TIMESTAMP WITH TIME ZONE",
        "_key": "BLOB",
        "_headers": 'STRUCT("key" VARCHAR, "value" BLOB)[]',
        "_tag": "VARCHAR",
    }
    found = rows(
        cli, f'SELECT * EXCLUDE (amount, short), CAST(amount AS VARCHAR) AS amount FROM "{typed}" ORDER BY _offset'
    )
    for row, expected in zip(found, ROWS, strict=True):
        assert {name: row[name] for name in FIELDS if name != "short"} == {
            name: value for name, value in expected.items() if name != "short"
        }
    whole = cli("sql", f'SELECT amount FROM "{typed}" WHERE id > 9007199254740992', "--json")
    assert whole.out == '{"amount": 999999999999999999999999999999999999.99}\n'
    assert rows(cli, f'SELECT id FROM "{typed}" WHERE rate > 1') == [{"id": 2**53 + 1}], "NaN is the greatest number"


def test_a_topic_without_rows_has_columns(cli: Cli) -> None:
    create("no-rows")
    assert rows(cli, 'SELECT count(*) AS n, max(place.zip) AS zip FROM "no-rows"') == [{"n": 0, "zip": None}]


def test_values_of_a_typed_topic_are_not_chosen(cli: Cli, typed: str) -> None:
    ended = cli("sql", f'SELECT 1 FROM "{typed}"', "--values", f"{typed}=json")
    assert ended.code == 2
    assert "the topic is typed, and its columns are the fields of its schema; omit the option" in ended.err
    assert len(rows(cli, f'SELECT id FROM "{typed}"', "--values", "json")) == 3


def test_statements_with_a_plan_a_pivot_and_a_file(cli: Cli, typed: str, tmp_path: Path) -> None:
    pivoted = rows(cli, f'PIVOT (SELECT id, coalesce(place.zip, 0) AS zip FROM "{typed}") ON zip USING count(id)')
    assert pivoted == [{"0": 2, "5": 1}]
    plan = cli("sql", f'EXPLAIN SELECT name FROM "{typed}" WHERE id = 2')
    assert plan.code == 0
    assert "│" in plan.out
    assert len(plan.out.splitlines()) > 3
    file = tmp_path / "it's.parquet"
    text = str(file).replace("'", "''")
    copied = cli("sql", f"COPY (SELECT * FROM \"{typed}\") TO '{text}'", "--json")
    assert json.loads(copied.out) == {"Count": 3}
    assert pq.read_table(file)["id"].to_pylist() == [2**53 + 1, 2, 3]
    missing = cli("sql", "EXPLAIN SELECT * FROM missing")
    assert missing.code == 1
    assert "topic 'missing' does not exist" in missing.err
    assert "--follow is for a SELECT" in cli("sql", "--follow", f'EXPLAIN SELECT * FROM "{typed}"').err
    refused = cli("sql", f"COPY \"{typed}\" FROM '{text}'")
    assert refused.code == 1


def test_an_answer_becomes_rows_of_a_typed_topic(cli: Cli, typed: str) -> None:
    target = f"{typed}-copy"
    create(target)
    names = ", ".join(f'"{name}"' for name in reversed(FIELDS))
    copied = cli("sql", "--into", target, f'SELECT {names} FROM "{typed}" ORDER BY _offset')
    assert (copied.code, copied.out) == (0, f"published 3 records to {target}\n"), copied.err
    lines = [cli("consume", name).out for name in (typed, target)]
    assert lines[0] == lines[1] != ""
    summed = cli("sql", "--into", target, f'SELECT count(*) AS id, sum(small) AS small FROM "{typed}"', "--json")
    assert json.loads(summed.out)["records"] == 1
    assert rows(cli, f'SELECT id, small FROM "{target}" WHERE _offset = 3') == [{"id": 3, "small": -128}]


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("SELECT * FROM {}", "the columns _partition, _offset, which a new record gets from its topic"),
        ("SELECT id, id AS other FROM {}", "'other'"),
        ("SELECT id::VARCHAR AS id FROM {}", "id"),
        ("SELECT id + 0.5 AS id FROM {}", "id"),
        ("SELECT sum(id) * 1000000 AS id FROM {}", "id"),
        ("SELECT id, 300 AS small FROM {}", "the answer, row 1: column 'small'"),
        ("SELECT NULL::BIGINT AS id FROM {}", "required"),
    ],
)
def test_values_that_do_not_fit_are_not_published(cli: Cli, query: str, said: str) -> None:
    source = "exact-source"
    if cli("topic", "describe", source).code:
        create(source)
        assert cli("produce", source, stdin=b'{"id":9007199254740993}').code == 0
    before = cli("sql", f'SELECT count(*) FROM "{source}"', "--csv").out
    ended = cli("sql", "--into", source, query.format(f'"{source}"'))
    assert ended.code != 0
    assert said in ended.err
    assert cli("sql", f'SELECT count(*) FROM "{source}"', "--csv").out == before


def test_an_answer_becomes_json_in_another_topic(cli: Cli, typed: str, topic: str) -> None:
    query = f'SELECT id, name, amount, rate FROM "{typed}" ORDER BY id DESC'
    published = cli("sql", "--into", topic, "--key-field", "name", query)
    assert published.code == 0, published.err
    (line,) = [each for each in cli("consume", topic).out.splitlines() if "NaN" in each]
    assert line == cli("sql", "--json", query, "--limit", 1).out.strip()
    keys = rows(cli, f'SELECT key, value FROM "{topic}" WHERE key IS NOT NULL', "--values", "text")
    assert [row["key"] for row in keys] == ["é\n,"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--key-field", "id"), "--key-field requires --into"),
        (("--into", "x", "--csv"), "--into publishes all rows"),
        (("--into", "x", "--limit", "3"), "--into publishes all rows"),
        (("--into", "x", "--follow"), "requires a statement that only filters and maps"),
        (("--into", "missing-else"), "missing-else"),
    ],
)
def test_invalid_uses_of_into_are_refused(cli: Cli, options: tuple[str, ...], said: str) -> None:
    ended = cli("sql", "SELECT 1 AS id", *options)
    assert ended.code != 0
    assert said in ended.err
