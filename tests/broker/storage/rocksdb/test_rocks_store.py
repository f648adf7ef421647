"""Groups that are written in steps, and stores that continue after they were sealed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from tests.broker.storage.rocksdb.faults import database_of
from tests.broker.storage.rocksdb.stand import Stand

from tidelog.testing.engine_batches import batch, read_all


@pytest.fixture
def stand(tmp_path: Path) -> Iterator[Stand]:
    made = Stand(tmp_path / "node")
    yield made
    made.close()


def test_large_group_is_written_in_steps(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    """`rocksdict` holds Python's lock during a write, so a write has about 1 MiB."""
    store = stand.create()
    store.segment_bytes = 1 << 28
    database = cast(Any, database_of(stand.engine))
    plain, writes = database.write, []

    def noted(changes: Any) -> None:
        writes.append(changes)
        plain(changes)

    monkeypatch.setattr(database, "write", noted)
    group = [batch([b"k%d" % number], size_bytes=400_000) for number in range(7)]
    stand.append(group)
    assert len(writes) == 4
    assert read_all(store) == stand.written[0].batches
    stand.sync()
    store.close()
    again = stand.open()
    assert again.damage is None
    assert read_all(again) == stand.written[0].batches


def test_times_of_an_index_ascend_over_groups(stand: Stand) -> None:
    store = stand.create()
    for timestamp_us in (50, 10, 90):
        stand.append([batch([b"k"], timestamp_us=timestamp_us), batch([b"k"], timestamp_us=1)])
    expected = [0, 0, 4, None]
    assert [store.reader.find_by_time(time_us) for time_us in (5, 50, 51, 91)] == expected
    store.close()
    again = stand.open()
    assert [again.reader.find_by_time(time_us) for time_us in (5, 50, 51, 91)] == expected


def test_sealed_store_continues_in_another_part(stand: Stand) -> None:
    store = stand.create()
    stand.append([batch([b"a"])])
    store.seal()
    assert [part.is_growing for part in store.segments] == [False]
    store.close()
    stand.open(sealed_end_offset=1).close()
    again = stand.open()
    stand.append([batch([b"b"])])
    stand.sync()
    assert [(part.base_offset, part.is_growing) for part in again.segments] == [(0, False), (1, True)]
    assert read_all(again) == stand.written[0].batches
