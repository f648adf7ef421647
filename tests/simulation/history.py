"""Requests of clients and the answers: the evidence for the checks of the final logs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from tidelog_broker.core.topics import PartitionKey
from tidelog_proto import broker_pb2 as pb

Outcome = Literal["pending", "stored", "not written", "unknown"]


class PublishReply(NamedTuple):
    """Answer to a client. "denied": this attempt has written nothing and never will; "unknown": no statement."""

    kind: Literal["stored", "denied", "unknown"]
    base_offset: int = -1
    end_offset: int = -1
    epoch: int = -1
    error: int = 0
    owner_hint: str = ""
    duplicates: int = 0


@dataclass(slots=True)
class Publish:
    """One batch of a producer, over all its attempts. `producer_id` 0: it was tried once."""

    key: PartitionKey
    producer_id: int
    base_sequence: int
    records: int
    payload: int
    acks: pb.Acks
    attempts: int = 0
    outcome: Outcome = "pending"
    base_offset: int = -1
    epoch: int = -1
    contents: tuple[int, ...] = ()
    """Contents of the records, where they matter."""


class Seen(NamedTuple):
    """A batch that a consumer was given."""

    epoch: int
    base_offset: int
    digest: int
    payload: int


@dataclass(slots=True)
class Delivered:
    """Batches of a partition that one consumer has read, in order."""

    key: PartitionKey
    batches: list[Seen] = field(default_factory=list)


@dataclass(slots=True)
class History:
    """Everything of a run."""

    publishes: list[Publish] = field(default_factory=list)
    consumers: list[Delivered] = field(default_factory=list)

    def acked(self) -> int:
        """Number of acknowledged publishes."""
        return sum(publish.outcome == "stored" for publish in self.publishes)
