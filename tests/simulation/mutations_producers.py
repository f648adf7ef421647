"""Mutations of the comparison of batches with equal numbers, and of lookups of requests with a key. See `mutants`."""

from __future__ import annotations

from collections.abc import Sequence

from tidelog_broker.core.replication import producers
from tidelog_broker.core.replication.idempotency_keys import KeyedRequests
from tidelog_broker.core.replication.producers import ProducerTable
from tidelog_proto import broker_pb2 as pb

Replacements = Sequence[tuple[object, str, object]]


def contents_not_compared() -> Replacements:
    """Of two batches with equal numbers the second one counts as a retry, regardless of its content."""
    return [(producers, "fingerprint_of", lambda _: None)]


def contents_not_kept() -> Replacements:
    """Snapshots have the offsets of batches, and not their contents."""
    original = ProducerTable.snapshot

    def snapshot(self: ProducerTable) -> bytes:
        message = pb.ProducerSnapshot.FromString(original(self))
        for producer in message.producers:
            for stored in producer.window:
                stored.ClearField("fingerprint")
        return message.SerializeToString()

    return [(ProducerTable, "snapshot", snapshot)]


def keys_not_looked_up() -> Replacements:
    """Each request with a key is taken for the first with it."""
    return [(KeyedRequests, "find", lambda _self, _id: None)]


def keys_not_kept() -> Replacements:
    """Snapshots have producers, and no requests with a key."""
    return [(KeyedRequests, "snapshot", lambda _: [])]
