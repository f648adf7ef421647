"""Projection of typed batches onto the columns and fields that a reader requested, without decoding them.

As in `projection.py` the buffers of the requested columns are copied after new metadata, in whatever compression they
have; here a part of the column `value` can be requested, too. The body then begins with the fields that the batch has
(`field_selection.py`), and readers decode it with the layout of these fields. `value` without any field tells only
which records are tombstones.
"""

from __future__ import annotations

from functools import lru_cache

from tidelog_proto.batch.field_selection import all_fields, narrowed_layout, selection_of
from tidelog_proto.batch.header import COLUMN_FLAGS, Buffer, Codec, Flags, crc_checked_body, unpack_header
from tidelog_proto.batch.ipc_message import buffer_lengths, parse_message
from tidelog_proto.batch.message_template import message_template
from tidelog_proto.batch.projection import (
    Cut,
    head_alone,
    is_sent_whole,
    needs_body,
    projected_batch,
)
from tidelog_proto.batch.row_layout import RowLayout, check_arrays


def project_rows(batch: Buffer, layout: RowLayout, *, columns: int, fields: frozenset[int]) -> Buffer:
    """Return the projection of exactly one typed batch's bytes, or the batch unchanged.

    Args:
        batch: a batch as it is stored.
        layout: of its schema.
        columns: flags of the requested columns.
        fields: ids of the requested fields of the column `value`; those that the schema does not have are ignored. The
            caller bounds their number.

    Raises:
        ProtocolError: as `unpack_header`; CORRUPT_BATCH if the schema is not that of the layout, or the body is
            damaged, which is not checked for a batch that is returned unchanged.
    """
    header = unpack_header(batch, typed=True)
    layout.check_header(header)
    kept_flags = header.flags & columns & COLUMN_FLAGS
    selection = selection_of(layout.schema, fields) if kept_flags & Flags.VALUE else b""
    if kept_flags == header.flags & COLUMN_FLAGS and selection == all_fields(layout.schema):
        return batch
    if not needs_body(header, columns):
        return head_alone(header)
    if is_sent_whole(header):
        return batch
    body = crc_checked_body(header, batch)
    description = parse_message(body, typed=True)
    lengths = buffer_lengths(body, description)
    check_arrays(layout.plan(header.flags), description, lengths, header.record_count)
    stored = header.flags & (COLUMN_FLAGS | Flags.DERIVED)
    cut = _cut(layout, stored, kept_flags, selection, header.codec)
    return projected_batch(header, body, description, lengths, cut)


@lru_cache(maxsize=256)
def _cut(layout: RowLayout, stored: int, kept_flags: int, selection: bytes, codec: Codec) -> Cut:
    """Return how messages are cut.

    Args:
        layout: of all fields.
        stored: flags of the columns of the message.
        kept_flags: flags of the columns that the result has, besides the offset deltas of a derived batch.
        selection: of the fields of `value`, if the result has it.
    """
    narrowed = narrowed_layout(layout.schema, selection) if selection else layout
    wanted = iter(narrowed.plan(kept_flags | stored & Flags.DERIVED).arrays)
    nodes: list[int] = []
    buffers: list[int] = []
    buffer_at = 0
    target = next(wanted, None)
    for node, array in enumerate(layout.plan(stored).arrays):
        count = 1 + array.offsets + (array.data_bits != 0)
        if target is not None and (array.field_id, array.name) == (target.field_id, target.name):
            nodes.append(node)
            buffers += range(buffer_at, buffer_at + count)
            target = next(wanted, None)
        buffer_at += count
    assert target is None, "the arrays of the result are some of those of the batch, in their order"
    template = message_template(narrowed.stored_schema(kept_flags | stored & Flags.DERIVED), codec, typed=True)
    return Cut(kept_flags, template, nodes, buffers, selection)
