"""The incomplete frame of one connection, counted in the node's budget before memory is allocated for it.

The announced size stays counted until the frame is complete, so a few clients that announce large frames and send
nothing could hold the whole budget. When a request exceeds the budget, connections are closed whose frame has been
arriving for `SLOW_AFTER_S` at a rate that would take longer than `WHOLE_WITHIN_S`, largest first (`SlowSenders`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from tidelog_broker.wire.budget import Budget
from tidelog_proto.flow.byte_budget import SlowSenders, arrives_slowly

SLOW_AFTER_S: Final = 2.0
_GATHERED_SHARE: Final = 16


class FrameAdmission:
    """Budget accounting of the frame that a connection is receiving.

    Args:
        slow_senders: the registry that watches the rate of incomplete frames.
        arrived_bytes: returns how many bytes of the frame have arrived.
        too_slow: called with the announced and the arrived bytes if the connection has to be closed.
    """

    __slots__ = (
        "_arrived_bytes",
        "_budget",
        "_is_watched",
        "_since_s",
        "_slow_senders",
        "_too_slow",
        "gathering_bytes",
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
        """Budget share of a frame that is admitted and not yet a request; None without such a frame."""
        self._budget = budget
        self._slow_senders = slow_senders
        self._arrived_bytes = arrived_bytes
        self._too_slow = too_slow
        self.gathering_bytes = 0
        """Budget share of a large envelope that is not complete."""
        self._is_watched = False
        """Whether the frame is registered in `slow_senders`."""
        self._since_s = 0.0
        """Loop time at which the frame was registered."""

    # --- for `slow_senders` ----------------------------------------------------------------------------------

    @property
    def held_bytes(self) -> int:
        """The budget share of the incomplete frame."""
        return self.gathering_bytes or self.size_bytes or 0

    def is_slow(self, now_s: float) -> bool:
        """Return whether the frame arrives too slowly."""
        coming_s = now_s - self._since_s
        return coming_s >= SLOW_AFTER_S and arrives_slowly(self.held_bytes, self._arrived_bytes(), coming_s)

    def cut(self) -> None:
        """Close the connection of a slow sender, because other requests exceed the budget."""
        self._too_slow(self.held_bytes, self._arrived_bytes())

    # --- for the connection ------------------------------------------------------------------------------

    def has_room_for(self, size_bytes: int) -> bool:
        """Count bytes if the node's budget allows them, closing slow senders if necessary."""
        if self._budget.take(size_bytes):
            return True
        self._slow_senders.make_room(asyncio.get_running_loop().time())
        return self._budget.take(size_bytes)

    def watch(self) -> None:
        """Register the frame in `slow_senders`, so that its connection is closed if it arrives too slowly."""
        if not self._is_watched:
            self._is_watched = True
            self._since_s = asyncio.get_running_loop().time()
            self._slow_senders.receiving[self] = None

    def whole(self) -> int:
        """Return the budget share of the complete frame, which the request owns from now on."""
        size_bytes, self.size_bytes = self.size_bytes, None
        assert size_bytes is not None, "a frame must be admitted before it is complete"
        if self._is_watched:
            self._is_watched = False
            self._slow_senders.receiving.pop(self, None)
        return size_bytes

    def gather(self, size_bytes: int) -> bool:
        """Count a large envelope while it arrives; return False if too many of them exceed the budget.

        The kind of the request is not known yet, so the request cannot be declined alone. A few envelopes may therefore
        exceed the budget (by 1/16 of it together), and their requests are declined when the envelopes are complete.
        """
        self._give_back_envelope()
        if not self.has_room_for(size_bytes):
            budget = self._budget
            if budget.used_bytes + size_bytes > budget.bytes_max + budget.bytes_max // _GATHERED_SHARE:
                return False
            budget.take_anyway(size_bytes)
        self.gathering_bytes = size_bytes
        self.watch()
        return True

    def gathered(self) -> None:
        """Stop counting the envelope separately: it is complete."""
        if self.gathering_bytes:
            self._give_back_envelope()
            self._unwatch()

    def forget(self) -> int | None:
        """Drop an incomplete frame; return the budget share of its request, None if that was not admitted."""
        self._unwatch()
        self._give_back_envelope()
        size_bytes, self.size_bytes = self.size_bytes, None
        return size_bytes

    def _give_back_envelope(self) -> None:
        self._budget.give_back(self.gathering_bytes)
        self.gathering_bytes = 0

    def _unwatch(self) -> None:
        if self._is_watched:
            self._is_watched = False
            self._slow_senders.receiving.pop(self, None)
