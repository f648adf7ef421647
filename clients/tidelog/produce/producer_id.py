"""The producer id, shared by all partition queues of a producer, and its replacement.

A producer without a name has a random id, which is unique unless the process was copied, for example with an image of
a running virtual machine. After such a copy, the node refuses the second of two different batches with the same
sequence numbers (`ProducerIdSharedError`), and the refused producer continues under a new id. A named producer cannot
change its id, so this instance fails.

Rejected: a new epoch of the old id, which would fence the other producer.
"""

from __future__ import annotations

import secrets

from tidelog.errors import ProducerIdSharedError


def make_producer_id() -> int:
    """Return a random id that is not 0."""
    return secrets.randbits(63) | 1


class ProducerId:
    """Holds the id of one producer, and replaces it if another producer uses the same id; belongs to one event loop.

    Attributes:
        number: the current id.
        over: the error of a named producer whose id another producer uses; None otherwise.
    """

    __slots__ = ("_is_named", "number", "over")

    def __init__(self, number: int, *, is_named: bool = False) -> None:
        self.number = number
        self.over: ProducerIdSharedError | None = None
        self._is_named = is_named

    def give_up(self, used: int, error: ProducerIdSharedError) -> None:
        """Replace the id `used`, which another producer uses, unless it was replaced already.

        A named producer keeps its id and fails: `over` is set.
        """
        if self._is_named:
            if self.over is None:
                self.over = ProducerIdSharedError(
                    f"this named producer cannot continue: {error}; create a new producer with the same name",
                    definite=True,
                )
                self.over.__cause__ = error
        elif used == self.number:
            self.number = make_producer_id()
