"""Which rows of a batch match an expression, evaluated on Arrow columns.

Strings compare as bytes, floats as IEEE 754 doubles with `Leaf.nan` for NaN, and decimals exactly.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Context
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidelog_proto import broker_pb2 as pb
from tidelog_proto.batch.header import Flags
from tidelog_proto.batch.key_bytes import key_values
from tidelog_proto.batch.record_batch import RecordBatch
from tidelog_proto.batch.row_reader import columns_of_records
from tidelog_proto.errors import ProtocolError
from tidelog_proto.filters.expression import (
    EVERY_ROW,
    NO_ROW,
    AllOf,
    Expression,
    Leaf,
    Operator,
)
from tidelog_proto.filters.rebinding import FieldPlace, field_places, rebound
from tidelog_proto.filters.record_columns import RECORD_COLUMN_NAMES, RECORD_COLUMN_TYPES
from tidelog_proto.schema.arrow_types import arrow_type
from tidelog_proto.schema.data_types import DataType, Kind
from tidelog_proto.schema.fields import Role, path_text

RowMask: TypeAlias = npt.NDArray[np.bool_]
"""For each row, whether it matches."""

_COMPARE: Final[dict[Operator, Callable[..., Any]]] = {
    Operator.EQUAL: pc.equal,
    Operator.NOT_EQUAL: pc.not_equal,
    Operator.LESS: pc.less,
    Operator.LESS_OR_EQUAL: pc.less_equal,
    Operator.GREATER: pc.greater,
    Operator.GREATER_OR_EQUAL: pc.greater_equal,
}
_ROLE_COLUMNS: Final = {
    Role.TIME: (Flags.TIMESTAMP, "_timestamp"),
    Role.KEY: (Flags.KEY, "_key"),
    Role.TAG: (Flags.TAG, "_tag"),
}
_DECIMALS: Final = Context(prec=38)


def matching_rows(batch: RecordBatch, expression: Expression, partition: int = 0) -> RowMask | None:
    """Return which records of a typed batch match an expression; None if all do.

    Fields without a role of a tombstone are null.

    Args:
        batch: its schema is at most as late as that to which the expression was bound, and it has the fields that the
            expression tests.
        expression: one that `check_expression` accepts under the schema to which it was bound.
        partition: of the batch, for expressions that test `_partition`.

    Raises:
        ProtocolError: CORRUPT_BATCH if the body does not decode, or the batch was sent without a tested field.
    """
    assert batch.layout is not None, "only typed batches have rows"
    own = rebound(expression, batch.layout.schema)
    if own == EVERY_ROW or not len(batch):
        return None
    if own == NO_ROW:
        return np.zeros(len(batch), np.bool_)
    mask = _Evaluation(batch, partition).of(own)
    return np.asarray(mask.to_numpy(zero_copy_only=False), np.bool_)


class _Evaluation:
    """Evaluates expressions on one batch. Columns are decoded once."""

    def __init__(self, batch: RecordBatch, partition: int) -> None:
        assert batch.layout is not None
        self._batch = batch
        self._partition = partition
        self._places = field_places(batch.layout.schema)
        self._columns: dict[int, Any] = {}

    def of(self, expression: Expression) -> Any:
        """Return the mask of an expression, an Arrow array without nulls."""
        if isinstance(expression, Leaf):
            return self._mask(expression)
        join = pc.and_ if isinstance(expression, AllOf) else pc.or_
        mask = self.of(expression.nodes[0])
        for node in expression.nodes[1:]:
            mask = join(mask, self.of(node))
        return mask

    def _mask(self, leaf: Leaf) -> Any:
        column = self._column(leaf.field_id)
        if leaf.operator is Operator.IS_NULL:
            return column.is_null()
        if leaf.operator is Operator.IS_NOT_NULL:
            return column.is_valid()
        mask = _compared(column, leaf, self._type(leaf.field_id))
        return pc.fill_null(mask, False) if mask.null_count else mask

    def _type(self, field_id: int) -> DataType:
        return RECORD_COLUMN_TYPES[field_id] if field_id < 0 else self._places[field_id].field.type

    def _column(self, field_id: int) -> Any:
        """Return the values of a field, with nulls where a struct above it is null."""
        found = self._columns.get(field_id)
        if found is None:
            found = self._read(field_id)
            self._columns[field_id] = found
        return found

    def _read(self, field_id: int) -> Any:
        if field_id < 0:
            return self._of_records(RECORD_COLUMN_NAMES[field_id])
        place = self._places[field_id]
        role = place.field.role
        if role is Role.NONE:
            return self._of_values(place)
        flag, name = _ROLE_COLUMNS[role]
        flags = self._batch.header.flags
        if flags & Flags.PROJECTED and not flags & flag and place.field.required and role is not Role.TAG:
            raise _not_sent(place)
        column = self._of_records(name)
        return key_values(column, arrow_type(place.field)) if role is Role.KEY else column

    def _of_records(self, name: str) -> Any:
        return columns_of_records(self._batch, self._partition, [name])[name]

    def _of_values(self, place: FieldPlace) -> Any:
        columns = self._batch.columns()
        if "value" not in columns.schema.names:
            raise _not_sent(place)
        array: Any = columns.column("value")
        for field in place.fields:
            at = array.type.get_field_index(field.name)
            if at < 0:
                raise _not_sent(place)
            array = array.flatten()[at] if array.null_count else array.field(at)
        return array


def _not_sent(place: FieldPlace) -> ProtocolError:
    name = path_text(tuple(field.name for field in place.fields))
    return ProtocolError(
        pb.CORRUPT_BATCH, f"the batch was sent without the field {name!r}, which the filter of its reader tests"
    )


def _compared(column: Any, leaf: Leaf, data_type: DataType) -> Any:
    """Return the mask of a comparison; nulls may be null."""
    kind = data_type.kind
    if kind in {Kind.FLOAT32, Kind.FLOAT64}:
        return _compared_floats(column, leaf)
    if kind is Kind.STRING:
        column = column.cast(pa.binary())
    elif kind is Kind.DATE32:
        column = column.view(pa.int32())
    elif kind in {Kind.TIMESTAMP, Kind.TIMESTAMP_UTC}:
        column = column.view(pa.int64())
    literals: list[Any] = list(leaf.literals)
    if kind is Kind.DECIMAL128:
        literals = [_DECIMALS.scaleb(_DECIMALS.create_decimal(each), -data_type.scale) for each in literals]
    if leaf.operator in _COMPARE:
        return _COMPARE[leaf.operator](column, pa.scalar(literals[0], column.type))
    is_in = pc.is_in(column, value_set=pa.array(literals, column.type))
    if leaf.operator is Operator.IS_IN:
        return is_in
    return pc.and_(pc.invert(is_in), column.is_valid())


def _compared_floats(column: Any, leaf: Leaf) -> Any:
    values = column.cast(pa.float64())
    if leaf.operator in _COMPARE:
        mask = _COMPARE[leaf.operator](values, pa.scalar(leaf.literals[0], pa.float64()))
    else:
        # Not `is_in` of Arrow, which distinguishes 0.0 from -0.0 and equates NaN with itself.
        is_in = np.isin(values.to_numpy(zero_copy_only=False), np.array(leaf.literals, np.float64))
        mask = pa.array(is_in == (leaf.operator is Operator.IS_IN))
        if values.null_count:
            mask = pc.and_(mask, values.is_valid())
    if leaf.nan is (leaf.operator in {Operator.NOT_EQUAL, Operator.IS_NOT_IN}):
        return mask  # as IEEE 754 has it
    is_nan = pc.is_nan(values)
    return pc.or_(mask, is_nan) if leaf.nan else pc.and_(mask, pc.invert(is_nan))
