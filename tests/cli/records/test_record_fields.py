from __future__ import annotations

from datetime import UTC, datetime

import pyarrow as pa
import pytest

from tidelog_cli.base.failures import CommandFailed
from tidelog_cli.records.record_fields import Additions, with_tombstones

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


@pytest.mark.parametrize("text", ["name", "=value", ""])
def test_invalid_header_is_refused(text: str) -> None:
    with pytest.raises(CommandFailed, match="NAME=VALUE"):
        Additions.of(key=None, timestamp=None, headers=[text], tag=None)


def test_an_empty_value_may_become_a_tombstone() -> None:
    (batch,) = with_tombstones(iter([pa.record_batch({"value": pa.array([b"1", b"", None], pa.binary())})]))
    assert batch.column("value").to_pylist() == [b"1", None, None]
    (text,) = with_tombstones(iter([pa.record_batch({"value": ["1", ""]})]))
    assert text.column("value").to_pylist() == ["1", None]
