"""DATA/meta/journal: the decided chains of epochs, as they were decided.

Of each partition there is its genesis, and its decisions in order. What they mean, and whether they continue each
other, is the chain's business; the journal keeps them, and forgets a partition when it is told to.
"""

from __future__ import annotations

from typing import Final

from tidelog_broker.storage.node.typed_journal import JournalKind
from tidelog_proto import broker_pb2 as pb


def _fault(entry: pb.ChainEntry, _before: pb.ChainEntry | None) -> str:
    return "" if entry.WhichOneof("entry") else "an entry of a kind that this version does not know"


CHAINS: Final = JournalKind(
    magic=b"TLMJ",
    parse=pb.ChainEntry.FromString,
    key=lambda entry: (entry.topic_id, entry.partition),
    is_end=lambda entry: entry.WhichOneof("entry") == "forgotten",
    is_sequel=True,
    fault=_fault,
)
