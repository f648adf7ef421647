"""The incomplete frame of one connection, counted in the node's budget before memory is allocated for it.

Clients that announce large frames and stop sending are closed when other requests exceed the budget (`slow_senders`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tidelog_broker.wire.budget import Budget
from tidelog_broker.wire.slow_senders import SlowSenders

_GATHERED_SHARE: Final = 16


class FrameAdmission:
    """Budget accounting of the frame that a connection is receiving.

    Args:
        budget: the node's budget.
        slow_senders: the registry that watches the rate of incomplete frames.
        arrived_bytes: returns how many bytes of the frame have arrived.
        too_slow: called with the announced and the arrived bytes if the connection has to be closed.
    """

    __slots__ = (
        "_arrived_bytes",
        "_budget",
        "_gathering_bytes",
        "_is_watched",
        "_slow_senders",
        "_too_slow",
        "size_bytes",
    )

    def __init__(
        self,
        budget: Budget,
        slow_senders: SlowSenders,
        arrived_bytes: Callable[[], int],
        too_slow: Callable[[int, int], None],
    ) -> None:
        self.size_bytes: int | None = None
        """Budget share of a frame that is admitted and not yet a request."""
        self._budget = budget
        self._slow_senders = slow_senders
        self._arrived_bytes = arrived_bytes
        self._too_slow = too_slow
        self._gathering_bytes = 0
        """Budget share of a large envelope that is not complete."""
        self._is_watched = False
        """Whether the frame is registered in `slow_senders`."""

    # --- for `slow_senders` ----------------------------------------------------------------------------------

    def announced(self) -> tuple[int, int]:
        """Return the budget share of the incomplete frame in bytes, and how many bytes have arrived."""
        return self._gathering_bytes or self.size_bytes or 0, self._arrived_bytes()

    def close_slow(self) -> None:
        """Close the connection: its large frame arrives too slowly while other requests exceed the budget."""
        self._too_slow(*self.announced())

    # --- for the connection ------------------------------------------------------------------------------

    def has_room_for(self, size_bytes: int) -> bool:
        """Count bytes if the node has room for them, closing slow senders if necessary."""
        budget = self._budget
        return budget.admit(size_bytes) or (self._slow_senders.make_room(size_bytes) and budget.admit(size_bytes))

    def watch(self) -> None:
        """Register the frame, so that its rate is watched."""
        if not self._is_watched:
            self._is_watched = True
            self._slow_senders.add(self)

    def whole(self) -> int:
        """Return the budget share of the complete frame, which the request owns from now on."""
        size_bytes, self.size_bytes = self.size_bytes, None
        assert size_bytes is not None, "a frame must be admitted before it is complete"
        if self._is_watched:
            self._unwatch()
        return size_bytes

    def gather(self, size_bytes: int) -> bool:
        """Count a large envelope while it arrives; return False if too many of them exceed the budget.

        The kind of its request is not known yet, so it cannot be declined alone: a few envelopes may exceed the budget
        and are declined when they are complete.
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
        """Stop counting the envelope separately: it is complete."""
        if self._gathering_bytes:
            self._give_back_envelope()
            self._unwatch()

    def forget(self) -> int | None:
        """Drop an incomplete frame; return the share of its request, if it was admitted."""
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
            self._slow_senders.remove(self)
