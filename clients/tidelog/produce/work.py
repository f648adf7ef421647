"""Names of producers, and the producer ids and epochs that are derived from them.

The name determines the producer id, so all producers with the same name are instances of one producer. The epochs of
instances, in steps of `EPOCHS_PER_INSTANCE`, determine which is the newest. Each piece of a longer work has a range of
epochs above those of all earlier pieces, until the epochs of a producer id are used up: then later pieces have another
id.
"""

from __future__ import annotations

import hashlib
from typing import Final, NamedTuple

from tidelog.errors import InvalidRequestError
from tidelog_proto.limits import EPOCHS_PER_INSTANCE, PRODUCER_EPOCH_MAX, PRODUCER_NAME_BYTES_MAX

INSTANCES_PER_PIECE: Final = 256
"""Number of instances that are reserved for one piece of work."""
PARTS_MAX: Final = 2**24
"""Maximum number of parts of a piece."""
_INSTANCES_MAX: Final = PRODUCER_EPOCH_MAX // EPOCHS_PER_INSTANCE
_PIECES: Final = (_INSTANCES_MAX - 1) // INSTANCES_PER_PIECE
"""Number of pieces of work that share one producer id; later pieces have another id."""


class Work(NamedTuple):
    """The name of a producer that does one piece of a longer work, such as a micro-batch, and may have to repeat it.

    A producer of a later piece fences the producers of earlier pieces, except those with another producer id (about
    16,000 pieces share one). A producer that repeats a piece fences those that tried it before; `Producer.earlier`
    reads the records that these have stored.

    Several producers may share a piece. Each does a part, under a producer id of its own, and registers it in the topic
    (`work_registry.py`), so that a producer that repeats the piece with other parts learns which parts existed.

    Attributes:
        name: name of the whole work.
        piece: number of the piece, from 0; pieces are done in order.
        part: number of the part, from 0; None if the piece has no parts.
    """

    name: str
    piece: int
    part: int | None = None

    @property
    def producer_name(self) -> str:
        """The producer's name: `name`, or `name/part` if the piece has parts.

        All pieces of the work use the same names.
        """
        return self.name if self.part is None else f"{self.name}/{self.part}"


class InstanceNumbers(NamedTuple):
    """The producer id and the range of epochs of a name.

    Attributes:
        producer_id: the id of all instances; not 0.
        first_epoch: the epoch of the first instance, or of the first instance of the piece.
        last_epoch: the epoch of the last possible instance.
    """

    producer_id: int
    first_epoch: int
    last_epoch: int


def numbers_of(name: str | Work) -> InstanceNumbers:
    """Return the producer id and the epochs that belong to a producer's name.

    Later releases must return the same numbers, because stored batches contain them.
    """
    first, last = 1, _INSTANCES_MAX
    if isinstance(name, Work):
        round_, piece = divmod(name.piece, _PIECES)
        first += piece * INSTANCES_PER_PIECE
        last = first + INSTANCES_PER_PIECE - 1
        # Joined by a null character, because names that programs use hardly contain one.
        name = f"{name.producer_name}\0{round_}"
    producer_id = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8]) >> 1 | 1
    return InstanceNumbers(producer_id, first * EPOCHS_PER_INSTANCE, last * EPOCHS_PER_INSTANCE)


def check_name(name: object) -> None:
    """Check a producer's name.

    Raises:
        InvalidRequestError: the name is invalid.
    """
    if isinstance(name, Work):
        if name.piece < 0:
            raise InvalidRequestError(f"the piece number of a Work must be >= 0, got {name.piece!r}")
        if name.part is not None and not 0 <= name.part < PARTS_MAX:
            raise InvalidRequestError(f"the part number of a Work must be 0 to {PARTS_MAX - 1}, got {name.part!r}")
        name = name.producer_name if name.name else ""
    if not isinstance(name, str) or not 0 < len(name.encode()) <= PRODUCER_NAME_BYTES_MAX:
        raise InvalidRequestError(
            f"a producer's name must be a str of 1 to {PRODUCER_NAME_BYTES_MAX} bytes, got {name!r}"
        )
