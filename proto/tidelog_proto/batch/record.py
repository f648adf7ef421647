"""One record as an object, created lazily from a batch's columns; the hot paths do not use it."""

from __future__ import annotations

from typing import NamedTuple


class Record(NamedTuple):
    """A record of one partition.

    Attributes:
        offset: its position in its partition, 0-based.
        timestamp_us: µs since 1970 (UTC), set by the user or from the producer's clock.
        key: determines the partition; None for no key.
        value: the payload; None is a tombstone.
        headers: (name, value) pairs in the order in which they were sent; names may repeat, values may be None.
        tag: a short label for filtering; None for no tag.
    """

    offset: int
    timestamp_us: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    tag: str | None
