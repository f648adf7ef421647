"""Records of JSON that do not fit the columns of a topic, at a real node."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.cli.conftest import Cli

LINES = [b'{"n":%d}' % number for number in range(40)]
BAD = {5: b'{"n":1.5}', 6: b"garbage", 7: b'{"n":"text"}', 8: b'{"n":99999999999999999999}'}


@pytest.fixture
def mixed(cli: Cli, topic: str) -> str:
    """Hold a topic whose sampled records are whole numbers; four others are not."""
    records = [BAD.get(at, line) for at, line in enumerate(LINES)]
    lines = [
        json.dumps({"value": line.decode(), "key": str(at), "headers": [["h", "1"]]}) for at, line in enumerate(records)
    ]
    produced = cli("produce", topic, "--partition", 1, "--format", "records", stdin="\n".join(lines).encode())
    assert produced.code == 0, produced.err
    return topic


def query(topic: str) -> tuple[str, ...]:
    return (
        "sql",
        f'SELECT count(*) AS records, count(n) AS numbers, sum(n) AS n FROM "{topic}"',
        "--json",
        "--sample",
        "6",
    )


def test_a_number_that_does_not_fit_ends_the_statement_by_default(cli: Cli, mixed: str) -> None:
    ended = cli(*query(mixed))
    assert (ended.code, ended.out) == (1, "")
    assert "n is BIGINT according to the sampled records" in ended.err


def test_records_that_do_not_fit_are_null_and_counted(cli: Cli, mixed: str) -> None:
    ended = cli(*query(mixed), "--bad-records", "null")
    assert ended.code == 0, ended.err
    assert json.loads(ended.out) == {"records": 40, "numbers": 36, "n": sum(range(40)) - 5 - 6 - 7 - 8}
    assert "column 'n' is null in 3 records, because it is BIGINT according to the sampled records" in ended.err
    assert "all fields are null in 1 record with a value that is not a JSON object" in ended.err


def test_records_that_do_not_fit_are_published_to_another_topic(cli: Cli, mixed: str) -> None:
    letters = f"{mixed}.letters"
    assert cli("topic", "create", letters).code == 0
    ended = cli(*query(mixed), "--dead-letters", letters)
    assert ended.code == 0, ended.err
    assert json.loads(ended.out)["numbers"] == 36
    assert f"published 4 records to {letters}" in ended.err
    found = [json.loads(line) for line in cli("consume", letters, "--json").out.splitlines()]
    assert [one["key"] for one in found] == ["5", "6", "7", "8"]
    assert [headers_of(one) for one in found] == [
        {"h": "1", "tidelog-topic": mixed, "tidelog-partition": "1", "tidelog-offset": str(at), "tidelog-error": reason}
        for at, reason in {
            5: "field 'n' does not fit BIGINT",
            6: "the value is not a JSON object",
            7: "field 'n' does not fit BIGINT",
            8: "field 'n' does not fit BIGINT",
        }.items()
    ]


def headers_of(record: dict[str, Any]) -> dict[str, str]:
    return dict(record["headers"])


def test_invalid_uses_are_refused(cli: Cli, mixed: str) -> None:
    for options, said in (
        (("--dead-letters", "no-such-topic"), "no-such-topic"),
        (("--dead-letters", "x", "--follow"), "--follow with --dead-letters requires a statement that only filters"),
        (("--bad-records", "null", "--engine", "spark"), "require --engine duckdb"),
    ):
        ended = cli(*query(mixed), *options)
        assert ended.code != 0
        assert said in ended.err
