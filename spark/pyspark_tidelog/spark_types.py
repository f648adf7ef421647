"""Spark's types of the columns of a typed topic, which correspond to Arrow's one to one.

A required field is NOT NULL in Spark, at each level. Spark relies on that when it optimises a query, so a column is
never declared NOT NULL if a row may have a null in it.
"""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from pyspark_tidelog.errors import OptionError

_SPARK_OF: Final[dict[pa.DataType, DataType]] = {
    pa.bool_(): BooleanType(),
    pa.int8(): ByteType(),
    pa.int16(): ShortType(),
    pa.int32(): IntegerType(),
    pa.int64(): LongType(),
    pa.float32(): FloatType(),
    pa.float64(): DoubleType(),
    pa.string(): StringType(),
    pa.binary(): BinaryType(),
    pa.date32(): DateType(),
    pa.timestamp("us", "UTC"): TimestampType(),
    pa.timestamp("us"): TimestampNTZType(),
}


def spark_type(arrow: Any) -> DataType:
    """Return the Spark type for an Arrow type of `tidelog_proto.schema.arrow_types`."""
    if pa.types.is_struct(arrow):
        return StructType([spark_field(arrow.field(at)) for at in range(arrow.num_fields)])
    if pa.types.is_list(arrow):
        return ArrayType(spark_type(arrow.value_type), arrow.value_field.nullable)
    if pa.types.is_decimal(arrow):
        return DecimalType(arrow.precision, arrow.scale)
    return _SPARK_OF[arrow]


def spark_field(arrow: pa.Field[Any], comment: str = "") -> StructField:
    """Return the Spark field for an Arrow field; `comment` describes it in `DESCRIBE`."""
    metadata = {"comment": comment} if comment else None
    return StructField(arrow.name, spark_type(arrow.type), arrow.nullable, metadata)


def arrow_as_declared(declared: StructField, known: pa.Field[Any]) -> pa.Field[Any]:
    """Return the Arrow field that Spark expects for a column that was declared with a type of Spark.

    Args:
        declared: the column, which may allow nulls where `known` does not.
        known: the column as the topic has it.

    Raises:
        OptionError: the type differs, or nulls are not allowed where rows may have them.
    """
    name, wanted = declared.name, spark_type(known.type)
    if not _are_equal(declared.dataType, wanted):
        raise OptionError(
            f"column {name!r} is {wanted.simpleString()}, not {declared.dataType.simpleString()}: read it as "
            f"{wanted.simpleString()} and cast it in the query."
        )
    if known.nullable and not declared.nullable:
        raise _no_nulls(name)
    return pa.field(name, _declared(declared.dataType, known.type, name), nullable=declared.nullable)


def _are_equal(one: DataType, other: DataType) -> bool:
    """Return whether types are equal, regardless of nulls and comments."""
    if isinstance(one, StructType) and isinstance(other, StructType):
        return one.names == other.names and all(
            _are_equal(mine.dataType, theirs.dataType) for mine, theirs in zip(one, other, strict=True)
        )
    if isinstance(one, ArrayType) and isinstance(other, ArrayType):
        return _are_equal(one.elementType, other.elementType)
    return one == other


def _declared(declared: DataType, known: Any, path: str) -> pa.DataType:
    """Return an Arrow type with the nulls that a Spark type declares; the types are equal otherwise."""
    if isinstance(declared, StructType):
        children: list[pa.Field[Any]] = []
        for at, child in enumerate(declared.fields):
            ours, below = known.field(at), f"{path}.{child.name}"
            if ours.nullable and not child.nullable:
                raise _no_nulls(below)
            children.append(pa.field(child.name, _declared(child.dataType, ours.type, below), nullable=child.nullable))
        return pa.struct(children)
    if isinstance(declared, ArrayType):
        item = known.value_field
        if item.nullable and not declared.containsNull:
            raise _no_nulls(f"{path}.element")
        kind = _declared(declared.elementType, item.type, f"{path}.element")
        return pa.list_(pa.field("element", kind, nullable=declared.containsNull))
    return known  # type: ignore[no-any-return]  # pyarrow's types are untyped here


def _no_nulls(name: str) -> OptionError:
    return OptionError(f"column {name!r} cannot be NOT NULL, because rows may have a null there: declare it nullable.")
