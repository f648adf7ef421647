"""The registry of a piece of work that is done in parts: each part registers before it stores its first record.

The registry is the epoch of a separate producer id in partition 0 of the topic; no records have this id. The first
epoch of the piece means that some part has begun. Each *step* of `EPOCHS_PER_INSTANCE` above it represents a higher
upper bound of the numbers of the parts that have begun (`parts_bound`). Epochs only increase, so no registration is
lost, and a part costs a control record only if it raises the bound, the first part also one for the first epoch.

A piece has fewer epochs than possible parts, so the bound may be up to 6 % too high; it is exact up to 16 parts.

The first part to register knows that no record of the piece is stored. If two parts register at the same time, one of
them is the first. If the answer to that part is lost, neither counts as the first, and both search for earlier records
that do not exist.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate, repeat
from typing import Final, NamedTuple

from tidelog.cluster.routing import Router
from tidelog.produce.producer_epochs import fenced_error, write_epoch
from tidelog.produce.work import INSTANCES_PER_PIECE, PARTS_MAX, Work, numbers_of
from tidelog_proto.limits import EPOCHS_PER_INSTANCE

_BOUNDS: Final = tuple(accumulate(repeat(1, INSTANCES_PER_PIECE - 1), lambda bound, _: bound + 1 + bound // 16))
"""The upper bound of part numbers for each step from 1 on; see `parts_bound`."""
assert _BOUNDS[-1] >= PARTS_MAX, "every part has a step"


def step_for(part: int) -> int:
    """Return the smallest step, from 1 on, whose bound includes this part of the work."""
    return bisect_right(_BOUNDS, part) + 1


def parts_bound(step: int) -> int:
    """Return the bound of a step, from 0 on: all parts that have begun have lower numbers."""
    return _BOUNDS[step - 1] if step else 0


class Registration(NamedTuple):
    """The state of the registry before a part was registered.

    Attributes:
        is_first: whether no part of the piece of work had begun.
        parts: the parts that had begun have numbers below this bound; 0 if no part had begun.
    """

    is_first: bool
    parts: int


async def register_part(router: Router, topic: str, topic_id: bytes, work: Work) -> Registration:
    """Register a part, and return the state of the registry before that.

    Args:
        work: the piece and part.

    Raises:
        ProducerFencedError: another producer has begun a later piece.
        TidelogError: writing to partition 0 failed.
    """
    assert work.part is not None, "the work has a part"
    numbers = numbers_of(Work(f"{work.name}\0roll", work.piece))
    written = await write_epoch(router, topic_id, [0], numbers.producer_id, numbers.first_epoch)
    is_first, newest = written.is_new_at(numbers.first_epoch), written.newest
    epoch = max(newest, numbers.first_epoch + step_for(work.part) * EPOCHS_PER_INSTANCE)
    while epoch <= numbers.last_epoch:
        # Written even if the owner returned this epoch, because the epoch may not be committed yet.
        written = await write_epoch(router, topic_id, [0], numbers.producer_id, epoch)
        if written.newest == epoch:
            return Registration(is_first, parts_bound((newest - numbers.first_epoch) // EPOCHS_PER_INSTANCE))
        epoch = written.newest
    raise fenced_error(work, topic)
