"""The default methods of readers, for engines without faster ones."""

from __future__ import annotations

import pytest
from tests.broker.storage.build import append, batch
from tests.broker.storage.logs import create, new_disk

from tidelog_broker.storage.engine.reading import EpochReading


@pytest.mark.parametrize(("time_us", "offset", "found"), [(1, 0, 0), (5, 0, 2), (5, 3, 2), (5, 4, None), (9, 0, None)])
def test_time_is_found_by_headers(time_us: int, offset: int, found: int | None) -> None:
    log = create(new_disk())
    for stamp_us in (1, 5, 3):
        append(log, [batch(records=2, timestamp_us=stamp_us)])
    assert EpochReading.find_by_time(log.reader, time_us, offset) == found


def test_nothing_is_synced_ahead_where_nothing_is_to_be_synced() -> None:
    log = create(new_disk())
    append(log, [batch()])
    EpochReading.sync_ahead(log.reader, 0)
    assert log.synced_offset == 0
