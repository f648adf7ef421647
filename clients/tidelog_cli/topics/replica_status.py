"""The copies of a partition: how far each lags, and its fault."""

from __future__ import annotations

from typing import Any, Final

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


def copy_documents(partition: Partition) -> list[dict[str, Any]]:
    """Return a partition's copies as JSON objects; empty if its owner does not answer."""
    return [
        {
            "node_id": replica.node_id,
            "held_offset": replica.held_offset,
            "lag": replica.lag,
            "streaming": replica.streaming,
            "latency_us": replica.latency_us,
            "missing_epochs": replica.missing_epochs,
            "missing_records": replica.missing_records,
            "copy_fault": replica.copy_fault,
        }
        for replica in partition.replicas
    ]
