"""Quotas and their usage, and their conversion to and from wire messages."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Final

from tidelog.errors import InvalidRequestError
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.limits import UNLIMITED


@dataclass(frozen=True, slots=True)
class Quota:
    """Limits of a principal or of an address.

    A limit of None is not set by this quota; `math.inf` means unlimited, even if a broader quota has a limit.

    Attributes:
        produce_bytes, consume_bytes: bytes of record batches per second on each node; at least 4 KiB.
        requests: requests per second on each node; at least 1.
        connections: open connections on each node; 0: none are accepted.
        in_flight_bytes: bytes of requests that each node is processing; at least 4 KiB.
        topics, partitions, groups: number in the cluster that the principal has created and that still exist.
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
    """The usage of a principal or network with a quota, on one node.

    Attributes:
        node: the node's id.
        caller: a principal, or "address:CIDR".
        connections: number of open connections of the principal or network.
        waiting: how many of these connections are throttled.
        in_flight_bytes: bytes of their requests that the node is processing; 0 without a limit on requests.
        throttled_s: total time for which their connections and fetches were throttled.
        produce_debt_s, consume_debt_s: how long publishing or consuming must pause to be within the quota.
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
    """Return a quota in wire form.

    Raises:
        InvalidRequestError: a limit is negative, too large or not a number.
    """
    message = pb.Quota(subject=subject)
    for name in FIELDS:
        value: float | None = getattr(quota, name)
        if value is None:
            continue
        if math.isnan(value) or value < 0 or UNLIMITED <= value < math.inf:
            raise InvalidRequestError(
                f"{name} must be >= 0 and less than {UNLIMITED}, or math.inf for no limit, got {value}"
            )
        setattr(message, name, UNLIMITED if value == math.inf else int(value))
    return message


def quota_of(message: pb.Quota) -> Quota:
    """Return a protobuf message as a `Quota`."""
    limits = {name: getattr(message, name) for name in FIELDS if message.HasField(name)}
    return Quota(**{name: math.inf if value == UNLIMITED else value for name, value in limits.items()})


def usage_of(message: pb.QuotaUsage) -> QuotaUsage:
    """Return a protobuf message as a `QuotaUsage`."""
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
