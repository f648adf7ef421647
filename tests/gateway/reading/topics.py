"""A topic of four partitions with a few records."""

from __future__ import annotations

from typing import Any

from tests.gateway.fake_log import FakeLog

from tidelog_proto.batch.record_batch import columns_of

PATH = "/v1/topics/t/records"
COUNTS = (5, 0, 3, 1)


async def fill(log: FakeLog) -> None:
    """Have the records of `EVERYTHING`."""
    log.ids["t"] = bytes(range(16))
    log.logs["t"] = [[] for _ in COUNTS]
    for partition, count in enumerate(COUNTS):
        for at in range(count):
            columns = columns_of(
                [f"{partition}:{at}".encode()], keys=[b"even" if at % 2 == 0 else b"odd"], timestamps_us=[at * 1000]
            )
            await log.append("t", partition, columns)


def places(document: dict[str, Any]) -> list[tuple[int, int]]:
    return [(record["partition"], record["offset"]) for record in document["records"]]


EVERYTHING = [(partition, at) for partition, count in enumerate(COUNTS) for at in range(count)]
