"""The copies of a partition: how far each lags, and its fault."""

from __future__ import annotations

from typing import Final

from tidelog import Partition
from tidelog.model import Replica

FAULT_WORDS: Final = {
    "short": "may be short",
    "damaged": "damaged",
    "limbo": "in limbo",
    "failed": "its disk failed",
}
"""Texts of a copy's faults; `docs/clusters.md` explains them."""


def copies_text(partition: Partition) -> str:
    """Return a partition's copies, with lag and fault if the owner reports them."""
    replicas = {replica.node_id: replica for replica in partition.replicas}
    return " ".join(
        node_id if (replica := replicas.get(node_id)) is None else _replica_text(replica)
        for node_id in partition.placement
    )


def _replica_text(replica: Replica) -> str:
    words = [f"{replica.lag:,}"]
    if not replica.streaming:
        words.append("catching up")
    if replica.missing_records:
        words.append(f"{replica.missing_records:,} older to fetch")
    if replica.copy_fault:
        words.append(FAULT_WORDS.get(replica.copy_fault, replica.copy_fault))
    elif replica.missing_epochs and not replica.missing_records:  # Nodes of earlier versions do not report faults.
        words.append("not whole")
    return f"{replica.node_id} ({', '.join(words)})"
