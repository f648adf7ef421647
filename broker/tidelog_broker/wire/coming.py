"""The frame of one connection that has begun to come: counted in the node's budget before memory is taken for it.

Clients that announce much and do not go on sending give way when others find no room (`arriving`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tidelog_broker.wire.arriving import Arriving
from tidelog_broker.wire.budget import Budget

_GATHERED_SHARE: Final = 16


class Coming:
    """See the module.

    Args:
        budget: the node's.
        arriving: where it is looked at how fast frames come.
        arrived_bytes: returns how much of the frame is here.
        too_slow: called with the bytes that were announced and those that came, when the client has to give way.
    """

    __slots__ = ("_arrived_bytes", "_arriving", "_budget", "_gathering_bytes", "_is_watched", "_too_slow", "size_bytes")

    def __init__(
        self,
        budget: Budget,
        arriving: Arriving,
        arrived_bytes: Callable[[], int],
        too_slow: Callable[[int, int], None],
    ) -> None:
        self.size_bytes: int | None = None
        """The share in the budgets of the frame that is admitted and not yet a request."""
        self._budget = budget
        self._arriving = arriving
        self._arrived_bytes = arrived_bytes
        self._too_slow = too_slow
        self._gathering_bytes = 0
        """The share of a large envelope that is not whole."""
        self._is_watched = False
        """Whether it is looked at how fast the frame comes."""

    # --- for `arriving` ----------------------------------------------------------------------------------

    def announced(self) -> tuple[int, int]:
        """Return how many bytes the frame that is coming has in the budget, and how many have come."""
        return self._gathering_bytes or self.size_bytes or 0, self._arrived_bytes()

    def send_too_slowly(self) -> None:
        """Give way: the client has announced much and does not go on, and others find no room."""
        self._too_slow(*self.announced())

    # --- for the connection ------------------------------------------------------------------------------

    def has_room_for(self, size_bytes: int) -> bool:
        """Count bytes in if the node has room for them, or those that send too slowly can be made to give way."""
        budget = self._budget
        return budget.admit(size_bytes) or (self._arriving.make_room(size_bytes) and budget.admit(size_bytes))

    def watch(self) -> None:
        """Have it looked at how fast the frame comes."""
        if not self._is_watched:
            self._is_watched = True
            self._arriving.begun(self)

    def whole(self) -> int:
        """The frame is whole: return its share in the budgets, which is the request's from now on."""
        size_bytes, self.size_bytes = self.size_bytes, None
        assert size_bytes is not None, "admitted before it is whole"
        if self._is_watched:
            self._unwatch()
        return size_bytes

    def gather(self, size_bytes: int) -> bool:
        """Count a large envelope while it comes; False: too many of those have come without room.

        What it asks is not known yet, so that it cannot be declined alone: a few may come without room, to be declined
        when they are whole.
        """
        self._give_back_envelope()
        if not self.has_room_for(size_bytes):
            budget = self._budget
            if budget.in_flight_bytes + size_bytes > budget.bytes_max + budget.bytes_max // _GATHERED_SHARE:
                return False
            budget.take(size_bytes)
        self._gathering_bytes = size_bytes
        self.watch()
        return True

    def gathered(self) -> None:
        """Stop counting the envelope by itself, if it was: it is whole."""
        if self._gathering_bytes:
            self._give_back_envelope()
            self._unwatch()

    def forget(self) -> int | None:
        """The frame will never be whole; return the share of the request that it would have been, if it was one."""
        self._unwatch()
        self._give_back_envelope()
        size_bytes, self.size_bytes = self.size_bytes, None
        return size_bytes

    def _give_back_envelope(self) -> None:
        self._budget.give_back(self._gathering_bytes)
        self._gathering_bytes = 0

    def _unwatch(self) -> None:
        if self._is_watched:
            self._is_watched = False
            self._arriving.ended(self)
