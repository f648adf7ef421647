from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.cli.conftest import Cli
from tests.proto.schemas import schema_of

from tidelog_cli.base.failures import CommandFailed
from tidelog_cli.records.input_formats import Format
from tidelog_cli.records.typed_input import typed_rows
from tidelog_proto.schema.data_types import FLOAT32, FLOAT64
from tidelog_proto.schema.fields import Field

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "count": {"type": ["integer", "null"], "format": "int32"},
        "at": {"type": ["string", "null"], "format": "date-time"},
        "tags": {"type": ["array", "null"], "items": {"type": "string"}},
    },
    "required": ["name"],
}


@pytest.fixture
def typed(cli: Cli, request: pytest.FixtureRequest) -> str:
    name = re.sub(r"[^A-Za-z0-9]", "-", request.node.name)
    created = cli("topic", "create", name, "--schema", "-", "--key", "name", stdin=json.dumps(SCHEMA).encode())
    assert created.code == 0, created.err
    return str(name)


def rows(cli: Cli, topic: str) -> list[object]:
    return [json.loads(line) for line in cli("consume", topic).out.splitlines()]


def row(name: str, count: int | None = None, at: str | None = None, tags: list[str] | None = None) -> object:
    return {"name": name, "count": count, "at": at, "tags": tags}


def test_files_and_lines_become_rows(cli: Cli, typed: str, tmp_path: Path) -> None:
    parquet = tmp_path / "a.parquet"
    pq.write_table(
        pa.table({"tags": [["x"], None], "name": ["a", "b"], "count": pa.array([1, None], pa.int64())}), parquet
    )
    (tmp_path / "c.csv").write_text("name,count,at\nc,3,2026-01-01T00:00:00Z\nd,,\n")
    (tmp_path / "e.ndjson").write_text('{"name": "e", "tags": []}\n\n')
    for name, count in (("a.parquet", 2), ("c.csv", 2), ("e.ndjson", 1)):
        ended = cli("produce", typed, tmp_path / name)
        assert (ended.code, ended.out) == (0, f"published {count} record{'s'[: count > 1]} to {typed}\n"), ended.err
    assert cli("produce", typed, stdin=b'{"name": "f"}\n').code == 0
    assert rows(cli, typed) == [
        row("a", 1, tags=["x"]),
        row("b"),
        row("c", 3, "2026-01-01T00:00:00Z"),
        row("d"),
        row("e", tags=[]),
        row("f"),
    ]
    printed = json.loads(cli("consume", typed, "--json", "--max", 1).out)
    assert (printed["key"], printed["value"]) == ("a", row("a", 1, tags=["x"]))
    assert json.loads(cli("get", typed, "f").out) == row("f")


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (("a.csv", "name,count\na,1.5\n"), "invalid value '1.5'"),
        (("a.csv", "name,other\na,1\n"), "['other']"),
        (("a.csv", "count\n1\n"), "'name'"),
        (("a.csv", "name,tags\na,x\n"), "lists or structs, which CSV does not have"),
        (("a.ndjson", '{"name": 1}\n'), "expected string, got the int 1"),
        (("a.ndjson", '{"name": "a", "count": "1"}\n'), "expected int32, got the str"),
        (("a.txt", "text\n"), "not valid JSON"),
    ],
)
def test_values_that_do_not_fit_are_refused(
    cli: Cli, typed: str, tmp_path: Path, source: tuple[str, str], said: str
) -> None:
    name, text = source
    (tmp_path / name).write_text(text)
    ended = cli("produce", typed, tmp_path / name)
    assert ended.code != 0
    assert said in ended.err or "JSON" in said, ended.err
    assert rows(cli, typed) == []


FLOATS = schema_of(Field(0, "wide", FLOAT64), Field(0, "half", FLOAT32))


@pytest.mark.parametrize(
    ("name", "text"), [("wide", "1e400"), ("wide", "-1e400"), ("wide", "1e-400"), ("half", "4e38"), ("half", "1e-60")]
)
def test_floats_of_csv_outside_the_range_of_their_type_are_refused(tmp_path: Path, name: str, text: str) -> None:
    """Arrow reads them as infinity or 0."""
    (tmp_path / "a.csv").write_text(f"{name}\n0.5\n{text}\n")
    with pytest.raises(CommandFailed, match=f"field '{name}': '{text}' is outside the range of float"):
        list(typed_rows(tmp_path / "a.csv", Format.CSV, FLOATS, None))


def test_infinities_zeros_and_missing_floats_of_csv_are_taken(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("wide,half\ninf,-Infinity\n0.0,-0e5\n,0.1\n")
    (batch,) = typed_rows(tmp_path / "a.csv", Format.CSV, FLOATS, None)
    assert batch.to_pylist() == [
        {"wide": math.inf, "half": -math.inf},
        {"wide": 0.0, "half": 0.0},
        {"wide": None, "half": pytest.approx(0.1)},
    ]


def test_options_of_untyped_topics_are_refused(cli: Cli, typed: str, tmp_path: Path) -> None:
    (tmp_path / "a.ndjson").write_text('{"name": "a"}\n')
    for option in (("--key", "k"), ("--tag", "t"), ("--tombstones",), ("--key-field", "name"), ("--header", "a=b")):
        ended = cli("produce", typed, tmp_path / "a.ndjson", *option)
        assert (ended.code, "is typed" in ended.err) == (2, True), ended.err
    assert cli("produce", typed, "--format", "records", stdin=b'{"value": 1}\n').code == 2
    assert rows(cli, typed) == []


def test_the_preview_prints_what_each_column_becomes(cli: Cli, typed: str, tmp_path: Path) -> None:
    path = tmp_path / "p.parquet"
    pq.write_table(pa.table({"count": pa.array([1], pa.int8()), "other": [1]}), path)
    shown = json.loads(cli("produce", typed, path, "--preview", "--json").out)
    assert [(each["column"], each["becomes"]) for each in shown] == [
        ("count", "int32"),
        ("other", "refused: no such field"),
        ("name", "refused: required"),
        ("at", "null"),
        ("tags", "null"),
    ]
    assert "refused: required" in cli("produce", typed, path, "--preview").out
    assert rows(cli, typed) == []
    assert cli("produce", typed, "--preview").code == 2


def test_published_rows_are_read_by_sql_and_export(cli: Cli, typed: str, tmp_path: Path) -> None:
    assert cli("produce", typed, stdin=b'{"name": "a"}\n').code == 0
    answer = cli("sql", f'select name from "{typed}"', "--json")
    assert json.loads(answer.out) == {"name": "a"}, answer.err
    exported = cli("export", typed, tmp_path / "x.parquet")
    assert exported.code == 0, exported.err
    assert (tmp_path / "x.parquet").exists()


def test_rows_are_filtered(cli: Cli, typed: str) -> None:
    sent = [{"name": f"n{n}", "count": n, "at": f"2026-01-0{n}T00:00:00Z"} for n in range(1, 7)]
    assert cli("produce", typed, stdin="\n".join(map(json.dumps, sent)).encode()).code == 0
    for where, names in (
        ("count > 2 and not name in ('n4', 'n5')", ["n3", "n6"]),
        ("at < '2026-01-02T12:00:00Z' or count = 5", ["n1", "n2", "n5"]),
        ("count is null", []),
    ):
        ended = cli("consume", typed, "--where", where)
        assert (ended.code, [json.loads(line)["name"] for line in ended.out.splitlines()]) == (0, names), ended.err
    limited = cli("consume", typed, "--where", "count >= 2", "--max", 2)
    assert [json.loads(line)["name"] for line in limited.out.splitlines()] == ["n2", "n3"]
    for where, message in (
        ("count >", "where: the filter has the end at character 8; expected a value"),
        ("size = 1", "where: no field is named 'size'"),
    ):
        ended = cli("consume", typed, "--where", where)
        assert ended.code != 0
        assert message in ended.err
