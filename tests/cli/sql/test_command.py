"""The command as people call it, at a real node."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.cli.conftest import Cli

from tidelog_proto.names import INTERNAL_PREFIX

LINES = [
    {"carrier": "UA", "delay": 12, "at": {"gate": 3}},
    {"carrier": "AA", "delay": 3},
    {"carrier": "UA", "delay": -2, "note": "l'été"},
]


@pytest.fixture
def flights(cli: Cli) -> str:
    """Hold a topic whose name needs quotes, with three flights; the value is the name in quotes."""
    name = "flights.sql-1"
    if cli("topic", "describe", name).code:
        assert cli("topic", "create", name, "--partitions", 2).code == 0
        lines = "\n".join(json.dumps(line, ensure_ascii=False) for line in LINES).encode()
        assert cli("produce", name, "--key-field", "carrier", stdin=lines).code == 0
    return f'"{name}"'


def rows(cli: Cli, statement: str, *more: object) -> list[dict[str, Any]]:
    ended = cli("sql", statement, "--json", *more)
    assert ended.code == 0, ended.err
    return [json.loads(line) for line in ended.out.splitlines()]


def test_fields_of_json_are_columns(cli: Cli, flights: str) -> None:
    grouped = f"SELECT carrier, avg(delay) AS delay FROM {flights} GROUP BY 1 ORDER BY 1"
    assert rows(cli, grouped) == [{"carrier": "AA", "delay": 3.0}, {"carrier": "UA", "delay": 5.0}]
    table = cli("sql", grouped)
    assert [line.split() for line in table.out.splitlines() if line.strip()][-1] == ["UA", "5.0"]
    assert cli("sql", grouped, "--csv").out == "carrier,delay\nAA,3.0\nUA,5.0\n"
    (whole,) = rows(cli, f"SELECT * FROM {flights} WHERE delay = 12")
    assert list(whole) == [
        *("partition", "offset", "timestamp", "key", "carrier", "delay", "at", "note", "value", "headers", "tag")
    ]
    assert (whole["key"], whole["delay"], whole["at"], whole["note"]) == ("UA", 12, '{"gate":3}', None)
    assert rows(cli, f"SELECT value->>'$.at.gate' AS gate FROM {flights} WHERE delay = 12") == [{"gate": "3"}]


def test_topics_that_differ_in_case_only_are_not_taken_for_each_other(cli: Cli) -> None:
    for name, count in (("Twin", 1), ("twin", 2)):
        assert cli("topic", "create", name).code == 0
        assert cli("produce", name, stdin=b"x\n" * count).code == 0
    for name, count in (("Twin", 1), ("twin", 2)):
        assert rows(cli, f"SELECT count(*) AS n FROM {name}") == [{"n": count}]
    ended = cli("sql", "SELECT * FROM Twin a, twin b")
    assert ended.code != 0
    assert "topics 'Twin' and 'twin' differ only in case" in ended.err


def test_a_topic_may_be_named_twice(cli: Cli, flights: str) -> None:
    joined = f'SELECT count(*) AS n FROM {flights} a JOIN {flights} b USING (carrier) WHERE a."offset" >= 0'
    assert rows(cli, joined) == [{"n": 5}]
    assert rows(cli, f"SELECT note FROM {flights} LIMIT 1", "--values", "flights.sql-1=json") != []


def test_how_values_are_taken(cli: Cli, flights: str, topic: str) -> None:
    assert "carrier" not in rows(cli, f"SELECT * FROM {flights} LIMIT 1", "--values", "text")[0]
    assert cli("produce", topic, "--partition", 0, stdin=b'{"a":1}\n{"a":"x"}\nno\n{"a":2.5}\n').code == 0
    found = rows(cli, f'SELECT a, value FROM "{topic}" ORDER BY "offset"', "--values", "json")
    assert found[:3] == [{"a": "1", "value": '{"a":1}'}, {"a": '"x"', "value": '{"a":"x"}'}, {"a": None, "value": "no"}]
    assert cli("sql", "SELECT 1", "--values", "xml").code == 2


def test_one_value_that_is_not_json_hides_no_field(cli: Cli, topic: str) -> None:
    lines = b'{"amount":-1}\n\xffgarbage\n{"amount":2}\n'
    assert cli("produce", topic, "--partition", 0, stdin=lines).code == 0
    ended = cli("sql", f'SELECT count(*) AS n, sum(amount) AS amount FROM "{topic}"', "--json")
    assert (ended.code, json.loads(ended.out)) == (0, {"n": 3, "amount": 1})
    assert f"{topic}: 1 of 3 sampled values are not JSON objects" in ended.err


def test_error_names_why_a_field_is_not_a_column(cli: Cli, topic: str) -> None:
    assert cli("produce", topic, "--partition", 0, stdin=b'{"amount":-1}\ngarbage\n').code == 0
    statement = f'SELECT count(*) AS n FROM "{topic}" WHERE amount < 0'
    ended = cli("sql", statement)
    assert ended.code == 1
    assert '"amount" not found' in ended.err
    assert f"1 of its 2 sampled values are not JSON objects; use --values {topic}=json" in ended.err
    assert rows(cli, statement, "--values", f"{topic}=json") == [{"n": 1}]


def test_error_names_the_cast_of_a_json_string(cli: Cli, topic: str) -> None:
    assert cli("produce", topic, stdin=b'{"total":"9.90"}\n').code == 0
    for condition in ("total < 0", "abs(total) < 0"):
        ended = cli("sql", f'SELECT * FROM "{topic}" WHERE {condition}')
        assert ended.code == 1
        assert "a JSON string is a text column: cast it, for instance total::DECIMAL(18, 2)" in ended.err
    exact = rows(cli, f'SELECT sum(total::DECIMAL(18, 2)) AS total FROM "{topic}"')
    assert exact == [{"total": 9.9}]


@pytest.mark.parametrize("whole", [1, 2**53 + 1])
def test_a_number_that_is_not_whole_is_never_rounded(cli: Cli, topic: str, whole: int) -> None:
    line = b'{"n":%d}\n' % whole
    lines = line * 40 + b'{"n":1.5}\n' + line * 40
    assert cli("produce", topic, "--partition", 0, stdin=lines).code == 0
    ended = cli("sql", f'SELECT sum(n) FROM "{topic}"', "--sample", 10)
    assert (ended.code, ended.out) == (1, "")
    assert "n is BIGINT according to the sampled records" in ended.err
    assert "--sample" in ended.err
    assert "1.5" in ended.err
    ended = cli("sql", f'SELECT sum(n) AS n FROM "{topic}"', "--json")
    assert ended.out == f'{{"n": {80 * whole + 1}.5}}\n'
    others = 'SELECT max(n) AS n, typeof(max(n)) AS kind FROM "{}" WHERE "offset" <> 40'
    assert rows(cli, others.format(topic), "--sample", 10) == [{"n": whole, "kind": "BIGINT"}]


@pytest.mark.parametrize("numbers", [("18446744073709551617", "18446744073709551616"), ("9007199254740993", "0.5")])
def test_ids_of_any_size_are_distinct(cli: Cli, topic: str, numbers: tuple[str, str]) -> None:
    assert cli("produce", topic, stdin="".join(f'{{"id":{number}}}\n' for number in numbers).encode()).code == 0
    ended = cli("sql", f'SELECT id, count(*) AS n FROM "{topic}" GROUP BY id ORDER BY id DESC', "--csv")
    assert [Decimal(line.split(",")[0]) for line in ended.out.splitlines()[1:]] == sorted(map(Decimal, numbers))[::-1]
    assert rows(cli, f'SELECT count(*) AS n FROM "{topic}" WHERE id = {numbers[0]}') == [{"n": 1}]


def test_decimals_are_printed_with_all_digits(cli: Cli, topic: str) -> None:
    assert cli("produce", topic, stdin=b'{"a":12345678901234567.89,"b":{"c":1.10}}\n').code == 0
    statement = f'SELECT a, b FROM "{topic}"'
    assert cli("sql", statement, "--json").out == '{"a": 12345678901234567.89, "b": "{\\"c\\":1.10}"}\n'
    assert cli("sql", statement, "--csv").out == 'a,b\n12345678901234567.89,"{""c"":1.10}"\n'
    assert " 12345678901234567.89 " in cli("sql", statement).out


def test_dates_and_times_are_recognised_and_other_text_is_reported(cli: Cli, topic: str) -> None:
    line = b'{"day":"2024-02-29","seen":"2024-02-29T10:00:00.5+02:00","note":"2024"}\n'
    assert cli("produce", topic, stdin=line).code == 0
    ended = cli(
        "sql",
        f"SELECT day + 1 AS next, seen, note FROM \"{topic}\" WHERE seen > TIMESTAMPTZ '2024-01-01 00:00:00Z'",
        "--json",
    )
    assert json.loads(ended.out)["seen"] == "2024-02-29T08:00:00.500000Z"
    assert json.loads(ended.out)["next"].startswith("2024-03-01")
    assert "ISO 8601" not in ended.err
    lines = line * 10 + b'{"day":"soon"}\n' + line * 10
    assert cli("produce", topic, "--partition", 0, stdin=lines).code == 0
    ended = cli("sql", f'SELECT count(day), count(seen) FROM "{topic}"', "--sample", 2, "--values", "json")
    place = f"{topic}: column 'day' is null in 1 record"
    assert f"{place}, because it is DATE according to the sampled records" in ended.err
    assert "'soon'" in ended.err


@pytest.mark.parametrize("output", [(), ("--json",), ("--csv",)])
def test_records_outside_the_sample_that_are_not_json_are_reported(
    cli: Cli, topic: str, output: tuple[str, ...]
) -> None:
    line = b'{"n":1}\n'
    assert cli("produce", topic, "--partition", 0, stdin=line * 9 + b"garbage\n{\n" + line * 9).code == 0
    ended = cli("sql", f'SELECT sum(n) AS n, count(*) AS c FROM "{topic}"', "--sample", 4, *output)
    assert (ended.code, "18" in ended.out) == (0, True)
    assert "all fields are null in 2 records with a value that is not a JSON object" in ended.err
    assert "the first is in partition 0 at offset 9: 'garbage'" in ended.err


def test_a_file_with_a_byte_order_mark_loses_no_record(cli: Cli, topic: str, tmp_path: Path) -> None:
    (tmp_path / "x.ndjson").write_bytes(b'\xef\xbb\xbf{"a":1}\n{"a":2}\n')
    assert cli("produce", topic, tmp_path / "x.ndjson").code == 0
    assert rows(cli, f'SELECT sum(a) AS a, count(a) AS n FROM "{topic}"') == [{"a": 3, "n": 2}]


def test_nanoseconds_of_a_parquet_file_are_printed(cli: Cli, tmp_path: Path) -> None:
    stamps = [1_700_000_000_123_456_789, None]
    zones = {"at": pa.array(stamps, pa.timestamp("ns")), "zoned": pa.array(stamps, pa.timestamp("ns", "UTC"))}
    pq.write_table(pa.table(zones), tmp_path / "x.parquet")
    first, second = rows(cli, f"SELECT * FROM '{tmp_path}/x.parquet' ORDER BY 1 NULLS LAST")
    assert first == {"at": "2023-11-14T22:13:20.123456789", "zoned": "2023-11-14T22:13:20.123456789Z"}
    assert second == {"at": None, "zoned": None}


@pytest.mark.parametrize(("where", "word"), [("offset < 5", "offset"), ("to = 1", "to")])
def test_a_column_that_has_the_name_of_a_word_is_to_be_quoted(cli: Cli, flights: str, where: str, word: str) -> None:
    ended = cli("sql", f"SELECT * FROM {flights} WHERE {where}")
    assert (ended.code, ended.out) == (1, "")
    assert f'{word} is a reserved word: quote a column of that name, "{word}"' in ended.err
    assert "is a reserved word" not in cli("sql", f"SELECT * FRM {flights}").err


def test_fields_of_an_empty_topic_are_not_known(cli: Cli, topic: str) -> None:
    ended = cli("sql", f'SELECT n FROM "{topic}"')
    assert (ended.code, ended.out) == (1, "")
    assert f"{topic}: no records yet from which to detect columns" in ended.err


def test_following_waits_for_the_first_records_of_a_topic(cli: Cli, topic: str, node: str) -> None:
    statement = f'SELECT n FROM "{topic}" WHERE n > 0'
    command = [sys.executable, "-m", "tidelog_cli", "sql", statement, "--follow", "--json"]
    environ = os.environ | {"TIDELOG_BOOTSTRAP": node}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environ, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stderr.readline() == f"{topic}: no records yet from which to detect columns\n"
        for number in (1, 2):
            assert cli("produce", topic, stdin=b'{"n":%d}\n' % number).code == 0
            assert json.loads(process.stdout.readline()) == {"n": number}
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130


def test_an_empty_topic_and_one_that_is_read_from_later_on(cli: Cli, flights: str, topic: str) -> None:
    assert rows(cli, f'SELECT * FROM "{topic}"') == []
    assert rows(cli, f"SELECT count(*) AS n FROM {flights}", "--since", "2100-01-01") == [{"n": 0}]
    assert rows(cli, f"SELECT count(*) AS n FROM {flights}", "--since", "1h") == [{"n": 3}]
    assert cli("sql", "SELECT 1", "--since", "3").code == 2


def test_unknown_topic_is_reported(cli: Cli, flights: str) -> None:
    ended = cli("sql", "SELECT * FROM flight")
    assert (ended.code, ended.out) == (1, "")
    assert "topic 'flight' does not exist" in ended.err
    assert "Topics: " in ended.err
    assert flights in ended.err
    assert "line 1, column 1" in cli("sql", "SELEC 1").err
    assert "line 1, column 8" in cli("sql", f"SELECT nope FROM {flights}").err
    assert cli("sql", "SELECT 1", "--json", "--csv").code == 2
    assert cli("sql", "SELECT 1", "--follow").code == 2
    assert cli("sql", f"SELECT * FROM {flights}", "--bootstrap", "127.0.0.1:1").code == 3


@pytest.mark.parametrize("engine", ["duckdb", "spark"])
def test_topics_are_listed(cli: Cli, flights: str, topic: str, engine: str) -> None:
    named = [row["name"] for row in rows(cli, "SHOW TABLES", "--engine", engine)]
    assert {flights.strip('"'), topic} <= {*named}
    assert named == sorted(named)
    assert not [name for name in named if name.startswith(INTERNAL_PREFIX)]
    assert [row["name"] for row in rows(cli, " -- all\n show /* my */ tables ; ", "--limit", 1)] == named[:1]
    assert cli("sql", "SHOW TABLES", "--follow").code == 2
    assert "SHOW TABLES" in cli("sql", "DROP TABLE x").err


def test_table_reports_further_rows(cli: Cli, flights: str) -> None:
    assert "the first 2 rows" in cli("sql", f"SELECT * FROM {flights}", "--limit", 2).err
    assert cli("sql", f"SELECT * FROM {flights}", "--limit", 3).err == ""


def test_following_runs_the_statement_again_until_interrupted(cli: Cli, topic: str, node: str) -> None:
    assert cli("produce", topic, stdin=b'{"n":1}\n').code == 0
    statement = f'SELECT count(*) AS count FROM "{topic}"'
    command = [sys.executable, "-m", "tidelog_cli", "sql", statement, "--follow", "--json"]
    environ = os.environ | {"TIDELOG_BOOTSTRAP": node}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environ, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == '{"count": 1}\n'
        assert cli("produce", topic, stdin=b'{"n":1}\n').code == 0
        assert process.stdout.readline() == '{"count": 2}\n'
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
        assert process.stderr.read() == ""


def test_following_a_filter_prints_the_rows_of_new_records(cli: Cli, topic: str, node: str) -> None:
    assert cli("produce", topic, stdin=b'{"n":1}\n{"n":-1}\n').code == 0
    statement = f'SELECT n, n * 2 AS twice FROM "{topic}" WHERE n > 0'
    command = [sys.executable, "-m", "tidelog_cli", "sql", statement, "--follow", "--csv"]
    environ = os.environ | {"TIDELOG_BOOTSTRAP": node}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environ, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert [process.stdout.readline() for _ in range(2)] == ["n,twice\n", "1,2\n"]
        for number in (2, 3):
            assert cli("produce", topic, stdin=b'{"n":%d}\n{"n":-1}\n' % number).code == 0
            assert process.stdout.readline() == f"{number},{number * 2}\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
        assert process.stderr.read() == ""
