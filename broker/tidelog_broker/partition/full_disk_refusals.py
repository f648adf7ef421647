"""Counter of the publishes that a node refused because its disk was full, for `node.disk_log` and for readiness.

The publishes are refused in `partition.pipeline`; `storage.io.errors` converts ENOSPC into the `DiskFullError` that
causes it. Retention on a full disk: `partition.retention`.
"""

from __future__ import annotations

import math


class FullDiskRefusals:
    """Counts refused publishes of all partitions of a node.

    Attributes:
        count: number of refused publishes since the node started.
        at_s: when the last publish was refused, on the monotonic clock; -inf before the first.
    """

    def __init__(self) -> None:
        self.count = 0
        self.at_s = -math.inf

    def add(self, publishes: int, at_s: float) -> None:
        """Count publishes refused at `at_s`."""
        self.count += publishes
        self.at_s = at_s
