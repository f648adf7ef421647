"""How much a consumer may receive ahead of its user, shared by all that is subscribed for it. No I/O.

One bound in records and in bytes holds for all nodes and partitions together. A node sends while a subscription has
credit, and credit that was given cannot be taken back; so what counts is what a subscription still may send and what it
has sent that the user has not taken, together. Each of the subscriptions that there are to be has an equal share of the
bound: one that is idle keeps nobody from reading, and one that is busy needs no more than its share to be kept busy.

What waits and belongs to no subscription any more, since its connection broke or its partition is paused, makes the
shares smaller, until it is taken. While a share is to be had only from what idle subscriptions hold, `overdrawn` names
them: whoever keeps them makes them anew.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

REFILL_SHARE: Final = 0.5
"""Credit is sent in steps of this part of a share."""


class Credit(NamedTuple):
    """An amount of credit: what one event cost, or what a node may send."""

    records: int
    bytes: int

    def plus(self, other: Credit) -> Credit:
        """Return the sum."""
        return Credit(self.records + other.records, self.bytes + other.bytes)

    def minus(self, other: Credit) -> Credit:
        """Return the difference; it may be negative."""
        return Credit(self.records - other.records, self.bytes - other.bytes)

    def at_most(self, other: Credit) -> Credit:
        """Return the smaller of each, and nothing less than zero."""
        return Credit(max(0, min(self.records, other.records)), max(0, min(self.bytes, other.bytes)))


NONE: Final = Credit(0, 0)


@dataclass(slots=True, eq=False)
class Window:
    """What one subscription may send, and what of it waits. Made by `Prefetch.open`.

    Attributes:
        owed: credit that the node has and items that wait, together; below zero where a node sent more than it had.
        waiting: the items alone.
        send: tells the node of more credit; None until `ready`.
        closed: the subscription has ended.
    """

    prefetch: Prefetch
    owed: Credit
    waiting: Credit = NONE
    send: Callable[[Credit], None] | None = None
    closed: bool = False

    def arrived(self, cost: Credit) -> None:
        """Something was sent, and waits."""
        self.waiting = self.waiting.plus(cost)

    def give_back(self, cost: Credit) -> None:
        """Something that waited was taken."""
        if self.closed:
            self.prefetch.give_back(cost)
            return
        self.waiting = self.waiting.minus(cost)
        self.owed = self.owed.minus(cost)
        self.prefetch.freed(self, cost)

    def ready(self, send: Callable[[Credit], None]) -> None:
        """The node knows of the subscription, and takes more credit through `send`."""
        self.send = send
        if not self.closed:
            self.prefetch.freed(self, NONE)

    def close(self) -> None:
        """The subscription has ended; what waits of it does so on."""
        if not self.closed:
            self.closed = True
            self.prefetch.closed(self)


class Prefetch:
    """The bound of one consumer, and who holds what of it.

    Args:
        bound: in records and bytes, above zero. It is exceeded by at most one event of each subscription: a node sends
            whole batches.

    Attributes:
        parts: how many subscriptions there are to be; the shares are cut for so many.
        in_need: called when a subscription gets no credit although its user has nothing of it to take: see `overdrawn`.
    """

    def __init__(self, bound: Credit) -> None:
        self.parts = 1
        self.in_need: Callable[[], None] = lambda: None
        self._bound = bound
        self._windows: dict[Window, None] = {}
        self._short: dict[Window, None] = {}
        """Those of them that should have more, for which there is nothing left."""
        self._owed = NONE
        """Of all of them."""
        self._apart = NONE
        """What waits and belongs to no subscription."""

    @property
    def beside_max(self) -> Credit:
        """How much may wait of paused partitions: half the bound, so that the others are not held up by it."""
        return Credit(self._bound.records // 2, self._bound.bytes // 2)

    @property
    def held(self) -> Credit:
        """What nodes may send and what waits, together."""
        return self._owed.plus(self._apart)

    def open(self) -> Window:
        """Begin a subscription; `owed` of the window is the credit that it begins with."""
        window = Window(self, NONE)
        self._windows[window] = None
        window.owed = self._share.at_most(self._left)
        self._owed = self._owed.plus(window.owed)
        return window

    def keep(self, cost: Credit) -> None:
        """Count something that waits and belongs to no subscription."""
        self._apart = self._apart.plus(cost)

    def give_back(self, cost: Credit) -> None:
        """Something of that was taken."""
        self._apart = self._apart.minus(cost)
        self._refill()

    def freed(self, window: Window, cost: Credit) -> None:
        """A window has less on its account; who is short is served first."""
        self._owed = self._owed.minus(cost)
        for other in list(self._short):
            self._top_up(other)
        self._top_up(window)

    def closed(self, window: Window) -> None:
        """A window has ended."""
        self._windows.pop(window, None)
        self._short.pop(window, None)
        self._owed = self._owed.minus(window.owed)
        self.keep(window.waiting)
        self._refill()

    def overdrawn(self) -> list[Window]:
        """Return the windows to be made anew because others have to do without; none where nobody is in need."""
        if not any(map(_is_starved, self._windows)):
            return []
        share = self._share
        return [each for each in self._windows if each.owed.records > share.records or each.owed.bytes > share.bytes]

    @property
    def _whole(self) -> Credit:
        """The bound; but at least a record and a byte for each part beside what may wait of paused partitions."""
        beside, parts = self.beside_max, self._parts
        return Credit(max(self._bound.records, parts + beside.records), max(self._bound.bytes, parts + beside.bytes))

    @property
    def _parts(self) -> int:
        return max(self.parts, len(self._windows))

    @property
    def _share(self) -> Credit:
        """What each subscription may hold; nothing at all once what waits apart fills the bound."""
        left = self._whole.minus(self._apart)
        if left.records <= 0 or left.bytes <= 0:
            return NONE
        return Credit(max(1, left.records // self._parts), max(1, left.bytes // self._parts))

    @property
    def _left(self) -> Credit:
        return self._whole.minus(self.held)

    def _refill(self) -> None:
        for window in sorted(self._windows, key=lambda each: not _is_starved(each)):
            self._top_up(window)

    def _top_up(self, window: Window) -> None:
        if window.send is None:
            return
        share = self._share
        more = share.minus(window.owed).at_most(self._left)
        is_starved = _is_starved(window)
        if more != NONE and (is_starved or _is_much(more, share)):
            window.owed = window.owed.plus(more)
            self._owed = self._owed.plus(more)
            window.send(more)
        elif is_starved:
            self.in_need()
        if _is_starved(window) or _is_much(share.minus(window.owed), share):
            self._short[window] = None
        else:
            self._short.pop(window, None)


def _is_much(credit: Credit, share: Credit) -> bool:
    """Whether it is worth a message."""
    return credit.records >= share.records * REFILL_SHARE or credit.bytes >= share.bytes * REFILL_SHARE


def _is_starved(window: Window) -> bool:
    """Whether its node has taken it up and may send nothing, and nothing waits that will free some of it."""
    if window.send is None:
        return False
    may_send = window.owed.minus(window.waiting)
    return window.waiting == NONE and (may_send.records <= 0 or may_send.bytes <= 0)
