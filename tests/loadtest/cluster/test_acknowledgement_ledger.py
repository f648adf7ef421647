from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from tidelog import Client
from tidelog.produce.receipts import ReceiptRange
from tidelog_loadtest.cluster.acknowledgement_ledger import Acked, Audit, Ledger, audit, compare, numbers_of

NUMBERS = np.array([7, 8, 9, 0, 1], np.uint64)


def test_records_carry_their_numbers() -> None:
    ledger = Ledger(20)
    for expected in (0, 3):
        first, records = ledger.records(3)
        assert first == expected
        assert list(numbers_of(records.column("value"))) == list(range(first, first + 3))
        assert [len(value.as_py()) for value in records.column("value")] == [20] * 3


def test_numbers_are_read_from_a_part_of_a_column() -> None:
    _, records = Ledger(8).records(10)
    assert list(numbers_of(records.column("value").slice(4, 3))) == [4, 5, 6]
    assert list(numbers_of(records.column("value").cast(pa.large_binary()))) == list(range(10))


def test_records_at_their_acknowledged_offsets_are_not_lost() -> None:
    acked = [Acked(0, 100, 7, 3), Acked(0, 103, 0, 2)]
    assert compare(acked, NUMBERS, 100) == Audit(acked=5, read=5)


@pytest.mark.parametrize(
    ("acked", "lost"),
    [
        (Acked(0, 101, 7, 2), 2),  # at another offset
        (Acked(0, 103, 0, 4), 2),  # the log ends too early
        (Acked(0, 110, 5, 3), 3),  # after its end
    ],
)
def test_missing_records_are_lost(acked: Acked, lost: int) -> None:
    assert compare([acked], NUMBERS, 100).lost == lost


def test_duplicates_are_counted() -> None:
    assert compare([], np.array([1, 2, 1, 1], np.uint64), 0) == Audit(read=4, twice=2)


def test_ranges_of_a_split_batch_are_consecutive() -> None:
    ledger = Ledger(8)
    ledger.acknowledged(10, [ReceiptRange(1, 5, 3), ReceiptRange(1, 20, 2)])
    assert ledger.of(1, 0) == [Acked(1, 5, 10, 3), Acked(1, 20, 13, 2)]
    assert ledger.of(1, 6) == [Acked(1, 20, 13, 2)]
    assert ledger.of(0, 0) == []


@pytest.mark.e2e
async def test_a_log_is_compared_with_the_ledger(client: Client) -> None:
    await client.create_topic("audited", partitions=2)
    ledger = Ledger(30)
    async with client.producer("audited") as producer:
        for partition in (0, 1, 0):
            first, records = ledger.records(40)
            ledger.acknowledged(first, (await producer.send_arrow(records, partition=partition)).ranges)
        _, unacknowledged = ledger.records(5)
        await producer.send_arrow(unacknowledged, partition=1)
    found, ends = await audit(client, "audited", ledger, {0: 0, 1: 0})
    assert found == Audit(acked=120, read=125)
    assert ends == {0: 80, 1: 45}
    assert (await audit(client, "audited", ledger, {0: 40, 1: 45}))[0] == Audit(acked=40, read=40)
