"""Push windows: memory for batches that lagging replicas still need, shared among a node's partitions.

A replica that falls out of the push window has to catch up, which costs both sides more: at full load it reaches the
window late, and once retention has deleted records that it lacks, the epoch has to end. At 500 MB a second 8 MiB last
16 ms, less than a process may wait for a processor, and 32 MiB less than a disk may be busy. So a window holds a
quarter of a second while few partitions use theirs, and less the more partitions there are, but at least
`WINDOW_BYTES_MIN`.

Rejected: counting every group in and out. The groups that an ending epoch discards would have to be counted out in
every way in which it can end, and recomputing the sum is cheap.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tidelog_broker.core.replication.ownership import Ownership
from tidelog_proto.limits import MIB

WINDOW_BYTES_MIN: Final = MIB
WINDOW_BYTES_MAX: Final = 128 * MIB


def divide_window_memory(owners: Sequence[Ownership], bytes_max: int) -> int:
    """Divide `bytes_max` among the windows that hold batches; return the bound of each.

    The sum may exceed `bytes_max`: each bound is at least `WINDOW_BYTES_MIN`, each window keeps its newest group, and
    windows grow between two calls by what the node receives.
    """
    busy = sum(1 for owner in owners if owner.window_kept_bytes)
    window_bytes = max(WINDOW_BYTES_MIN, min(WINDOW_BYTES_MAX, bytes_max // max(busy, 1)))
    for owner in owners:
        owner.bound_window(window_bytes)
    return window_bytes
