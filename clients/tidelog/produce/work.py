"""What a producer is named after, and the numbers that its name decides.

The name decides the producer id, so all that have it are instances of one producer, and their epochs, in steps of
`EPOCHS_PER_INSTANCE`, say who is the newest. A piece of a longer work has a range of instances of its own, above those
of all pieces before it.
"""

from __future__ import annotations

import hashlib
from typing import Final, NamedTuple

from tidelog.errors import InvalidRequestError
from tidelog_proto.limits import EPOCHS_PER_INSTANCE, PRODUCER_EPOCH_MAX, PRODUCER_NAME_BYTES_MAX

INSTANCES_PER_PIECE: Final = 256
"""Instances that are kept for one piece of a work."""
PARTS_MAX: Final = 2**24
"""So many parts a piece may have."""
_INSTANCES_MAX: Final = PRODUCER_EPOCH_MAX // EPOCHS_PER_INSTANCE
_PIECES: Final = (_INSTANCES_MAX - 1) // INSTANCES_PER_PIECE
"""Pieces of one producer id; what comes behind them has another id."""


class Work(NamedTuple):
    """The name of a producer that does one piece of a longer work, such as a micro-batch, and may have to do it again.

    Whoever does a later piece fences those of earlier ones, and who does one once more fences who tried before. What
    those have stored of it `Producer.earlier` tells.

    Several may share a piece: each does a part, under a producer id of its own, and is entered in a roll that the topic
    keeps (`work_registry.py`). So who does a piece once more, in other parts than before, learns of those that there
    were.

    Attributes:
        name: of the work.
        piece: 0 or more; pieces are done one after the other.
        part: of the piece, 0 or more; None where it has no parts.
    """

    name: str
    piece: int
    part: int | None = None

    @property
    def producer_name(self) -> str:
        """What the part is called, whatever the piece."""
        return self.name if self.part is None else f"{self.name}/{self.part}"


class InstanceNumbers(NamedTuple):
    """Under which an instance writes.

    Attributes:
        producer_id: of all that have the name; not 0.
        first_epoch: of the first instance, of this piece where it is one.
        last_epoch: of the last that there may be.
    """

    producer_id: int
    first_epoch: int
    last_epoch: int


def numbers_of(name: str | Work) -> InstanceNumbers:
    """Return what a name decides. It is frozen: what was stored under it is looked for by these numbers."""
    first, last = 1, _INSTANCES_MAX
    if isinstance(name, Work):
        round_, piece = divmod(name.piece, _PIECES)
        first += piece * INSTANCES_PER_PIECE
        last = first + INSTANCES_PER_PIECE - 1
        name = f"{name.producer_name}\0{round_}"  # which no name of anybody's program is likely to be
    producer_id = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8]) >> 1 | 1
    return InstanceNumbers(producer_id, first * EPOCHS_PER_INSTANCE, last * EPOCHS_PER_INSTANCE)


def check_name(name: object) -> None:
    """Refuse what is no name.

    Raises:
        InvalidRequestError: it is none.
    """
    if isinstance(name, Work):
        if name.piece < 0:
            raise InvalidRequestError(f"the pieces of a work are numbered from 0, not {name.piece!r}")
        if name.part is not None and not 0 <= name.part < PARTS_MAX:
            raise InvalidRequestError(f"the parts of a piece are numbered from 0 to {PARTS_MAX - 1}, not {name.part!r}")
        name = name.producer_name if name.name else ""
    if not isinstance(name, str) or not 0 < len(name.encode()) <= PRODUCER_NAME_BYTES_MAX:
        raise InvalidRequestError(f"a producer's name is a text of 1 to {PRODUCER_NAME_BYTES_MAX} bytes, not {name!r}")
