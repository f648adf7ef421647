"""What the nodes and buffers of a batch's Arrow message must be, exactly, for the columns that its flags name.

Arrow describes an array as a node (length, null count) and its buffers, depth first: a validity bitmap, then offsets
for what has a variable length, then data. pyarrow takes the counts on trust as long as they do not point outside the
body; here every size that follows from the counts is compared with them. That is also what tells 64-bit offsets from
32-bit ones: they fit where 32-bit ones are expected, and would be read as wrong values.
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
    """What one array must be like.

    Attributes:
        name: for messages to people.
        nullable: whether there may be nulls.
        nested: False when its length is the record count, True for what lies inside of header lists.
        offsets: whether a buffer of length + 1 offsets follows the validity bitmap.
        data: whether a data buffer follows.
        item_bytes: bytes an item in the data buffer; 0 when offsets say it.
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
    """Compare a message's nodes and buffers with what the header says.

    Args:
        message: as it describes itself.
        lengths: of its buffers in bytes, decompressed (`buffer_lengths`).
        flags: of the header.
        record_count: of the header.

    Raises:
        ProtocolError: CORRUPT_BATCH.
    """
    plan = _plan(flags & (COLUMN_FLAGS | Flags.DERIVED))
    if message.record_count != record_count:
        raise _corrupt(f"{message.record_count} rows in the body, {record_count} records in the header")
    if len(message.nodes) != len(plan.nodes) or len(lengths) != plan.buffer_count:
        raise _corrupt(
            f"{len(message.nodes)} arrays in {len(lengths)} buffers; "
            f"the header's columns have {len(plan.nodes)} in {plan.buffer_count}"
        )
    buffers = iter(lengths)
    nested_count = -1
    for node, (length, null_count) in zip(plan.nodes, message.nodes, strict=True):
        if node.nested and nested_count < 0:
            nested_count = length
        if length != (nested_count if node.nested else record_count) or length < 0:
            raise _corrupt(f"{node.name}: {length} entries in a batch of {record_count} records")
        if not 0 <= null_count <= (length if node.nullable else 0):
            raise _corrupt(f"{node.name}: {null_count} nulls")
        validity_bytes = -(-length // 8) if null_count else 0
        _expect(node, "validity", next(buffers), validity_bytes, _at_most(validity_bytes))
        if node.offsets:
            offsets_bytes = next(buffers)
            # Arrow lets an array without entries go without offsets.
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


def places_of(flags: int, kept: int) -> tuple[list[int], list[int]]:
    """Return which nodes and which buffers, of a message with the columns of `flags`, are those of the columns `kept`.

    The offset deltas of a derived batch are always among them.
    """
    nodes: list[int] = []
    buffers: list[int] = []
    node_at = buffer_at = 0
    for flag, column in _NODES:
        if not flags & flag:
            continue
        buffer_count = sum(1 + node.offsets + node.data for node in column)
        if flag & (kept | Flags.DERIVED):
            nodes += range(node_at, node_at + len(column))
            buffers += range(buffer_at, buffer_at + buffer_count)
        node_at += len(column)
        buffer_at += buffer_count
    return nodes, buffers


def _at_most(needed_bytes: int) -> int:
    """Return how long a buffer of fixed-size items may be: of a slice, Arrow's writer cuts whole cache lines only."""
    return -(-needed_bytes // _WRITER_PADDING_BYTES) * _WRITER_PADDING_BYTES


def _expect(node: _Node, what: str, actual_bytes: int, needed_bytes: int, most_bytes: int) -> None:
    """Refuse a buffer that is too short, or longer than padding explains."""
    if not needed_bytes <= actual_bytes <= most_bytes:
        raise _corrupt(f"{node.name}: {actual_bytes} bytes of {what} where {needed_bytes} are needed")


def _corrupt(message: str) -> ProtocolError:
    return ProtocolError(pb.CORRUPT_BATCH, message)
