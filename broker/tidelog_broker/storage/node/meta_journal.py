"""DATA/meta/journal: the decided chain of epochs of each partition.

Each partition has its genesis and its decisions in order. The chain itself checks that decisions continue each other;
the journal only stores them, and drops a partition when an entry says so.
"""

from __future__ import annotations

from typing import Final

from tidelog_broker.storage.node.typed_journal import JournalKind
from tidelog_proto import broker_pb2 as pb


def _fault(entry: pb.ChainEntry, _before: pb.ChainEntry | None) -> str:
    return "" if entry.WhichOneof("entry") else "an entry has an unknown kind; use the newer build that wrote it"


CHAINS: Final = JournalKind(
    magic=b"TLMJ",
    parse=pb.ChainEntry.FromString,
    key=lambda entry: (entry.topic_id, entry.partition),
    is_end=lambda entry: entry.WhichOneof("entry") == "forgotten",
    is_sequel=True,
    fault=_fault,
)
