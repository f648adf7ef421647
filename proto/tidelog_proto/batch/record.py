"""One record as a reader sees it: made lazily from a batch's columns, never kept by the hot paths."""

from __future__ import annotations

from typing import NamedTuple


class Record(NamedTuple):
    """A record of one partition.

    Attributes:
        offset: its position in its partition, 0-based.
        timestamp_us: µs since 1970 (UTC), given by the producer or taken from its clock.
        key: what chose the partition; None for no key.
        value: the message; None is a tombstone.
        headers: (name, value) pairs in the order in which they were sent; names may repeat, values may be None.
        tag: a short label to filter by; None for no tag.
    """

    offset: int
    timestamp_us: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    tag: str | None
