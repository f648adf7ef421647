"""Reading the column `value` of a batch under another schema of the topic, such as the newest.

A plan picks children by id, adds nulls for fields that the batch lacks, leaves out those that the reader lacks, and
casts to wider types. Everything that can fail fails when the plan is made: under a later schema of the topic nothing
does, and then no data that fits its own schema does.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import pyarrow as pa

from tidelog_proto.schema.arrow_types import arrow_field, arrow_type, value_type
from tidelog_proto.schema.data_types import Kind
from tidelog_proto.schema.fields import Field, Path, path_text
from tidelog_proto.schema.schema_error import refuse, shown
from tidelog_proto.schema.struct_arrays import with_children
from tidelog_proto.schema.topic_schema import Schema
from tidelog_proto.schema.widening import widens

_Step = Callable[[Any], Any]
"""Returns an array of the reader's type for one of the batch's."""


class ReadingPlan(NamedTuple):
    """How values of one schema become those of another.

    Attributes:
        source: the type that the column has.
        target: the type that it gets.
        step: the conversion; None if nothing changes.
    """

    source: pa.StructType
    target: pa.StructType
    step: _Step | None

    def read(self, values: pa.Array[Any]) -> pa.Array[Any]:
        """Return the column `value` of a batch under the reader's schema.

        Raises:
            ValueError: the column has another type than its schema; verification refuses such a batch.
        """
        if not values.type.equals(self.source):
            raise ValueError(f"the column value has the type {values.type}, and its schema {self.source}")
        return values if self.step is None else self.step(values)


@lru_cache(maxsize=1024)
def reading_plan(
    source: Schema, target: Schema, names: tuple[str, ...] | None = None, sent: tuple[Field, ...] | None = None
) -> ReadingPlan:
    """Return the plan for values of `source` and a reader of `target`, another schema of the same topic.

    Args:
        names: the fields of the top level, without a role, that the reader wants, at least one; None for all.
        sent: the fields of `source` that the column has; None for all. Wanted ones that it lacks become nulls, so the
            caller checks that it has those that were requested.

    Raises:
        SchemaError: `source` is the later schema, and one of its fields is wider or optional where the reader's is not.
        KeyError: a name is unknown.
        ValueError: no names are given.
    """
    wanted = _wanted(target, names)
    refuse(_faults(source, target, wanted))
    has = source.value_fields if sent is None else sent
    source_type = value_type(source) if sent is None else pa.struct([arrow_field(field) for field in has])
    target_type = pa.struct([arrow_field(field) for field in wanted])
    if _are_equal(has, wanted):
        return ReadingPlan(source_type, target_type, None)
    return ReadingPlan(source_type, target_type, _struct_step(has, wanted, target_type))


def _are_equal(source: Sequence[Field], target: Sequence[Field]) -> bool:
    """Return whether arrays of fields are equal. Equal types do not suffice: a name may have been used again."""
    return len(source) == len(target) and all(
        (one.id, one.name, one.type, one.required) == (other.id, other.name, other.type, other.required)
        and _are_equal(one.children, other.children)
        for one, other in zip(source, target, strict=True)
    )


def _wanted(target: Schema, names: tuple[str, ...] | None) -> tuple[Field, ...]:
    if names is None:
        return target.value_fields
    if not names:
        raise ValueError("a reader of no field was given; name at least one, or do not read the column value")
    by_name = {field.name: field for field in target.value_fields}
    return tuple(by_name[name] for name in names)


def _faults(source: Schema, target: Schema, wanted: Sequence[Field]) -> Collection[str]:
    found: list[str] = []
    _append_faults(source.value_fields, wanted, (), found)
    return [
        f"{fault} in schema {source.number}; read again with that schema instead of {target.number}" for fault in found
    ]


def _append_faults(source: Sequence[Field], target: Sequence[Field], parent: Path, faults: list[str]) -> None:
    by_id = {field.id: field for field in source}
    for field in target:
        path = (*parent, field.name)
        name = f"field {shown(path_text(path))}"
        old = by_id.get(field.id)
        if old is None:
            if field.required:
                faults.append(f"{name} is required, and was dropped")
            continue
        if old.type != field.type and not widens(old.type, field.type):
            faults.append(f"{name} has the type {field.type}, and {old.type}")
            continue
        if field.required and not old.required:
            faults.append(f"{name} is required, and optional")
        _append_faults(old.children, field.children, path, faults)


def _step(source: Field, target: Field) -> _Step | None:
    """Return the conversion of one field's array; None if it stays as it is."""
    if source.type == target.type and _are_equal(source.children, target.children):
        return None
    wanted, kind = arrow_type(target), target.type.kind
    if kind is Kind.STRUCT:
        return _struct_step(source.children, target.children, wanted)
    if kind is Kind.LIST:
        return _list_step(_step(source.children[0], target.children[0]), wanted)
    if kind is Kind.DECIMAL128:
        return lambda array: _with_type(array, wanted)
    return lambda array: array.cast(wanted)


def _with_type(array: pa.Array[Any], data_type: pa.DataType) -> pa.Array[Any]:
    """Return the same bytes under a type with the same layout: a decimal with more digits cannot overflow."""
    return pa.Array.from_buffers(data_type, len(array), array.buffers(), offset=array.offset)


def _list_step(step: _Step | None, wanted: pa.DataType) -> _Step:
    def read(array: Any) -> pa.Array[Any]:
        items = array.values if step is None else step(array.values)
        return pa.Array.from_buffers(wanted, len(array), array.buffers()[:2], offset=array.offset, children=[items])

    return read


def struct_step(source: Sequence[Field], target: Sequence[Field]) -> _Step | None:
    """Return the conversion of a struct of fields to one of some of them; None if it stays as it is."""
    if _are_equal(source, target):
        return None
    return _struct_step(source, target, pa.struct([arrow_field(field) for field in target]))


def _struct_step(source: Sequence[Field], target: Sequence[Field], wanted: pa.DataType) -> _Step:
    positions = {field.id: at for at, field in enumerate(source)}
    children: list[tuple[int | None, _Step | None, Any]] = []
    for field in target:
        at = positions.get(field.id)
        children.append((at, None if at is None else _step(source[at], field), arrow_type(field)))

    def read(array: Any) -> pa.Array[Any]:
        count = len(array)
        read_children: list[pa.Array[Any]] = []
        for at, step, data_type in children:
            child = pa.nulls(count, data_type) if at is None else array.field(at)
            read_children.append(child if step is None else step(child))
        return with_children(array, read_children, wanted)

    return read
