"""`tidelog sql --into`: the rows of an answer as records of a topic.

In a typed topic the columns of the answer are fields, and each value must fit its field exactly. In another topic each
row is a JSON object, as `--json` prints it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from tidelog_cli.base.failures import EXIT_USAGE, CommandFailed
from tidelog_cli.records.fitting_rows import FittingRows
from tidelog_cli.records.publishing import AcksChoice, Chunk, Published, publish_all
from tidelog_cli.sql.answers import Answer, distinct, json_of, plain
from tidelog_proto.schema.topic_schema import Schema

ROWS_PER_CHUNK: Final = 8192
_OF_RECORDS: Final = ("_partition", "_offset")


@dataclass(frozen=True, slots=True)
class IntoTopic:
    """Publishes answers to a topic.

    Attributes:
        topic: the topic's name.
        bootstrap: the value of --bootstrap.
        key_field: the column whose text is the key of a record; None: records have no key. Only if the topic is not
            typed.
    """

    topic: str
    bootstrap: str
    key_field: str | None = None

    def publish(self, answer: Answer) -> Published:
        """Publish all rows, and return the totals.

        Raises:
            CommandFailed: a value does not fit its field, or a batch was refused; with the number of acknowledged
                records in the message.
            TidelogError: the topic does not exist, or no node can be reached.
        """
        return publish_all(
            self.topic,
            self._objects(answer),
            acks=AcksChoice.QUORUM,
            compression=None,
            bootstrap=self.bootstrap,
            typed=lambda schema: self._rows(answer, schema),
        )

    def _rows(self, answer: Answer, schema: Schema) -> Iterator[Chunk]:
        if self.key_field is not None:
            raise CommandFailed(
                f"topic {self.topic} is typed, and its schema has the key; omit --key-field", EXIT_USAGE
            )
        if answer.batches is None:
            raise CommandFailed(f"topic {self.topic} is typed; use --engine duckdb to write to it", EXIT_USAGE)
        if given := [name for name in answer.names if name in _OF_RECORDS]:
            raise CommandFailed(
                f"the answer has the columns {', '.join(given)}, which a new record gets from its topic; leave them "
                "out, for example with EXCLUDE (_partition, _offset, _timestamp)",
                EXIT_USAGE,
            )
        fitting = FittingRows(schema, "the answer")
        for batch in answer.batches:
            fitting.check(batch)
            yield Chunk(batch, None)

    def _objects(self, answer: Answer) -> Iterator[Chunk]:
        names = distinct(answer.names)
        if self.key_field is not None and self.key_field not in names:
            raise CommandFailed(
                f"column {self.key_field!r} does not exist; the columns of the answer are {', '.join(names)}",
                EXIT_USAGE,
            )
        while rows := list(itertools.islice(answer.rows, ROWS_PER_CHUNK)):
            objects = [dict(zip(names, map(plain, row), strict=True)) for row in rows]
            columns: dict[str, Any] = {"value": pa.array([json_of(each).encode() for each in objects], pa.binary())}
            if self.key_field is not None:
                columns["key"] = pa.array([_key(each[self.key_field]) for each in objects], pa.binary())
            yield Chunk(pa.RecordBatch.from_pydict(columns), None)


def _key(value: Any) -> bytes | None:
    if value is None:
        return None
    return (value if isinstance(value, str) else json_of(value)).encode()
