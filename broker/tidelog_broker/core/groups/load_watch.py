"""Load tracking of a group's partitions, and the decision when to rebalance by load. Sans-IO.

Members report the rates at which they read. A rate belongs to the partition and stays valid when the partition moves.
Rates are not durable: a new coordinator receives them within seconds.

Moving a partition interrupts its reader, and rates fluctuate. A rebalance therefore requires a stable assignment, known
rates of all partitions, a member well above the mean, and a new target that relieves it noticeably. Each rebalance by
load doubles the wait for the next one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from collections.abc import Set as AbstractSet
from math import isfinite
from typing import Final

from tidelog_broker.core.groups.assignors import AssignmentInput, assign
from tidelog_broker.core.groups.rebalancing import Assignment
from tidelog_broker.core.topics import PartitionKey
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.limits import LOAD_BYTES_S_MAX

OVERLOAD_FACTOR: Final = 1.25
"""A member whose load is at least this multiple of the mean is overloaded, unless `SPARE_BYTES_S` excludes it."""
GAIN_MIN: Final = 0.08
"""Minimum decrease of the sum of squared loads, in squares of the mean. Moving a tenth of the mean from a member at
1.25 of it to one at 0.75 reaches this value."""
SPARE_BYTES_S: Final = 1_000.0
"""A member that exceeds the mean by less than this is not overloaded."""
WAIT_MIN_S: Final = 10.0
"""Initial minimum age of an assignment before a rebalance by load."""
WAIT_MAX_S: Final = 300.0
"""Upper bound of that minimum age, which every rebalance by load doubles."""
RESET_S: Final = 600.0
"""Time without a rebalance by load after which the next one sets the minimum age to twice `WAIT_MIN_S`."""
CHECK_INTERVAL_S: Final = 2.0
"""Interval of the cheap check for imbalance; the expensive computation of a new target backs off if it gains little."""


class LoadWatch:
    """Tracks the loads of one group's partitions, and decides when to rebalance; see the module.

    Attributes:
        rates: bytes per second by partition.
    """

    def __init__(self) -> None:
        self.rates: dict[PartitionKey, float] = {}
        self._generation = -1
        self._look_at = 0.0
        self._wait_s = WAIT_MIN_S
        self._back_off_s = WAIT_MIN_S
        """Back-off after a new target was computed and did not reduce the imbalance enough."""
        self._rebalanced_at: float | None = None
        """Time of the last rebalance by load; None before the first one."""

    def note(self, rates: Mapping[PartitionKey, float], held: Collection[PartitionKey]) -> None:
        """Record the rates reported by a member; ignore invalid rates and partitions that it does not hold."""
        for key, rate in rates.items():
            if key in held and isfinite(rate) and 0 <= rate <= LOAD_BYTES_S_MAX:
                self.rates[key] = rate

    def keep(self, partitions: Iterable[PartitionKey]) -> None:
        """Keep the rates of these partitions, and drop those of all others."""
        if self.rates:
            self.rates = {key: self.rates[key] for key in partitions if key in self.rates}

    def is_due(self, now: float, generation: int) -> bool:
        """Return whether `is_unbalanced` should be called for the current assignment.

        Args:
            now: monotonic time in seconds.
            generation: the generation of the group; a new one restarts the wait.
        """
        if generation != self._generation:
            self._generation = generation
            self._look_at = now + self._wait_s
            self._back_off_s = WAIT_MIN_S
            return False
        if now < self._look_at:
            return False
        self._look_at = now + CHECK_INTERVAL_S
        return True

    def is_unbalanced(self, held: Collection[AbstractSet[PartitionKey]]) -> bool:
        """Return whether a member is overloaded and all rates are known; then call `should_rebalance`.

        Args:
            held: partitions of each member.
        """
        if not all(self.rates.keys() >= keys for keys in held):
            return False
        loads = self._loads(held)
        if loads and self._is_overloaded(max(loads), sum(loads) / len(loads)):
            return True
        self._back_off_s = WAIT_MIN_S
        return False

    def should_rebalance(self, inputs: AssignmentInput, now: float) -> bool:
        """Return whether to rebalance by load, and record the rebalance if so.

        Takes tens of milliseconds for thousands of partitions.

        Args:
            inputs: input of the assignor: `has` is the current target, all rates are known.
            now: as for `is_due`.
        """
        old: Assignment = {member: set() for member in inputs.members}
        for key in inputs.partitions:
            if (member := inputs.has.get(key)) in old:
                old[member].add(key)
        mean = sum(self._loads(old.values())) / len(old)
        self._look_at = now + self._back_off_s
        self._back_off_s = min(2 * self._back_off_s, WAIT_MAX_S)
        new = assign(pb.BY_LOAD, inputs)
        before, after = (sum(load**2 for load in self._loads(each.values())) for each in (old, new))
        if before - after < GAIN_MIN * mean**2:
            return False
        is_calm = self._rebalanced_at is None or now - self._rebalanced_at >= RESET_S
        self._wait_s = min(2 * (WAIT_MIN_S if is_calm else self._wait_s), WAIT_MAX_S)
        self._rebalanced_at = now
        return True

    def _loads(self, held: Iterable[Collection[PartitionKey]]) -> list[float]:
        return [sum(self.rates.get(key, 0.0) for key in keys) for keys in held]

    @staticmethod
    def _is_overloaded(load: float, mean: float) -> bool:
        return load >= OVERLOAD_FACTOR * mean and load - mean >= SPARE_BYTES_S
