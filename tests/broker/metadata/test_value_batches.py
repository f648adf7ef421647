"""Division of records into batches."""

from __future__ import annotations

from tidelog_broker.core.schemas import StoredRecord
from tidelog_broker.metadata.value_batches import VALUES_BYTES_MAX, value_batches


def divided(sizes: list[int], records_max: int = 1000) -> list[list[int]]:
    batches = value_batches([StoredRecord(bytes(size)) for size in sizes], records_max)
    return [[len(value) for value in values] for values in batches]


def test_batches_are_bounded_by_number_and_size() -> None:
    half = VALUES_BYTES_MAX // 2
    assert divided([]) == []
    assert divided([1, 2, 3], records_max=2) == [[1, 2], [3]]
    assert divided([half, half, 1]) == [[half, half], [1]]
    assert divided([1, 2 * half, 1]) == [[1], [2 * half], [1]]
    assert divided([3 * half, 1]) == [[3 * half], [1]], "a larger one is alone"
