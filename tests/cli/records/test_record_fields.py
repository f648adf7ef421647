from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from tidelog_cli.base.failures import CommandFailed
from tidelog_cli.records.record_fields import Additions, with_tombstones, without_headers
from tidelog_proto.batch.columns import HEADERS_TYPE

NOTHING = Additions.of(key=None, timestamp=None, headers=None, tag=None)


def test_every_record_gets_them() -> None:
    additions = Additions.of(key="k", timestamp=1_000_000, headers=["a=1", "b=x=y", "c="], tag="t")
    (batch,) = additions.to_all(iter([pa.record_batch({"value": [b"1", b"2"], "key": [b"old", b"old"]})]))
    row = {
        "key": b"k",
        "timestamp": datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC),
        "headers": [{"key": "a", "value": b"1"}, {"key": "b", "value": b"x=y"}, {"key": "c", "value": b""}],
        "tag": "t",
    }
    assert batch.to_pylist() == [{"value": value} | row for value in (b"1", b"2")]


def test_nothing_to_add_changes_nothing() -> None:
    batch = pa.record_batch({"value": [b"1"]})
    assert next(NOTHING.to_all(iter([batch]))) is batch


def test_headers_and_tags_of_the_records_are_not_lost() -> None:
    batch = pa.record_batch({"value": [b"1"], "tag": ["own"]})
    with pytest.raises(CommandFailed, match="omit --tag"):
        next(Additions.of(key=None, timestamp=None, headers=None, tag="t").to_all(iter([batch])))


def batch_of(kind: pa.DataType) -> pa.RecordBatch:
    rows = [["cut"], ["tidelog-topic", "a", "tidelog-error"], ["tidelog-error"], None, [], ["a", "a", "b"]]
    pairs = [None if row is None else [(name, name.encode()) for name in row] for row in rows]
    lists = (
        pairs
        if pa.types.is_map(kind)
        else [
            None if row is None else [dict(zip(("key", "value"), pair, strict=True)) for pair in row] for row in pairs
        ]
    )
    headers = pa.array(lists, kind)
    return pa.record_batch({"value": pa.array([b"%d" % at for at in range(6)]), "headers": headers}).slice(1)


@pytest.mark.parametrize("kind", [HEADERS_TYPE, pa.map_(pa.string(), pa.binary())], ids=["list", "map"])
@pytest.mark.parametrize(
    ("names", "left"),
    [
        (["tidelog-*"], [["a"], [], [], [], ["a", "a", "b"]]),
        (["tidelog-error", "a"], [["tidelog-topic"], [], [], [], ["b"]]),
        (["b", "tidelog-t*"], [["a", "tidelog-error"], ["tidelog-error"], [], [], ["a", "a"]]),
        (["tidelog.*", "A", "tidelog-", "topic"], None),
    ],
)
def test_headers_are_left_out_by_name(kind: pa.DataType, names: list[str], left: list[list[str]] | None) -> None:
    all_of_them = [["tidelog-topic", "a", "tidelog-error"], ["tidelog-error"], [], [], ["a", "a", "b"]]
    (kept,) = without_headers(iter([batch_of(kind)]), names)
    assert kept.column("value").to_pylist() == [b"1", b"2", b"3", b"4", b"5"]
    read: list[Any] = kept.column("headers").to_pylist()
    assert [[pair["key"] for pair in row] for row in read] == (left or all_of_them)
    assert all(pair["value"] == pair["key"].encode() for row in read for pair in row)
    (none,) = without_headers(iter([batch_of(kind)]), ["*"])
    assert none.schema.names == ["value"]


def test_headers_of_another_type_are_refused() -> None:
    batch = pa.record_batch({"value": [b"1"], "headers": ["text"]})
    with pytest.raises(CommandFailed, match="column headers"):
        next(without_headers(iter([batch]), ["*"]))


def test_records_without_headers_have_none_to_leave_out() -> None:
    batch = pa.record_batch({"value": [b"1"]})
    assert next(without_headers(iter([batch]), ["*"])) is batch


@pytest.mark.parametrize("text", ["name", "=value", ""])
def test_invalid_header_is_refused(text: str) -> None:
    with pytest.raises(CommandFailed, match="NAME=VALUE"):
        Additions.of(key=None, timestamp=None, headers=[text], tag=None)


def test_an_empty_value_may_become_a_tombstone() -> None:
    (batch,) = with_tombstones(iter([pa.record_batch({"value": pa.array([b"1", b"", None], pa.binary())})]))
    assert batch.column("value").to_pylist() == [b"1", None, None]
    (text,) = with_tombstones(iter([pa.record_batch({"value": ["1", ""]})]))
    assert text.column("value").to_pylist() == ["1", None]
