"""Counts of records that are null in a column of a JSON field, because the column's type cannot represent the value."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Final, NamedTuple

COUNTED_MAX: Final = 100_000
"""Maximum number of records that a statement remembers, so that a record that is read twice is counted once."""
TEXT_CHARS_MAX: Final = 60
"""Maximum length of a value that a report quotes."""


class Record(NamedTuple):
    """A record whose value, or the text of one of its fields, is `text`."""

    partition: int
    offset: int
    text: str

    def __str__(self) -> str:
        """Return the place and the text."""
        return f"the first is in partition {self.partition} at offset {self.offset}: {self.text!r}"


class NullRecord(NamedTuple):
    """The place of a record that is null in a column, and the reason."""

    topic: str
    partition: int
    offset: int
    reason: str


@dataclass(slots=True)
class _Reported:
    """The records that were reported for one topic and field.

    Attributes:
        column_type: type of the column; empty for values that are not JSON objects.
        first: the first record.
        places: partition and offset of each record.
        more: whether there may be records that are not in `places`, because `COUNTED_MAX` was reached.
    """

    column_type: str
    first: Record
    places: set[tuple[int, int]] = field(default_factory=set)
    more: bool = False


class NullReports:
    """Counts the values that are null in the columns of one statement, by cause, in bounded memory."""

    def __init__(self) -> None:
        self._reported: dict[tuple[str, str], _Reported] = {}
        self._counted = 0
        self._changing = threading.Lock()  # engines report from several threads

    def add(self, topic: str, name: str, column_type: str, record: Record) -> None:
        """Count a record whose value is null in a column.

        Args:
            topic: the topic's name.
            name: the field; empty if the value is not a JSON object.
            column_type: type of the field's column; empty if the value is not a JSON object.
            record: position of the record, with the text of the field, or of the whole value.
        """
        place = record.partition, record.offset
        record = record._replace(text=record.text[:TEXT_CHARS_MAX])
        with self._changing:
            one = self._reported.setdefault((topic, name), _Reported(column_type, record))
            one.first = min(one.first, record)
            if place in one.places:
                return
            if self._counted >= COUNTED_MAX:
                one.more = True
                return
            one.places.add(place)
            self._counted += 1

    def notes(self) -> list[str]:
        """Return a line for each cause, with the number of records, the first one and the remedy."""
        return [self._note(topic, name, one) for (topic, name), one in self._reported.items()]

    def records(self) -> list[NullRecord]:
        """Return the remembered records, each once with its first reason, in the order of their places."""
        found: dict[tuple[str, int, int], NullRecord] = {}
        for (topic, name), one in self._reported.items():
            reason = f"field {name!r} does not fit {one.column_type}" if name else "the value is not a JSON object"
            for partition, offset in one.places:
                found.setdefault((topic, partition, offset), NullRecord(topic, partition, offset, reason))
        return [found[place] for place in sorted(found)]

    def _note(self, topic: str, name: str, one: _Reported) -> str:
        records = counted(max(1, len(one.places)), is_bound=one.more)
        if not one.column_type:
            return not_objects(topic, records, one.first, '"')
        return (
            f"{topic}: column {name!r} is null in {records}, because it is {one.column_type} according to the sampled "
            f"records; {one.first}. The column value has the whole record; a larger --sample may make the column text"
        )


def counted(count: int, *, is_bound: bool = False) -> str:
    """Return a number of records; `is_bound` if there may be more."""
    return f"{'at least ' if is_bound else ''}{count:,} record{'' if count == 1 else 's'}"


def not_objects(topic: str, records: str, first: Record, quote: str) -> str:
    """Return the report of values that are not JSON objects; `quote` quotes names in SQL."""
    place = f"{quote}partition{quote} = {first.partition} AND {quote}offset{quote} = {first.offset}"
    query = f"SELECT value FROM {quote}{topic}{quote} WHERE {place}"  # noqa: S608 - a text for the user
    cause = "with a value that is not a JSON object"
    return f"{topic}: all fields are null in {records} {cause}; {first}. Show that value with: {query}"
