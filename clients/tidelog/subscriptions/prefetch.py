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

import math
from collections.abc import Callable
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


class Window:
    """What one subscription may send, and what of it waits. Made by `Prefetch.open`.

    Attributes:
        outstanding: credit that the node has and items that wait, together; below zero where a node sent more than it had.
            What was given back since the last account is still in it.
        send: tells the node of more credit; None until `ready`.
        closed: the subscription has ended.
    """

    __slots__ = (
        *("closed", "outstanding", "prefetch", "send"),
        *("_bytes", "_records", "_returned_bytes", "_returned_records", "_waiting_bytes", "_waiting_records"),
    )

    def __init__(self, prefetch: Prefetch) -> None:
        self.prefetch = prefetch
        self.outstanding = NONE
        self.send: Callable[[Credit], None] | None = None
        self.closed = False
        self._records = self._bytes = 0
        """What the node may still send."""
        self._waiting_records = self._waiting_bytes = 0
        self._returned_records = self._returned_bytes = 0

    @property
    def waiting(self) -> Credit:
        """What was sent and not taken."""
        return Credit(self._waiting_records, self._waiting_bytes)

    @property
    def may_send(self) -> bool:
        """Whether its node may send something, as far as is known."""
        return self._records > 0 and self._bytes > 0

    @property
    def is_starved(self) -> bool:
        """Whether its node has taken it up and may send nothing, and nothing waits that will free some of it."""
        waits = self._waiting_records or self._waiting_bytes
        return self.send is not None and not waits and (self._records <= 0 or self._bytes <= 0)

    def granted(self, more: Credit) -> None:
        """The node gets more credit."""
        self.outstanding = self.outstanding.plus(more)
        self._records += more.records
        self._bytes += more.bytes

    def arrived(self, cost: Credit) -> None:
        """Something was sent, and waits."""
        self._records -= cost.records
        self._bytes -= cost.bytes
        self._waiting_records += cost.records
        self._waiting_bytes += cost.bytes

    def give_back(self, cost: Credit) -> None:
        """Something that waited was taken."""
        if self.closed:
            self.prefetch.give_back(cost)
            return
        self._waiting_records -= cost.records
        self._waiting_bytes -= cost.bytes
        self._return(*cost)

    def passed(self, records: int, size_bytes: int) -> None:
        """Something was sent and taken at once: `arrived` and `give_back` in one."""
        if self.closed:
            return
        self._records -= records
        self._bytes -= size_bytes
        self._return(records, size_bytes)

    def _return(self, records: int, size_bytes: int) -> None:
        self._returned_records += records
        self._returned_bytes += size_bytes
        # An account takes microseconds, which is much for an event of one record.
        step = self.prefetch.step
        if (
            self._returned_records >= step.records
            or self._returned_bytes >= step.bytes
            or self._records <= 0
            or self._bytes <= 0
            or self.prefetch.is_short
        ):
            self.prefetch.freed(self)

    def take_returned(self) -> Credit:
        """Return what was given back since the last account, and begin another."""
        returned = Credit(self._returned_records, self._returned_bytes)
        self._returned_records = self._returned_bytes = 0
        self.outstanding = self.outstanding.minus(returned)
        return returned

    def ready(self, send: Callable[[Credit], None]) -> None:
        """The node knows of the subscription, and takes more credit through `send`."""
        self.send = send
        if not self.closed:
            self.prefetch.freed(self)

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
        step: of what was given back so much makes an account worth while.
        on_starved: called when a subscription gets no credit although its user has nothing of it to take: see `overdrawn`.
    """

    def __init__(self, bound: Credit) -> None:
        self.subscription_count = 1
        self.step = NONE
        self.on_starved: Callable[[], None] = lambda: None
        self._bound = bound
        self._windows: dict[Window, None] = {}
        self._short: dict[Window, None] = {}
        """Those of them that should have more, for which there is nothing left."""
        self._outstanding = NONE
        """Of all of them."""
        self._unowned = NONE
        """What waits and belongs to no subscription."""

    @property
    def is_short(self) -> bool:
        """Whether a subscription should have more and waits for others to give back."""
        return bool(self._short)

    @property
    def paused_max(self) -> Credit:
        """How much may wait of paused partitions: half the bound, so that the others are not held up by it."""
        return Credit(self._bound.records // 2, self._bound.bytes // 2)

    @property
    def held(self) -> Credit:
        """What nodes may send and what waits, together."""
        return self._outstanding.plus(self._unowned)

    def open(self) -> Window:
        """Begin a subscription; `outstanding` of the window is the credit that it begins with."""
        self._make_accounts()
        window = Window(self)
        self._windows[window] = None
        window.granted(self._share.at_most(self._left))
        self._outstanding = self._outstanding.plus(window.outstanding)
        return window

    def keep(self, cost: Credit) -> None:
        """Count something that waits and belongs to no subscription."""
        self._unowned = self._unowned.plus(cost)

    def give_back(self, cost: Credit) -> None:
        """Something of that was taken."""
        self._unowned = self._unowned.minus(cost)
        self._refill()

    def freed(self, window: Window) -> None:
        """Make a window's account; who is short is served first."""
        self._outstanding = self._outstanding.minus(window.take_returned())
        for other in list(self._short):
            self._top_up(other)
        self._top_up(window)

    def closed(self, window: Window) -> None:
        """A window has ended."""
        self._windows.pop(window, None)
        self._short.pop(window, None)
        self._outstanding = self._outstanding.minus(window.outstanding)
        window.take_returned()
        self.keep(window.waiting)
        self._refill()

    def overdrawn(self) -> list[Window]:
        """Return the windows to be made anew because others have to do without; none where nobody is in need."""
        if not any(each.is_starved for each in self._windows):
            return []
        self._make_accounts()
        share = self._share
        return [
            each
            for each in self._windows
            if each.outstanding.records > share.records or each.outstanding.bytes > share.bytes
        ]

    @property
    def _whole(self) -> Credit:
        """The bound; but at least a record and a byte for each part beside what may wait of paused partitions."""
        beside, parts = self.paused_max, self._parts
        return Credit(max(self._bound.records, parts + beside.records), max(self._bound.bytes, parts + beside.bytes))

    @property
    def _parts(self) -> int:
        return max(self.subscription_count, len(self._windows))

    @property
    def _share(self) -> Credit:
        """What each subscription may hold; nothing at all once what waits apart fills the bound."""
        left = self._whole.minus(self._unowned)
        if left.records <= 0 or left.bytes <= 0:
            return NONE
        return Credit(max(1, left.records // self._parts), max(1, left.bytes // self._parts))

    @property
    def _left(self) -> Credit:
        return self._whole.minus(self.held)

    def _make_accounts(self) -> None:
        for window in self._windows:
            self._outstanding = self._outstanding.minus(window.take_returned())

    def _refill(self) -> None:
        for window in sorted(self._windows, key=lambda each: not each.is_starved):
            self._top_up(window)

    def _top_up(self, window: Window) -> None:
        if window.send is None:
            return
        share = self._share
        self.step = Credit(_part(share.records), _part(share.bytes))
        more = share.minus(window.outstanding).at_most(self._left)
        is_starved = window.is_starved
        if more != NONE and (is_starved or _is_much(more, share)):
            window.granted(more)
            self._outstanding = self._outstanding.plus(more)
            window.send(more)
        elif is_starved:
            self.on_starved()
        if window.is_starved or _is_much(share.minus(window.outstanding), share):
            self._short[window] = None
        else:
            self._short.pop(window, None)


def _is_much(credit: Credit, share: Credit) -> bool:
    """Whether it is worth a message."""
    return credit.records >= _part(share.records) or credit.bytes >= _part(share.bytes)


def _part(share: int) -> int:
    return math.ceil(share * REFILL_SHARE)
