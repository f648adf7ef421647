"""Rows of batches under one schema of the topic, whatever schemas the batches have."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Any, Final

import pyarrow as pa

from tidelog_proto import broker_pb2 as pb
from tidelog_proto.batch.columns import HEADERS_TYPE, TIMESTAMP_TYPE, without_empty_lists
from tidelog_proto.batch.header import Flags
from tidelog_proto.batch.key_bytes import key_values
from tidelog_proto.batch.record_batch import RecordBatch
from tidelog_proto.batch.row_layout import RowLayout, row_layout
from tidelog_proto.errors import ProtocolError
from tidelog_proto.schema.data_types import Kind
from tidelog_proto.schema.fields import Field, Role, fields_below
from tidelog_proto.schema.reading_plan import ReadingPlan, reading_plan
from tidelog_proto.schema.topic_schema import Schema

ToPython = Callable[[Any, Field], list[Any]]
"""Returns the values of a leaf's array as Python objects."""

_OF_RECORDS: Final[list[pa.Field[Any]]] = [
    pa.field("_partition", pa.int32(), nullable=False),
    pa.field("_offset", pa.int64(), nullable=False),
    pa.field("_timestamp", TIMESTAMP_TYPE, nullable=False),
    pa.field("_key", pa.binary()),
    pa.field("_headers", HEADERS_TYPE),
    pa.field("_tag", pa.string()),
]
RECORD_COLUMNS: Final = pa.schema(_OF_RECORDS)
"""The columns of a record besides the fields of its row."""

_COLUMN_OF: Final = {Role.TIME: "timestamp", Role.KEY: "key", Role.TAG: "tag"}
_ROLE_OF: Final = {"_key": Role.KEY, "_tag": Role.TAG}
"""Columns of records that are fields if the schema has a field with the role."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_LOCAL_EPOCH: Final = datetime(1970, 1, 1)  # noqa: DTZ001 - the origin of timestamps without a time zone


class RowReader:
    """Reads batches of one schema of a topic under another. Immutable; `row_reader` returns one for each pair.

    Projected batches must have the fields of the rows, and may have more.

    Args:
        source: the schema of the batches.
        target: the schema of the rows.
        names: the fields of the rows, in order; None for all fields of `target`.

    Attributes:
        fields: the fields of the rows.

    Raises:
        SchemaError: `source` is the later schema, and a field of it does not fit that of `target`.
        KeyError: a name is unknown.
    """

    def __init__(self, source: Schema, target: Schema, names: tuple[str, ...] | None) -> None:
        self._target = target
        by_name = {field.name: field for field in target.fields}
        self.fields = target.fields if names is None else tuple(by_name[name] for name in names)
        self._names = tuple(field.name for field in self.fields)
        layout: RowLayout = row_layout(target)
        self._arrow = pa.schema([layout.row_schema.field(field.name) for field in self.fields])
        self._nullable = pa.schema([field.with_nullable(nullable=True) for field in self._arrow])
        self._inner = tuple(field.name for field in self.fields if field.role is Role.NONE)
        self._plan = reading_plan(source, target, self._inner) if self._inner else None

    def arrays(self, batch: RecordBatch) -> list[Any]:
        """Return one Arrow array for each field, with an entry for each record; those of tombstones are null.

        Raises:
            ProtocolError: CORRUPT_BATCH if the body does not decode, the bytes of a key are not those of its type, or
                the batch was sent without one of the fields.
        """
        count = len(batch)
        columns = batch.columns() if count else None
        if columns is None:
            return [pa.nulls(0, field.type) for field in self._arrow]
        children: Any = iter(())
        if self._plan is not None:
            if "value" not in columns.schema.names:
                raise _not_sent(self._inner)
            is_projected = batch.header.flags & Flags.PROJECTED and batch.layout is not None
            plan = _projected_plan(batch.layout, self._target, self._inner) if is_projected else self._plan
            value: Any = plan.read(columns.column("value"))
            children = iter(value.flatten() if value.null_count else map(value.field, range(value.type.num_fields)))
        return [
            self._array(batch, columns, field, arrow.type, children)
            for field, arrow in zip(self.fields, self._arrow, strict=True)
        ]

    def table(self, batch: RecordBatch) -> pa.RecordBatch:
        """Return the rows as columns, without tombstones.

        Raises:
            ProtocolError: as `arrays`.
        """
        arrays = self.arrays(batch)
        live = self.live(batch)
        if live is None:
            return pa.RecordBatch.from_arrays(arrays, schema=self._arrow)
        rows = pa.RecordBatch.from_arrays(arrays, schema=self._nullable).filter(live)
        return pa.RecordBatch.from_arrays(rows.columns, schema=self._arrow)

    @cached_property
    def record_schema(self) -> pa.Schema:
        """The Arrow schema of `record_table`."""
        taken = {field.role for field in self._target.fields}
        names = [name for name in RECORD_COLUMNS.names if _ROLE_OF.get(name) not in taken]
        return pa.schema([*self._arrow, *map(RECORD_COLUMNS.field, names)])

    def record_table(self, batch: RecordBatch, partition: int) -> pa.RecordBatch:
        """Return the rows as columns, without tombstones, followed by columns of the records.

        These are `RECORD_COLUMNS`, without `_key` and `_tag` if the schema has a field with that role.

        Raises:
            ProtocolError: as `arrays`.
        """
        fields = self.record_schema
        names = fields.names[len(self.fields) :]
        columns = [*self.arrays(batch), *columns_of_records(batch, partition, names).values()]
        live = self.live(batch)
        if live is not None:
            nullable = pa.schema([field.with_nullable(nullable=True) for field in fields])
            columns = pa.RecordBatch.from_arrays(columns, schema=nullable).filter(live).columns
        return pa.RecordBatch.from_arrays(columns, schema=fields)

    @staticmethod
    def live(batch: RecordBatch) -> Any:
        """Return which records have a row; None if all have one."""
        columns = batch.columns() if len(batch) else None
        if columns is None or "value" not in columns.schema.names:
            return None
        value: Any = columns.column("value")
        return value.is_valid() if value.null_count else None

    def rows(self, batch: RecordBatch, to_python: ToPython | None = None) -> list[dict[str, Any] | None]:
        """Return each record's row as a dictionary in the order of the fields; None for a tombstone.

        Args:
            to_python: converts leaves; None: to Python's own types, such as datetime and Decimal.

        Raises:
            ProtocolError: as `arrays`.
        """
        convert = to_python or leaf_values
        lists = [values_of(array, field, convert) for array, field in zip(self.arrays(batch), self.fields, strict=True)]
        names = self._names
        if not names:
            return [{} for _ in range(len(batch))]
        rows: list[dict[str, Any] | None] = [dict(zip(names, row, strict=True)) for row in zip(*lists, strict=True)]
        live = self.live(batch)
        if live is not None:
            for at, is_live in enumerate(live.to_pylist()):
                if not is_live:
                    rows[at] = None
        return rows

    @staticmethod
    def _array(batch: RecordBatch, columns: pa.RecordBatch, field: Field, kind: Any, children: Any) -> Any:
        if field.role is Role.NONE:
            child = next(children, None)
            return pa.nulls(len(batch), kind) if child is None else child
        name = _COLUMN_OF[field.role]
        if name not in columns.schema.names:
            if batch.header.flags & Flags.PROJECTED and field.required and field.role is not Role.TAG:
                raise _not_sent([field.name])
            if field.role is Role.TIME:
                stamp: Any = pa.scalar(batch.header.base_timestamp_us, pa.int64()).cast(TIMESTAMP_TYPE)
                return pa.repeat(stamp, len(batch))
            return pa.nulls(len(batch), kind)
        column = columns.column(name)
        return key_values(column, kind) if field.role is Role.KEY else column


@lru_cache(maxsize=1024)
def row_reader(source: Schema, target: Schema, names: tuple[str, ...] | None = None) -> RowReader:
    """Return the reader of batches of `source` under `target`; see `RowReader`."""
    return RowReader(source, target, names)


@lru_cache(maxsize=256)
def _projected_plan(layout: RowLayout, target: Schema, names: tuple[str, ...]) -> ReadingPlan:
    """Return the plan for the values of projected batches.

    Args:
        layout: of the fields that the batches have.
        target: the schema of the rows.
        names: the fields of `value` that the rows have.

    Raises:
        ProtocolError: CORRUPT_BATCH if the batches lack one of these fields that their schema has.
    """
    wanted = {field.id for field in target.value_fields if field.name in names}
    stored = [field for field in layout.schema.value_fields if field.id in wanted]
    sent = {field.id for field in fields_below(layout.value_fields)}
    if missing := [field.name for field in fields_below(stored) if field.id not in sent]:
        raise _not_sent(missing)
    return reading_plan(layout.schema, target, names, layout.value_fields)


def _not_sent(names: Sequence[str]) -> ProtocolError:
    return ProtocolError(
        pb.CORRUPT_BATCH, f"the batch was sent without the fields {list(names)}, which its reader needs"
    )


def values_of(array: Any, field: Field, to_python: ToPython) -> list[Any]:
    """Return the values of a field as Python objects: structs as dictionaries, lists as lists, leaves converted."""
    if field.type.kind is Kind.STRUCT:
        names = [child.name for child in field.children]
        lists = [values_of(array.field(at), child, to_python) for at, child in enumerate(field.children)]
        rows: list[Any] = [dict(zip(names, row, strict=True)) for row in zip(*lists, strict=True)]
        return _with_nulls(array, rows)
    if field.type.kind is Kind.LIST:
        offsets = array.offsets.to_pylist()
        first = offsets[0] if offsets else 0
        items = values_of(
            array.values.slice(first, (offsets[-1] if offsets else 0) - first), field.children[0], to_python
        )
        lists_of = [items[begin - first : end - first] for begin, end in pairwise(offsets)]
        return _with_nulls(array, lists_of)
    return to_python(array, field)


def leaf_values(array: Any, field: Field) -> list[Any]:
    """Return the values of a leaf as Python's own types; instants are in UTC."""
    kind = field.type.kind
    if kind not in {Kind.TIMESTAMP, Kind.TIMESTAMP_UTC}:
        return array.to_pylist()  # type: ignore[no-any-return]  # pyarrow's arrays are untyped here
    epoch = _EPOCH if kind is Kind.TIMESTAMP_UTC else _LOCAL_EPOCH
    numbers = array.view(pa.int64()).to_pylist()
    return [None if number is None else epoch + timedelta(microseconds=number) for number in numbers]


def _with_nulls(array: Any, values: Sequence[Any]) -> list[Any]:
    if not array.null_count:
        return list(values)
    return [value if valid else None for value, valid in zip(values, array.is_valid().to_pylist(), strict=True)]


def columns_of_records(batch: RecordBatch, partition: int, names: Iterable[str]) -> dict[str, Any]:
    """Return some of `RECORD_COLUMNS` as Arrow arrays, by name. Records without headers have null in `_headers`.

    Raises:
        ProtocolError: CORRUPT_BATCH if the body does not decode.
    """
    count, found = len(batch), dict[str, Any]()
    for name in names:
        stored = name[1:]
        if name == "_partition":
            found[name] = pa.repeat(pa.scalar(partition, pa.int32()), count)
        elif name == "_offset":
            found[name] = batch.offsets()
        elif count and stored in batch.columns().schema.names:
            column = batch.columns().column(stored)
            found[name] = without_empty_lists(column) if name == "_headers" else column
        elif name == "_timestamp":
            stamp: Any = pa.scalar(batch.header.base_timestamp_us, pa.int64()).cast(TIMESTAMP_TYPE)
            found[name] = pa.repeat(stamp, count)
        else:
            found[name] = pa.nulls(count, RECORD_COLUMNS.field(name).type)
    return found
