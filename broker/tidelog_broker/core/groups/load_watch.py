"""How much is read of each partition of a group, and when that is worth another target. No I/O and no clock.

Members say what they read. It is known of a partition beyond the member that said it, so that whoever has it next has
it with its load. None of it is durable: a coordinator that takes over is told within seconds.

Moving a partition costs those who read it a moment, and rates are never still. So another target is made only when
nothing has changed for a while, when every partition's rate is known, when a member reads much more than the mean, and
when the other target takes a good part off such a member. Each such target makes the wait for the next one longer.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from collections.abc import Set as AbstractSet
from math import isfinite
from typing import Final

from tidelog_broker.core.groups.assignors import Question, assign
from tidelog_broker.core.groups.evening import Assignment
from tidelog_broker.core.topics import PartitionKey
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.limits import LOAD_BYTES_S_MAX

BUSY: Final = 1.25
"""A member that reads so many times the mean reads too much."""
GAIN: Final = 0.08
"""So much smaller another target makes the sum of the squares of what members read, in squares of the mean: as a tenth
of the mean does that goes from a member at 1.25 of it to one at 0.75."""
SPARE_BYTES_S: Final = 1_000.0
"""Who reads no more than so much above the mean is left alone, whatever the mean is."""
WAIT_MIN_S: Final = 10.0
"""So long a target stands at least before loads bring another one..."""
WAIT_MAX_S: Final = 300.0
"""...and with every one that they have brought twice as long, up to this."""
CALM_S: Final = 600.0
"""When loads have brought none for so long, the wait begins anew."""
LOOK_EVERY_S: Final = 2.0
"""Whether members differ is looked at so often; where no other target helps, that is tried as seldom as loads move."""


class LoadWatch:
    """See the module.

    Attributes:
        rates: bytes per second, by partition.
    """

    def __init__(self) -> None:
        self.rates: dict[PartitionKey, float] = {}
        self._generation = -1
        self._look_at = 0.0
        self._wait_s = WAIT_MIN_S
        self._in_vain_s = WAIT_MIN_S
        """So long another target is not looked for when the next one is not worth it."""
        self._brought_at: float | None = None
        """When loads last brought a target."""

    def note(self, said: Mapping[PartitionKey, float], held: Collection[PartitionKey]) -> None:
        """Take in what a member reads of what it holds; of others, and what is no rate, it may say what it likes."""
        for key, rate in said.items():
            if key in held and isfinite(rate) and 0 <= rate <= LOAD_BYTES_S_MAX:
                self.rates[key] = rate

    def keep(self, partitions: Collection[PartitionKey]) -> None:
        """Forget the rates of all other partitions."""
        self.rates = {key: rate for key, rate in self.rates.items() if key in partitions}

    def is_due(self, now: float, generation: int) -> bool:
        """Tell whether it is time to ask `is_uneven`, for a target that stands since `generation` began.

        Args:
            now: seconds of a clock that does not go back, the same at every call.
            generation: the group's; that it has changed is noticed here.
        """
        if generation != self._generation:
            self._generation = generation
            self._look_at = now + self._wait_s
            self._in_vain_s = WAIT_MIN_S
            return False
        if now < self._look_at:
            return False
        self._look_at = now + LOOK_EVERY_S
        return True

    def is_uneven(self, held: Collection[AbstractSet[PartitionKey]]) -> bool:
        """Tell whether a member reads too much, so that `is_worth_it` is to be asked; not while a rate is unknown.

        Args:
            held: what each member has.
        """
        if not all(self.rates.keys() >= keys for keys in held):
            return False
        loads = self._loads(held)
        if loads and self._is_too_much(max(loads), sum(loads) / len(loads)):
            return True
        self._in_vain_s = WAIT_MIN_S
        return False

    def is_worth_it(self, asked: Question, now: float) -> bool:
        """Tell whether to make another target by load, and note that it is made if so.

        That takes tens of milliseconds for thousands of partitions.

        Args:
            asked: what the target would be made of: `has` is the target that stands, the rates are known.
            now: as for `is_due`.
        """
        old: Assignment = {member: set() for member in asked.members}
        for key in asked.partitions:
            if (member := asked.has.get(key)) in old:
                old[member].add(key)
        mean = sum(self._loads(old.values())) / len(old)
        self._look_at = now + self._in_vain_s
        self._in_vain_s = min(2 * self._in_vain_s, WAIT_MAX_S)
        new = assign(pb.BY_LOAD, asked)
        before, after = (sum(load**2 for load in self._loads(each.values())) for each in (old, new))
        if before - after < GAIN * mean**2:
            return False
        is_calm = self._brought_at is None or now - self._brought_at >= CALM_S
        self._wait_s = min(2 * (WAIT_MIN_S if is_calm else self._wait_s), WAIT_MAX_S)
        self._brought_at = now
        return True

    def _loads(self, held: Iterable[Collection[PartitionKey]]) -> list[float]:
        return [sum(self.rates.get(key, 0.0) for key in keys) for keys in held]

    @staticmethod
    def _is_too_much(load: float, mean: float) -> bool:
        return load >= BUSY * mean and load - mean >= SPARE_BYTES_S
