from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.cli.conftest import Cli


@pytest.fixture
def flights(tmp_path: Path) -> Path:
    path = tmp_path / "flights.parquet"
    times = pa.array([0, 1], pa.timestamp("us", "UTC"))
    pq.write_table(pa.table({"carrier": ["UA", "AA"], "at": times, "fare": pa.array([1, 2], pa.uint8())}), path)
    return path


def test_a_schema_is_created_shown_checked_and_changed(cli: Cli, flights: Path) -> None:
    created = cli("topic", "create", "shown", "--schema", flights, "--key", "carrier", "--time", "at")
    assert (created.code, created.err) == (0, "field 'fare': uint8 becomes int16\n")
    assert "schema 1" in cli("topic", "describe", "shown").out
    assert json.loads(cli("topic", "describe", "shown", "--json").out)["schema_number"] == 1
    shown = json.loads(cli("topic", "schema", "show", "shown", "--json").out)
    assert [(each["path"], each["type"], each["role"]) for each in shown["fields"]] == [
        ("carrier", "string", "key"),
        ("at", "timestamp[us, UTC]", "time"),
        ("fare", "int16", None),
    ]
    assert "timestamp[us, UTC]" in cli("topic", "schema", "show", "shown").out
    for language, text in (
        ("arrow", "fare: int16"),
        ("json-schema", '"int16"'),
        ("avro", '"name": "Shown"'),
        ("python", "class Shown:"),
    ):
        assert text in cli("topic", "schema", "show", "shown", "--as", language).out
    change = ("--add", "gate string", "--rename", "fare=price", "--widen", "fare:int32")
    checked = cli("topic", "schema", "check", "shown", *change, "--json")
    assert {each["what"] for each in json.loads(checked.out)["changes"]} == {"added", "renamed", "widened"}
    assert json.loads(cli("topic", "schema", "show", "shown", "--json").out)["number"] == 1
    evolved = cli("topic", "schema", "evolve", "shown", *change, "--expect", 1, "--raise-floor")
    assert (evolved.code, evolved.out.splitlines()[0]) == (0, "schema 1 of topic shown is now schema 2:")
    assert "'gate' added: string" in evolved.out
    again = cli("topic", "schema", "evolve", "shown", "--drop", "gate", "--expect", 1)
    assert (again.code, "has schema 2 now" in again.err) == (1, True)
    assert json.loads(cli("topic", "schema", "show", "shown", "--number", 1, "--json").out)["number"] == 1


@pytest.mark.parametrize(
    ("change", "code", "said"),
    [
        (("--drop", "carrier"), 1, "the roles of a topic are permanent"),
        (("--widen", "fare"), 2, "such as flight:int64"),
        (("--rename", "fare=a", "--rename", "fare=b"), 2, "twice"),
        (("--widen", "fare:int8"), 1, "'fare'"),
        ((), 1, "change something"),
        (("--schema", "missing.parquet"), 2, "missing.parquet"),
        (("--schema", "schema.txt"), 2, "unknown ending"),
    ],
)
def test_changes_that_are_not_allowed_are_refused(
    cli: Cli, flights: Path, change: tuple[str, ...], code: int, said: str
) -> None:
    roles = ("--key", "carrier", "--time", "at")
    assert cli("topic", "create", "refused", "--schema", flights, *roles, "--exist-ok").code == 0
    ended = cli("topic", "schema", "check", "refused", *change)
    assert (ended.code, said in ended.err) == (code, True), ended.err


def test_topics_without_a_schema_and_roles_without_one_are_refused(cli: Cli, topic: str) -> None:
    shown = cli("topic", "schema", "show", topic)
    assert (shown.code, "is not typed" in shown.err) == (1, True)
    created = cli("topic", "create", "roles", "--key", "a")
    assert (created.code, "pass schema=" in created.err) == (1, True)
