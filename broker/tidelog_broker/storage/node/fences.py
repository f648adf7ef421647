"""DATA/meta/fences: what this node has promised and accepted, per partition and epoch.

An entry replaces the one before it of the same partition and epoch, and never goes back: the promised ballot only
rises, and so does the accepted one, which never exceeds the promise. A dropped fence is gone from the state; its
decision stands in the metadata journal by then.
"""

from __future__ import annotations

from typing import Final

from tidelog_broker.storage.node.typed_journal import JournalKind
from tidelog_proto import broker_pb2 as pb


def fence_key(entry: pb.FenceEntry) -> tuple[bytes, int, int]:
    """Return what a fence is about: topic id, partition and epoch."""
    return entry.topic_id, entry.partition, entry.epoch


def _regression(entry: pb.FenceEntry, old: pb.FenceEntry | None) -> str:
    """Return what an entry would take back; empty when it only goes forward."""
    if entry.dropped:
        return ""
    where = f"partition {entry.partition}, epoch {entry.epoch}"
    if entry.HasField("accepted") and _order(entry.accepted) > _order(entry.promised):
        return f"{where}: a ballot accepted above the promise"
    if old is None or old.dropped:
        return ""
    if _order(entry.promised) < _order(old.promised):
        return f"{where}: the promise would go back"
    if _order(entry.accepted) < _order(old.accepted):
        return f"{where}: the accepted ballot would go back"
    if old.HasField("accepted") and entry.accepted == old.accepted and entry.accepted_value != old.accepted_value:
        return f"{where}: another value under the same ballot"
    if entry.deleting_below < old.deleting_below:
        return f"{where}: what is to be deleted would become less"
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
    fault=_regression,
)
