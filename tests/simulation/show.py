"""Events of a trace as lines for a person: messages and journal entries in short."""

from __future__ import annotations

from google.protobuf.message import Message

from tidelog_broker.core.replication import effects as fx
from tidelog_proto import broker_pb2 as pb

_DULL = {"topic_id", "partition", "log_start_offset", "length"}
_DECISIONS = {"value", "accepted_value", "decision", "decisions"}


def show(event: tuple[int, tuple[object, ...]]) -> str:
    """Return an event as a line."""
    time_us, what = event
    return f"{time_us / 1000:10.2f} {' '.join(_text(part) for part in what)}"


def _text(part: object) -> str:
    if isinstance(part, Message):
        return _message(part)
    if isinstance(part, fx.Append | fx.AppendPartialCopy):
        return f"{type(part).__name__}(e{part.epoch} {part.base_offset}..{part.end_offset})"
    return str(part)


def _message(message: Message) -> str:
    fields = [
        f"{field.name}={_field(field.name, value)}" for field, value in message.ListFields() if field.name not in _DULL
    ]
    partition = getattr(message, "partition", None)
    where = f"/{partition} " if partition is not None else ""
    return f"{message.DESCRIPTOR.name}{where}({' '.join(fields)})"


def _field(name: str, value: object) -> str:
    if isinstance(value, pb.Ballot):
        return f"{value.round}.{value.node_id}"
    if isinstance(value, pb.EpochDescriptor):
        return _descriptor(value)
    if name in _DECISIONS:
        raws = [value] if isinstance(value, bytes) else list(value)  # type: ignore[call-overload]
        return "+".join(_decision(raw) for raw in raws)
    if isinstance(value, bytes):
        return f"{value[:4].hex()}…"
    if name == "status":
        return pb.ReplicaStatus.Name(value)  # type: ignore[arg-type]
    if isinstance(value, int) and value > 1 << 20:
        return f"{value:#x}"
    return str(value)


def _decision(raw: bytes) -> str:
    value = pb.EpochDecision.FromString(raw)
    return f"V{value.epoch}[ends {value.end_offset}, then {_descriptor(value.next)}]"


def _descriptor(value: pb.EpochDescriptor) -> str:
    owner = f"{value.owner}#{value.owner_incarnation >> 24}"
    return f"e{value.epoch}:{owner} of {'/'.join(value.placement)} a{value.ack_quorum}"
