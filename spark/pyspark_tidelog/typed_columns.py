"""The columns of a DataFrame over a typed topic: fields of its schema, and columns of records on request."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.types import StructField, StructType

from pyspark_tidelog.errors import OptionError
from pyspark_tidelog.filters import Comparable
from pyspark_tidelog.option_values import did_you_mean
from pyspark_tidelog.options import ReadOptions
from pyspark_tidelog.spark_types import arrow_as_declared, spark_field
from pyspark_tidelog.typed_topic import TypedTopic
from tidelog.rows.json_rows import row_of_object
from tidelog.rows.row_writer import row_writer
from tidelog.rows.value_checks import RowError
from tidelog.tables.typed_tables import columns_of_table
from tidelog_proto.batch.typed_rows import DELETED
from tidelog_proto.schema.data_types import INTEGERS, Kind
from tidelog_proto.schema.fields import Field, Role

_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,19}", re.ASCII)


@dataclass(frozen=True, slots=True)
class TypedColumns:
    """The columns of a load of a typed topic. Pickled for tasks.

    Attributes:
        topic: the topic and its schema.
        arrow: the columns, in order, as Spark expects them.
        tombstones: whether tombstones are rows, too.
    """

    topic: TypedTopic
    arrow: pa.Schema
    tombstones: bool


def default_columns(options: ReadOptions, topic: TypedTopic) -> StructType:
    """Return the Spark schema for options: all fields, or the chosen columns.

    Raises:
        OptionError: a chosen column does not exist.
    """
    known = _known(options, topic)
    if options.columns is not None:
        if options.include_record_columns:
            raise OptionError(
                "options 'columns' and 'includeRecordColumns' are mutually exclusive: name columns such as _offset in "
                "'columns'."
            )
        names = [*options.columns, *([DELETED] if options.include_tombstones else [])]
        if DELETED in options.columns:
            raise OptionError(
                f"option 'columns': {DELETED!r} is added by the option 'includeTombstones': leave it out."
            )
    else:
        fields = {field.name for field in topic.schema.fields}
        chosen = {"_headers"} if options.include_headers else set[str]()
        chosen |= {"_tag"} if options.include_tags else set[str]()
        names = [
            name for name in known if options.include_record_columns or name in fields or name in chosen | {DELETED}
        ]
    comments = {field.name: field.doc for field in topic.schema.fields}
    return StructType([spark_field(_one_of(known, name, topic), comments.get(name, "")) for name in names])


def typed_columns(options: ReadOptions, topic: TypedTopic, schema: StructType) -> TypedColumns:
    """Return the columns of a Spark schema: any of those that exist, in any order.

    Raises:
        OptionError: a column does not exist, is repeated, or has a wrong type or nullability.
    """
    known = _known(options, topic)
    names = schema.fieldNames()
    if duplicate := next((name for name in names if names.count(name) > 1), None):
        raise OptionError(f"the schema has the duplicate column {duplicate!r}: name each column once.")
    if options.include_tombstones and DELETED not in names:
        raise OptionError(
            f"the schema lacks the column {DELETED!r} of type boolean, which tells tombstones from rows: add it, or "
            "leave out the option 'includeTombstones'."
        )
    arrow = pa.schema([_arrow(field, known, topic) for field in schema.fields])
    return TypedColumns(topic, arrow, options.include_tombstones)


def _arrow(declared: StructField, known: Mapping[str, pa.Field[Any]], topic: TypedTopic) -> pa.Field[Any]:
    return arrow_as_declared(declared, _one_of(known, declared.name, topic))


def _known(options: ReadOptions, topic: TypedTopic) -> dict[str, pa.Field[Any]]:
    """Return all columns that a load may have, in their default order."""
    return {field.name: field for field in columns_of_table(topic.schema, tombstones=options.include_tombstones)}


def _one_of(known: Mapping[str, pa.Field[Any]], name: str, topic: TypedTopic) -> pa.Field[Any]:
    if name not in known:
        hint = did_you_mean(name, {each.lower(): each for each in known})
        raise OptionError(
            f"topic {topic.name!r} has no column {name!r} in its schema {topic.schema.number}.{hint} The columns are: "
            f"{', '.join(known)}."
        )
    return known[name]


def comparable_columns(topic: TypedTopic) -> dict[str, Comparable]:
    """Return which columns are those of records, for filters, and how their values are stored.

    Fields with a role are compared like the column of the record that holds them. Other fields, which may have names
    such as `offset`, are not compared.
    """
    columns = {f"_{name}": Comparable(name) for name in ("partition", "offset", "timestamp", "key", "tag")}
    roles = {Role.TIME: "timestamp", Role.KEY: "key", Role.TAG: "tag"}
    for field in topic.schema.fields:
        if field.role is Role.KEY:
            columns[field.name] = Comparable("key", row_writer(topic.schema).key_of)
        elif field.role is not Role.NONE:
            columns[field.name] = Comparable(roles[field.role])
    return columns


def with_stored_key(options: ReadOptions, topic: TypedTopic) -> ReadOptions:
    """Return options whose key, if it was given as text, has the bytes of the value that the text means.

    Raises:
        OptionError: the text is not a value of the key field.
    """
    field = topic.schema.field_of(Role.KEY)
    if not options.key_is_text or options.key is None or field is None:
        return options
    text = options.key.decode()
    try:
        return replace(options, key=row_writer(topic.schema).key_of(_value_of(text, field, topic)))
    except RowError as error:
        raise OptionError(f"option 'key': {error}.") from error


def _value_of(text: str, field: Field, topic: TypedTopic) -> Any:
    kind = field.type.kind
    if kind is Kind.BINARY:
        raise OptionError(
            f"option 'key': the key field {field.name!r} is binary: give its bytes in 'keyHex' as hexadecimal digits."
        )
    if kind in INTEGERS:
        if not _INTEGER.fullmatch(text):
            raise OptionError(f"option 'key': {text[:60]!r} is not an integer, as the key field {field.name!r} is.")
        return int(text)
    return row_of_object(topic.schema, {field.name: text})[field.name]
