"""Quotas as the client writes and reads them: how much somebody may have."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Final

from tidelog.errors import InvalidRequestError
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.limits import UNLIMITED


@dataclass(frozen=True, slots=True)
class Quota:
    """How much somebody may have. None: this quota does not say; `math.inf`: no bound, whatever a broader one says.

    Attributes:
        produce_bytes, consume_bytes: of record batches, a second, at each node; at least 4 KiB.
        requests: a second, at each node; at least 1.
        connections: at each node; 0: none.
        in_flight_bytes: of requests that a node works on, at each node; at least 4 KiB.
        topics, partitions, groups: that he has made and that are there, in the cluster.
    """

    produce_bytes: float | None = None
    consume_bytes: float | None = None
    requests: float | None = None
    connections: float | None = None
    in_flight_bytes: float | None = None
    topics: float | None = None
    partitions: float | None = None
    groups: float | None = None


@dataclass(frozen=True, slots=True)
class QuotaUsage:
    """What a caller that a quota is about uses of one node.

    Attributes:
        node: the node's id.
        caller: a principal, or "address:CIDR".
        connections: that it has.
        waiting: how many of them are held back.
        in_flight_bytes: of its requests that the node works on; 0 where nothing of a request is bounded.
        throttled_s: for how long its connections and fetches were held back, all together.
        produce_debt_s, consume_debt_s: for how long it has had enough.
    """

    node: str
    caller: str
    connections: int
    waiting: int
    in_flight_bytes: int
    throttled_s: float
    produce_debt_s: float
    consume_debt_s: float


FIELDS: Final = tuple(field.name for field in fields(Quota))


def quota_to(subject: str, quota: Quota) -> pb.Quota:
    """Return a quota as it travels.

    Raises:
        InvalidRequestError: a limit is negative, or no number.
    """
    message = pb.Quota(subject=subject)
    for name in FIELDS:
        value: float | None = getattr(quota, name)
        if value is None:
            continue
        if math.isnan(value) or value < 0 or UNLIMITED <= value < math.inf:
            raise InvalidRequestError(f"{name} is {value}; it is 0 or more, or math.inf for no bound")
        setattr(message, name, UNLIMITED if value == math.inf else int(value))
    return message


def quota_of(message: pb.Quota) -> Quota:
    """Return a quota as it is shown."""
    named = {name: getattr(message, name) for name in FIELDS if message.HasField(name)}
    return Quota(**{name: math.inf if value == UNLIMITED else value for name, value in named.items()})


def usage_of(message: pb.QuotaUsage) -> QuotaUsage:
    """Return what a node has told of a caller."""
    return QuotaUsage(
        message.node_id,
        message.caller,
        message.connections,
        message.waiting,
        message.in_flight_bytes,
        message.throttled_ms / 1000,
        message.produce_debt_ms / 1000,
        message.consume_debt_ms / 1000,
    )
