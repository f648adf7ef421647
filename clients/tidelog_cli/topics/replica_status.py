"""The copies of a partition: how far each lags, and its fault."""

from __future__ import annotations

from collections.abc import Collection
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


def copies_text(partition: Partition, *, down: Collection[str] = ()) -> str:
    """Return a partition's copies, with lag and fault if the owner reports them.

    Args:
        down: the nodes that are not alive. The owner reports their copies as complete until there are newer records.
    """
    replicas = {replica.node_id: replica for replica in partition.replicas}
    return " ".join(
        _copy_text(node_id, replicas.get(node_id), is_down=node_id in down) for node_id in partition.placement
    )


def _copy_text(node_id: str, replica: Replica | None, *, is_down: bool) -> str:
    if replica is None:
        return f"{node_id} (down)" if is_down else node_id
    words = [] if is_down and not replica.lag else [f"{replica.lag:,}"]
    if is_down:
        words.append("down")
    if not replica.streaming and not is_down:
        words.append("catching up")
    if replica.missing_records:
        words.append(f"{replica.missing_records:,} older to fetch")
    if replica.copy_fault:
        words.append(FAULT_WORDS.get(replica.copy_fault, replica.copy_fault))
    # Nodes of earlier versions do not report faults, so a fault is inferred.
    elif replica.missing_epochs and not replica.missing_records:
        words.append("incomplete")
    return f"{replica.node_id} ({', '.join(words)})"
