"""Validation of the nodes and buffers of a batch's Arrow message against the columns in the header's flags.

Arrow describes an array as a node (length, null count) and its buffers, depth first: a validity bitmap, offsets for
variable-length types, then data. pyarrow accepts inconsistent counts as long as they do not point outside the body;
here every buffer size is compared with the counts. This also detects 64-bit offsets where 32-bit ones are expected,
which pyarrow would read as wrong values.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final, NamedTuple

from tidelog_proto import broker_pb2 as pb
from tidelog_proto.batch.header import COLUMN_FLAGS, Flags
from tidelog_proto.batch.ipc_message import Message, padded
from tidelog_proto.errors import ProtocolError

_OFFSET_BYTES: Final = 4
_TIMESTAMP_BYTES: Final = 8
_DELTA_BYTES: Final = 4
_WRITER_PADDING_BYTES: Final = 64


class _Node(NamedTuple):
    """Expected properties of one array.

    Attributes:
        name: the array's name in messages.
        nullable: whether nulls are allowed.
        nested: whether the array is inside header lists; otherwise its length is the record count.
        offsets: whether a buffer of length + 1 offsets follows the validity bitmap.
        data: whether a data buffer follows.
        item_bytes: size of an item in the data buffer; 0 for variable lengths.
    """

    name: str
    nullable: bool = True
    nested: bool = False
    offsets: bool = True
    data: bool = True
    item_bytes: int = 0


_NODES: Final = (
    (Flags.DERIVED, (_Node("offset delta", nullable=False, offsets=False, item_bytes=_DELTA_BYTES),)),
    (Flags.TIMESTAMP, (_Node("timestamp", nullable=False, offsets=False, item_bytes=_TIMESTAMP_BYTES),)),
    (Flags.KEY, (_Node("key"),)),
    (Flags.VALUE, (_Node("value"),)),
    (
        Flags.HEADERS,
        (
            _Node("headers", nullable=False, data=False),
            _Node("a header", nullable=False, nested=True, offsets=False, data=False),
            _Node("a header's key", nullable=False, nested=True),
            _Node("a header's value", nested=True),
        ),
    ),
    (Flags.TAG, (_Node("tag"),)),
)


class _Plan(NamedTuple):
    nodes: tuple[_Node, ...]
    buffer_count: int


def check_layout(message: Message, lengths: list[int], *, flags: int, record_count: int) -> None:
    """Check a message's nodes and buffers against the header.

    Args:
        message: the parsed message.
        lengths: sizes of the message's buffers in bytes, after decompression (`buffer_lengths`).
        flags: the flags in the header.
        record_count: the record count in the header.

    Raises:
        ProtocolError: CORRUPT_BATCH.
    """
    plan = _plan(flags & (COLUMN_FLAGS | Flags.DERIVED))
    if message.record_count != record_count:
        raise _corrupt(f"the body has {message.record_count} rows, but the header declares {record_count} records")
    if len(message.nodes) != len(plan.nodes) or len(lengths) != plan.buffer_count:
        raise _corrupt(
            f"the body has {len(message.nodes)} arrays in {len(lengths)} buffers; "
            f"the columns that the header declares require {len(plan.nodes)} arrays in {plan.buffer_count} buffers"
        )
    buffers = iter(lengths)
    nested_count = -1
    for node, (length, null_count) in zip(plan.nodes, message.nodes, strict=True):
        if node.nested and nested_count < 0:
            nested_count = length
        expected = nested_count if node.nested else record_count
        if length != expected or length < 0:
            wanted = "0 or more" if expected < 0 else expected
            raise _corrupt(f"the Arrow array of {node.name}: {length} entries, expected {wanted}")
        nulls_max = length if node.nullable else 0
        if not 0 <= null_count <= nulls_max:
            raise _corrupt(
                f"the Arrow array of {node.name}: {null_count} nulls in {length} entries, expected 0 to {nulls_max}"
            )
        validity_bytes = -(-length // 8) if null_count else 0
        _expect(node, "validity", next(buffers), validity_bytes, _at_most(validity_bytes))
        if node.offsets:
            offsets_bytes = next(buffers)
            # Arrow allows an empty array to have no offsets.
            if length or offsets_bytes:
                needed_bytes = (length + 1) * _OFFSET_BYTES
                _expect(node, "offsets", offsets_bytes, needed_bytes, padded(needed_bytes))
        if node.data:
            data_bytes = next(buffers)
            if node.item_bytes:
                needed_bytes = length * node.item_bytes
                _expect(node, "data", data_bytes, needed_bytes, _at_most(needed_bytes))


@lru_cache(maxsize=64)
def _plan(flags: int) -> _Plan:
    nodes = tuple(node for flag, column in _NODES if flags & flag for node in column)
    return _Plan(nodes, sum(1 + node.offsets + node.data for node in nodes))


def places_of(flags: int, kept_flags: int) -> tuple[list[int], list[int]]:
    """Return the indices of the nodes and buffers of the columns `kept_flags`, in a message with columns `flags`.

    The offset deltas of a derived batch are always included.
    """
    nodes: list[int] = []
    buffers: list[int] = []
    node_at = buffer_at = 0
    for flag, column in _NODES:
        if not flags & flag:
            continue
        buffer_count = sum(1 + node.offsets + node.data for node in column)
        if flag & (kept_flags | Flags.DERIVED):
            nodes += range(node_at, node_at + len(column))
            buffers += range(buffer_at, buffer_at + buffer_count)
        node_at += len(column)
        buffer_at += buffer_count
    return nodes, buffers


def _at_most(needed_bytes: int) -> int:
    """Return the maximum size of a buffer of fixed-size items: Arrow's writer cuts slices at whole cache lines only."""
    return -(-needed_bytes // _WRITER_PADDING_BYTES) * _WRITER_PADDING_BYTES


def _expect(node: _Node, what: str, actual_bytes: int, needed_bytes: int, most_bytes: int) -> None:
    """Refuse a buffer that is too short, or longer than padding allows."""
    if not needed_bytes <= actual_bytes <= most_bytes:
        wanted = f"{needed_bytes}" if needed_bytes == most_bytes else f"{needed_bytes} to {most_bytes}"
        raise _corrupt(f"the Arrow array of {node.name}: {actual_bytes} bytes of {what}, expected {wanted}")


def _corrupt(message: str) -> ProtocolError:
    return ProtocolError(pb.CORRUPT_BATCH, message)
