"""Push windows: what a node keeps in memory for replicas that are behind, shared out among its partitions.

A replica that leaves the push window pulls, which costs both sides more than pushing: at full load it comes back late,
and once retention has overtaken it, the epoch has to end for its sake. At 500 MB a second 8 MiB are gone in 16 ms, less
than a process may wait for a processor, and 32 MiB in less than a disk may be busy. So a window is as long as that, a
quarter of a second, while few partitions have something in theirs, and smaller the more there are: together they stay
within a bound that does not depend on their number.

Rejected: counting every group in and out. What an epoch that ends forgets would have to be counted out in every way in
which it can end, and the sum of what is kept is cheap enough to be taken anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tidelog_broker.core.replication.ownership import Ownership
from tidelog_proto.limits import MIB

WINDOW_BYTES_MIN: Final = MIB
WINDOW_BYTES_MAX: Final = 128 * MIB


def share_out(owners: Sequence[Ownership], bytes_max: int) -> int:
    """Bound the windows of a node's partitions so that they keep about `bytes_max` together; return the bound of each.

    Called again and again: what comes between two calls is what the node can receive in that time.
    """
    busy = sum(1 for owner in owners if owner.window_kept_bytes)
    window_bytes = max(WINDOW_BYTES_MIN, min(WINDOW_BYTES_MAX, bytes_max // max(busy, 1)))
    for owner in owners:
        owner.bound_window(window_bytes)
    return window_bytes
