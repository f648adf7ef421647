"""DATA/meta/fences: the promised and accepted ballots of this node, per partition and epoch.

A fence is the entry of one partition and epoch. An entry replaces the previous one of its partition and epoch. The
promised and the accepted ballot never decrease, and the accepted ballot never exceeds the promised one. An entry with
`dropped` removes the fence: the epoch's decision is in the metadata journal by then, or the topic was deleted.
"""

from __future__ import annotations

from typing import Final

from tidelog_broker.storage.node.journal import JOURNAL_REMEDY
from tidelog_broker.storage.node.typed_journal import JournalKind
from tidelog_proto import broker_pb2 as pb


def fence_key(entry: pb.FenceEntry) -> tuple[bytes, int, int]:
    """Return the key of a fence: topic id, partition and epoch."""
    return entry.topic_id, entry.partition, entry.epoch


def _fault(entry: pb.FenceEntry, old: pb.FenceEntry | None) -> str:
    """Return why an entry cannot replace the previous one of its epoch, with the remedy; empty if it can."""
    contradiction = _contradiction(entry, old)
    return f"{contradiction}; {JOURNAL_REMEDY}" if contradiction else ""


def _contradiction(entry: pb.FenceEntry, old: pb.FenceEntry | None) -> str:
    if entry.dropped:
        return ""
    where = f"topic id {entry.topic_id.hex()}, partition {entry.partition}, epoch {entry.epoch}"
    if entry.HasField("accepted") and _order(entry.accepted) > _order(entry.promised):
        return f"{where}: the accepted ballot is higher than the promised one"
    if old is None or old.dropped:
        return ""
    if _order(entry.promised) < _order(old.promised):
        return f"{where}: the promised ballot would decrease"
    if _order(entry.accepted) < _order(old.accepted):
        return f"{where}: the accepted ballot would decrease"
    if old.HasField("accepted") and entry.accepted == old.accepted and entry.accepted_value != old.accepted_value:
        return f"{where}: two values accepted under the same ballot"
    if entry.deleting_below < old.deleting_below:
        return f"{where}: deleting_below would decrease from {old.deleting_below} to {entry.deleting_below}"
    if old.HasField("descriptor") and entry.descriptor != old.descriptor:
        return f"{where}: the epoch's descriptor would change"
    return ""


def _order(ballot: pb.Ballot) -> tuple[int, str, int]:
    return ballot.round, ballot.node_id, ballot.incarnation


FENCES: Final = JournalKind(
    magic=b"TLFJ",
    parse=pb.FenceEntry.FromString,
    key=fence_key,
    is_end=lambda entry: entry.dropped,
    is_sequel=False,
    fault=_fault,
)
