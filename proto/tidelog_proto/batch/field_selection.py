"""The fields of a projected typed batch: one bit for each leaf of the column `value`.

A reader names fields by their ids, which are the same in all schemas of a topic. A struct or list selects
all leaves below it, and a leaf brings the structs and lists above it. The body of a projected batch with a column
`value` begins with its selection: bit i, from the lowest bit of the first byte on, is set if the batch has leaf i of
the schema's fields without a role, depth first. Its size follows from the schema: a bit a leaf, padded to 8 bytes.

Rejected: a list of positions, which takes more bytes from 4 fields on and has to be checked for order and repetition.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache

from tidelog_proto import broker_pb2 as pb
from tidelog_proto.batch.header import BatchHeader, Codec, Flags, has_body
from tidelog_proto.batch.ipc_message import padded
from tidelog_proto.batch.row_layout import RowLayout
from tidelog_proto.errors import ProtocolError
from tidelog_proto.schema.fields import Field, fields_below
from tidelog_proto.schema.topic_schema import Schema


@lru_cache(maxsize=256)
def selection_of(schema: Schema, ids: frozenset[int]) -> bytes:
    """Return the selection of the fields `ids` and everything below them; ids without a field in `value` are ignored.

    Fields with a role are columns of the batch, which flags select.
    """
    return _packed(_chosen(schema.value_fields, ids, is_chosen=False))


@lru_cache(maxsize=1024)
def all_fields(schema: Schema) -> bytes:
    """Return the selection of all fields."""
    return _packed(True for field in fields_below(schema.value_fields) if field.is_leaf)


@lru_cache(maxsize=256)
def narrowed_layout(schema: Schema, selection: bytes) -> RowLayout:
    """Return the layout of batches of a schema with the fields of a selection.

    Raises:
        ValueError: a bit without a leaf is set, or the size is not that of a selection of this schema.
    """
    leaves = sum(field.is_leaf for field in fields_below(schema.value_fields))
    bits = int.from_bytes(selection, "little")
    if len(selection) != padded(-(-leaves // 8)) or bits >> leaves:
        raise ValueError(f"the selection {selection.hex()} of fields does not fit the {leaves} leaves of the schema")
    return RowLayout(schema, tuple(_picked(schema.value_fields, iter([bool(bits >> at & 1) for at in range(leaves)]))))


def selection_in(header: BatchHeader, layout: RowLayout, body: memoryview) -> tuple[RowLayout, memoryview]:
    """Return the layout of a typed batch that a node sent to a reader, and the Arrow message in its body.

    Args:
        header: of the batch, whose schema is that of the layout.
        layout: of all fields.
        body: the body; its CRC matches.

    Raises:
        ProtocolError: CORRUPT_BATCH if the batch is projected and its codec compresses whole messages, or its body does
            not begin with a selection of fields of the schema.
    """
    if not header.flags & Flags.PROJECTED or not has_body(header):
        return layout, body
    if header.codec in {Codec.GZIP, Codec.SNAPPY}:
        raise _corrupt(
            f"a projected batch with a schema has the codec {header.codec.name.lower()}; expected none, lz4 or zstd"
        )
    if not header.flags & Flags.VALUE:
        return layout, body
    size = len(all_fields(layout.schema))
    if len(body) < size:
        raise _corrupt(f"the body of a projected batch has {len(body)} bytes; its selection of fields has {size}")
    try:
        return narrowed_layout(layout.schema, bytes(body[:size])), body[size:]
    except ValueError as error:
        raise _corrupt(str(error)) from error


def _chosen(fields: Sequence[Field], ids: frozenset[int], *, is_chosen: bool) -> Iterator[bool]:
    """Yield for each leaf whether it or a field above it has one of the ids."""
    for field in fields:
        is_named = is_chosen or field.id in ids
        if field.is_leaf:
            yield is_named
        else:
            yield from _chosen(field.children, ids, is_chosen=is_named)


def _packed(chosen: Iterator[bool]) -> bytes:
    bits = leaves = 0
    for leaf in chosen:
        bits |= leaf << leaves
        leaves += 1
    return bits.to_bytes(padded(-(-leaves // 8)), "little")


def _picked(fields: Sequence[Field], leaves: Iterator[bool]) -> Iterator[Field]:
    """Yield the chosen leaves, and the fields above them with these children only."""
    for field in fields:
        if field.is_leaf:
            if next(leaves):
                yield field
        elif children := tuple(_picked(field.children, leaves)):
            yield replace(field, children=children)


def _corrupt(message: str) -> ProtocolError:
    return ProtocolError(pb.CORRUPT_BATCH, message)
