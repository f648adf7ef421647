"""DATA/meta/journal: the decided chain of epochs of each partition.

A partition has one entry with its genesis, which describes its first epoch, followed by one entry for each decision
about the end of an epoch, in order. `EpochChain` checks that the decisions continue each other; the journal only stores
them, and removes a partition's entries at an entry with `forgotten`.
"""

from __future__ import annotations

from typing import Final

from tidelog_broker.storage.node.typed_journal import JournalKind
from tidelog_proto import broker_pb2 as pb


def _fault(entry: pb.ChainEntry, _before: pb.ChainEntry | None) -> str:
    return "" if entry.WhichOneof("entry") else "an entry has an unknown kind: use the newer build that wrote it"


CHAINS: Final = JournalKind(
    magic=b"TLMJ",
    parse=pb.ChainEntry.FromString,
    key=lambda entry: (entry.topic_id, entry.partition),
    is_end=lambda entry: entry.WhichOneof("entry") == "forgotten",
    is_sequel=True,
    fault=_fault,
)
