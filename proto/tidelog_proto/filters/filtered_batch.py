"""Filters of stored batches by nodes, which narrow what a reader gets: the reader filters exactly."""

from __future__ import annotations

from typing import Final

from tidelog_proto import broker_pb2 as pb
from tidelog_proto.batch import derived_batch
from tidelog_proto.batch.header import Buffer, Codec, Flags, unpack_header
from tidelog_proto.batch.record_batch import RecordBatch
from tidelog_proto.batch.row_layout import Layouts, RowLayout
from tidelog_proto.batch.typed_projection import project_rows
from tidelog_proto.errors import ProtocolError
from tidelog_proto.filters.expression import NO_ROW, Expression, leaves_of
from tidelog_proto.filters.expression_messages import BoundFilter
from tidelog_proto.filters.filter_limits import FilterError
from tidelog_proto.filters.matching_rows import matching_rows
from tidelog_proto.filters.rebinding import check_expression, field_places, rebound
from tidelog_proto.schema.fields import Role

SPARSE_SHARE: Final = 16
"""If at most one of so many records matches, the others are removed; otherwise the batch is sent whole: to encode the
remaining records takes several times the time of the evaluation."""
_FLAGS: Final = {Role.NONE: Flags.VALUE, Role.TIME: Flags.TIMESTAMP, Role.KEY: Flags.KEY, Role.TAG: Flags.TAG}


def check_filter(where: BoundFilter, layouts: Layouts | None) -> None:
    """Check that a filter fits the schema to which it was bound.

    Args:
        layouts: those of the topic's schemas, by number; None for an untyped topic.

    Raises:
        ProtocolError: INVALID_REQUEST; or as `layouts` if this node does not know the schema.
    """
    if layouts is None:
        raise ProtocolError(pb.INVALID_REQUEST, "the topic is not typed: its values have no fields; remove `where`")
    schema = layouts[where.schema_number].schema
    try:
        check_expression(where.expression, schema)
    except FilterError as error:
        raise ProtocolError(pb.INVALID_REQUEST, str(error)) from None


def filter_rows(
    view: Buffer, where: BoundFilter, *, key: bytes | None, tag: str | None, layouts: Layouts
) -> Buffer | None:
    """Return a stored batch with at least the records that match; None if no record matches.

    The result is `view` itself, or a derived batch with the matching records, as `filter_batch` returns it: always with
    a key or tag, otherwise if few records match. Batches of later schemas than that of the filter are not filtered by
    it: there, fields may have wider types.

    Args:
        view: header and body.
        where: a filter that `check_filter` accepts.
        key: match records with this key; None matches all.
        tag: match records with this tag; None matches all.
        layouts: those of the topic's schemas, by number.

    Raises:
        ProtocolError: as `filter_batch`; as `layouts` if this node does not know the schema of the batch.
    """
    number = unpack_header(view, typed=True).schema_id
    if not number or number > where.schema_number:
        return derived_batch.filter_batch(view, key=key, tag=tag, layouts=layouts)
    layout = layouts[number]
    own = rebound(where.expression, layout.schema)
    if own == NO_ROW:
        return None
    rows = matching_rows(_tested_part(view, own, layout, layouts), own)
    if rows is not None and not rows.any():
        return None
    if key is None and tag is None and (rows is None or rows.sum() * SPARSE_SHARE > len(rows)):
        return view
    whole = RecordBatch.parse(view, layouts)
    keep = derived_batch.matching_rows(whole, key=key, tag=tag)
    if keep is None:
        return None
    keep = keep if rows is None else keep & rows
    return view if keep.all() else derived_batch.kept_rows(whole, keep)


def _tested_part(view: Buffer, expression: Expression, layout: RowLayout, layouts: Layouts) -> RecordBatch:
    """Return a batch with at least the fields that an expression tests; others are not decompressed."""
    if unpack_header(view, typed=True).codec is Codec.NONE:
        return RecordBatch.parse(view, layouts)
    places = field_places(layout.schema)
    ids = frozenset(leaf.field_id for leaf in leaves_of(expression))
    flags = 0
    for number in ids:
        flags |= _FLAGS[places[number].fields[0].role]
    return RecordBatch.parse(project_rows(view, layout, columns=flags, fields=ids), layouts)
