"""Division of the records of a state log into batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, Protocol

from tidelog_proto.limits import MIB

VALUES_BYTES_MAX: Final = 12 * MIB
"""Maximum size of the values of a batch; a topic and its first schema are less, so that they are in one batch."""


class StateRecord(Protocol):
    """A protobuf message, or an equivalent of one, that a state log writes as the value of a record."""

    def SerializeToString(self) -> bytes:  # noqa: N802 - protobuf's name
        """Return the message's bytes."""
        ...


def value_batches(records: Iterable[StateRecord], records_max: int) -> Iterator[list[bytes]]:
    """Yield the values of records in order, divided into batches of at most `records_max`."""
    values: list[bytes] = []
    size_bytes = 0
    for record in records:
        value = record.SerializeToString()
        if values and (len(values) == records_max or size_bytes + len(value) > VALUES_BYTES_MAX):
            yield values
            values, size_bytes = [], 0
        values.append(value)
        size_bytes += len(value)
    if values:
        yield values
