"""Values of an Arrow array as values of a field, if each of them is exact."""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from tidelog_proto.schema.arrow_input import leaf_of_arrow
from tidelog_proto.schema.arrow_types import arrow_type
from tidelog_proto.schema.data_types import Kind
from tidelog_proto.schema.fields import Field, Path, path_text
from tidelog_proto.schema.schema_error import shown
from tidelog_proto.schema.struct_arrays import with_children
from tidelog_proto.schema.widening import widens

_MAP_NAMES: Final = ["key", "value"]


def exact_values(array: pa.Array[Any], field: Field) -> pa.Array[Any]:
    """Return an array of the Arrow type of a field; types are converted as `fields_of_arrow` announces it, and widened.

    Optional fields that a struct lacks are null.

    Raises:
        ValueError: the type of the array, or one of its values, does not fit the field.
    """
    return _exact(array, field, (field.name,))


def _exact(array: Any, field: Field, path: Path) -> pa.Array[Any]:
    wanted = arrow_type(field)
    if array.type.equals(wanted):
        return array  # type: ignore[no-any-return]
    if pa.types.is_dictionary(array.type):
        return _exact(array.dictionary_decode(), field, path)
    if field.type.kind is Kind.STRUCT:
        return _struct(array, field, path, wanted)
    if field.type.kind is Kind.LIST:
        return _list(array, field, path, wanted)
    leaf = leaf_of_arrow(array.type)
    if leaf is None or not (leaf.type == field.type or widens(leaf.type, field.type)):
        raise _wrong_type(array, field, path)
    try:
        exact: pa.Array[Any] = array.cast(wanted)
    except pa.ArrowInvalid as error:
        raise ValueError(
            f"field {shown(path_text(path))}: a value of {array.type} does not fit {field.type}: {error}; round or "
            "remove it first"
        ) from error
    return exact


def _struct(array: Any, field: Field, path: Path, wanted: pa.DataType) -> pa.Array[Any]:
    if not pa.types.is_struct(array.type):
        raise _wrong_type(array, field, path)
    names = [child.name for child in array.type]
    expected = [child.name for child in field.children]
    required = {child.name for child in field.children if child.required}
    if len(set(names)) != len(names) or not required <= set(names) <= set(expected):
        raise ValueError(
            f"field {shown(path_text(path))}: the struct has the fields {names}, and the schema has {expected}; "
            "rename, add or remove fields"
        )
    children = [
        array.field(names.index(child.name)) if child.name in names else _missing(child, len(array))
        for child in field.children
    ]
    return _assembled(array, children, field, path, wanted)


def _missing(field: Field, count: int) -> Any:
    kind: Any = arrow_type(field)
    return pa.nulls(count, kind)


def _assembled(array: Any, children: list[Any], field: Field, path: Path, wanted: pa.DataType) -> pa.Array[Any]:
    """Return a struct of converted children, with the nulls of `array`."""
    exact = [_exact(child, of, (*path, of.name)) for child, of in zip(children, field.children, strict=True)]
    return with_children(array, exact, wanted)


def _list(array: Any, field: Field, path: Path, wanted: pa.DataType) -> pa.Array[Any]:
    item = field.children[0]
    below = (*path, item.name)
    if pa.types.is_map(array.type):
        if [child.name for child in item.children] != _MAP_NAMES:
            raise _wrong_type(array, field, path)
        entries = pa.StructArray.from_arrays([array.keys, array.items], _MAP_NAMES)
        items = _assembled(entries, [array.keys, array.items], item, below, arrow_type(item))
    else:
        if pa.types.is_list_view(array.type) or pa.types.is_large_list_view(array.type):
            array = _list_of_view(array)
        elif pa.types.is_large_list(array.type):
            array = array.cast(pa.list_(array.type.value_field))
        elif not pa.types.is_list(array.type):
            raise _wrong_type(array, field, path)
        items = _exact(array.values, item, below)
    return pa.Array.from_buffers(wanted, len(array), array.buffers()[:2], offset=array.offset, children=[items])


def _list_of_view(array: Any) -> Any:
    """Return the list with the items of a view. pyarrow 26 casts views with nulls to wrong offsets."""
    sizes: Any = pc.list_value_length(array).cast(pa.int64())
    ends: Any = pc.cumulative_sum(sizes.fill_null(0))
    offsets: Any = pa.concat_arrays([pa.array([0], pa.int64()), ends])
    list_type = pa.list_(array.type.value_field)
    return pa.ListArray.from_arrays(offsets.cast(pa.int32()), array.flatten(), type=list_type, mask=array.is_null())


def _wrong_type(array: Any, field: Field, path: Path) -> ValueError:
    return ValueError(
        f"field {shown(path_text(path))}: the column has the type {array.type}, and the field {field.type}; cast the "
        "column first"
    )
