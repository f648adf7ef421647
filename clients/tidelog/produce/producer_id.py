"""The id under which a producer writes, which all its lanes share, and when that changes.

A producer without a name makes its id by chance, so nobody else has it, unless the producer was copied: a machine whose
image was taken while it published, or that was started twice from one. Then a node refuses what it takes for another
batch of the same numbers (`ProducerIdSharedError`), and the producer goes on under a new id. Whoever is not refused
keeps the old one. A producer with a name cannot have another id: this instance of it is over.

Rejected: a new epoch of the old id. It would fence the other one, which has done nothing wrong.
"""

from __future__ import annotations

import secrets

from tidelog.errors import ProducerIdSharedError


def make_producer_id() -> int:
    """Return an id that nobody else has, and that is not 0."""
    return secrets.randbits(63) | 1


class ProducerId:
    """Of one producer; belongs to one event loop.

    Attributes:
        number: what goes on under an id goes on under this one.
        over: why nothing goes on: of a named producer whose id another one uses.
    """

    __slots__ = ("_is_named", "number", "over")

    def __init__(self, number: int, *, is_named: bool = False) -> None:
        self.number = number
        self.over: ProducerIdSharedError | None = None
        self._is_named = is_named

    def give_up(self, used: int, error: ProducerIdSharedError) -> None:
        """Somebody else uses an id: take a new one, unless that has been done."""
        if self._is_named:
            if self.over is None:
                self.over = ProducerIdSharedError(
                    f"this instance of a named producer is over, begin another one: {error}", definite=True
                )
                self.over.__cause__ = error
        elif used == self.number:
            self.number = make_producer_id()
