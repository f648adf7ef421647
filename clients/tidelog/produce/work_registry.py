"""The roll of a piece of work that several do in parts: who begins one is entered before anything of it is stored.

It is the epoch of one more producer id, in partition 0 of the topic, to which nobody writes records: the first epoch of
the piece says that somebody has begun a part of it, and a higher one up to which number parts have. Epochs only rise,
so the roll forgets nobody, and it costs a control record or two a piece, not one a part.

A piece has fewer epochs than parts, so the roll names a number that is some 6 % too high at most; to 16 it is exact.

Whoever is the first of a piece knows that nobody has stored anything of it, under whatever number. Of two who begin at
the same time one is; where its answer gets lost none is, and they look for what there is not.
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
"""Of steps from 1, see `parts_at`."""
assert _BOUNDS[-1] >= PARTS_MAX, "every part has a step"


def step_of(part: int) -> int:
    """Return the epoch's step, 1 or more, that says that parts up to this one have been begun."""
    return bisect_right(_BOUNDS, part) + 1


def parts_at(step: int) -> int:
    """Return below which number all parts are that a step, from 0, stands for."""
    return _BOUNDS[step - 1] if step else 0


class Registration(NamedTuple):
    """What the roll had when a part was entered.

    Attributes:
        is_first: whether nobody had begun a part of the piece.
        parts: all that had been begun are numbered below this, as may be some that had not; 0 for the first.
    """

    is_first: bool
    parts: int


async def register_part(router: Router, topic: str, topic_id: bytes, work: Work) -> Registration:
    """Enter a part, and return what was there before.

    Args:
        router: the client's.
        topic: its name.
        topic_id: its id, of 16 bytes.
        work: with a part.

    Raises:
        ProducerFencedError: somebody has begun a later piece.
        TidelogError: partition 0 did not take it.
    """
    assert work.part is not None, "it has a part"
    numbers = numbers_of(Work(f"{work.name}\0roll", work.piece))
    written = await write_epoch(router, topic_id, [0], numbers.producer_id, numbers.first_epoch)
    is_first, newest = written.is_new_at(numbers.first_epoch), written.newest
    epoch = max(newest, numbers.first_epoch + step_of(work.part) * EPOCHS_PER_INSTANCE)
    while epoch <= numbers.last_epoch:
        # Also where another has entered as much: an owner tells of what is not committed yet, and may lose it.
        written = await write_epoch(router, topic_id, [0], numbers.producer_id, epoch)
        if written.newest == epoch:
            return Registration(is_first, parts_at((newest - numbers.first_epoch) // EPOCHS_PER_INSTANCE))
        epoch = written.newest
    raise fenced_error(work, topic)
