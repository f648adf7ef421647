"""What clients asked for and what they were told: the evidence against which the final logs are held."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from tidelog_broker.core.topics import PartitionKey
from tidelog_proto import broker_pb2 as pb

Outcome = Literal["pending", "stored", "not written", "unknown"]


class PublishReply(NamedTuple):
    """What a client is told. "denied": nothing was written by this attempt, and never will be; "unknown": who knows."""

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
    """What its records say, where that decides."""


class Seen(NamedTuple):
    """A batch that a consumer was given."""

    epoch: int
    base_offset: int
    digest: int
    payload: int


@dataclass(slots=True)
class Delivered:
    """What one consumer has read of a partition, batch by batch in order."""

    key: PartitionKey
    batches: list[Seen] = field(default_factory=list)


@dataclass(slots=True)
class History:
    """Everything of a run."""

    publishes: list[Publish] = field(default_factory=list)
    consumers: list[Delivered] = field(default_factory=list)

    def acked(self) -> int:
        """How many publishes were said to be stored."""
        return sum(publish.outcome == "stored" for publish in self.publishes)
