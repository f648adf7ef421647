"""Flow control of one consumer: how much it may receive before the application takes it. No I/O.

One limit in records and bytes applies to all nodes and partitions together. A node sends while a subscription has
credit, and granted credit cannot be revoked; so the limit covers granted credit and received batches that were not
taken yet. Each subscription gets an equal share of the limit: an idle subscription cannot block the others, and a busy
one needs no more than its share.

Received batches without a subscription, because their connection was lost or their partition is paused, reduce the
shares until they are taken. If credit is available only from idle subscriptions, `overdrawn` returns those; the keeper
resubscribes them to free their credit.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final, NamedTuple

REFILL_SHARE: Final = 0.5
"""Credit is granted in steps of this fraction of a share."""


class Credit(NamedTuple):
    """An amount of credit: the cost of one event, or what a node may send."""

    records: int
    bytes: int

    def plus(self, other: Credit) -> Credit:
        """Return the sum."""
        return Credit(self.records + other.records, self.bytes + other.bytes)

    def minus(self, other: Credit) -> Credit:
        """Return the difference, which may be negative."""
        return Credit(self.records - other.records, self.bytes - other.bytes)

    def at_most(self, other: Credit) -> Credit:
        """Return the minimum of each component, and at least zero."""
        return Credit(max(0, min(self.records, other.records)), max(0, min(self.bytes, other.bytes)))


NONE: Final = Credit(0, 0)


class Window:
    """The flow-control window of one subscription. Created by `Prefetch.open`.

    Attributes:
        outstanding: granted credit plus received batches that were not taken; includes credit that was returned since
            the last `take_returned`. Negative if a node exceeded its credit.
        send: grants the node more credit; None until `ready`.
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
        """Remaining credit of the node."""
        self._waiting_records = self._waiting_bytes = 0
        self._returned_records = self._returned_bytes = 0

    @property
    def waiting(self) -> Credit:
        """Received batches that were not taken yet."""
        return Credit(self._waiting_records, self._waiting_bytes)

    @property
    def may_send(self) -> bool:
        """Whether the node has credit left."""
        return self._records > 0 and self._bytes > 0

    @property
    def is_starved(self) -> bool:
        """Whether the node has no credit, and no received batch remains that would return credit when it is taken.

        False until the subscription is ready.
        """
        waits = self._waiting_records or self._waiting_bytes
        return self.send is not None and not waits and (self._records <= 0 or self._bytes <= 0)

    def granted(self, more: Credit) -> None:
        """Add credit for the node."""
        self.outstanding = self.outstanding.plus(more)
        self._records += more.records
        self._bytes += more.bytes

    def arrived(self, cost: Credit) -> None:
        """Note that an event was received."""
        self._records -= cost.records
        self._bytes -= cost.bytes
        self._waiting_records += cost.records
        self._waiting_bytes += cost.bytes

    def give_back(self, cost: Credit) -> None:
        """Return the credit of a batch that was taken."""
        if self.closed:
            self.prefetch.give_back(cost)
            return
        self._waiting_records -= cost.records
        self._waiting_bytes -= cost.bytes
        # Undo the rest of `arrived`, which `passed` repeats.
        self._records += cost.records
        self._bytes += cost.bytes
        self.passed(*cost)

    def passed(self, records: int, size_bytes: int) -> None:
        """Note that an event was received and taken at once: `arrived` and `give_back` in one."""
        if self.closed:
            return
        self._records -= records
        self._bytes -= size_bytes
        self._returned_records += records
        self._returned_bytes += size_bytes
        step_records, step_bytes = self.prefetch.step
        if (
            self._returned_records >= step_records
            or self._returned_bytes >= step_bytes
            or self._records <= 0
            or self._bytes <= 0
            or self.prefetch.short
        ):
            # Settling takes microseconds, too much for each event of one record.
            self.prefetch.settle(self)

    def take_returned(self) -> Credit:
        """Return and reset the credit that was returned since the last call."""
        returned = Credit(self._returned_records, self._returned_bytes)
        self._returned_records = self._returned_bytes = 0
        self.outstanding = self.outstanding.minus(returned)
        return returned

    def ready(self, send: Callable[[Credit], None]) -> None:
        """Start granting credit through `send`, after the node has acknowledged the subscription."""
        self.send = send
        if not self.closed:
            self.prefetch.settle(self)

    def close(self) -> None:
        """End the subscription; its received batches remain counted."""
        if not self.closed:
            self.closed = True
            self.prefetch.closed(self)


class Prefetch:
    """Distributes the prefetch limit of one consumer over its subscriptions.

    Args:
        bound: the limit in records and bytes, above zero. It is exceeded by at most one event per subscription, because
            nodes send whole batches, and raised if it is too small for the number of subscriptions (`_whole`).

    Attributes:
        subscription_count: expected number of subscriptions, which determines their shares.
        step: amount of returned credit that triggers settling.
        on_starved: called when a starved subscription gets no credit, see `overdrawn`.
        short: windows below their share while no credit is left: they wait for credit that others must return.
    """

    def __init__(self, bound: Credit) -> None:
        self.subscription_count = 1
        self.step = NONE
        self.on_starved: Callable[[], None] = lambda: None
        self.short: dict[Window, None] = {}
        self._bound = bound
        self._windows: dict[Window, None] = {}
        self._outstanding = NONE
        """Sum over all windows."""
        self._unowned = NONE
        """Received batches without a subscription."""

    @property
    def paused_max(self) -> Credit:
        """Limit for received batches of paused partitions: half of the bound, to leave room for other partitions."""
        return Credit(self._bound.records // 2, self._bound.bytes // 2)

    @property
    def held(self) -> Credit:
        """Granted credit plus received batches that were not taken."""
        return self._outstanding.plus(self._unowned)

    def open(self) -> Window:
        """Create the window of a new subscription; its `outstanding` is the initial credit."""
        self._settle_all()
        window = Window(self)
        self._windows[window] = None
        window.granted(self._share.at_most(self._left))
        self._outstanding = self._outstanding.plus(window.outstanding)
        return window

    def keep(self, cost: Credit) -> None:
        """Count a received batch without a subscription."""
        self._unowned = self._unowned.plus(cost)

    def give_back(self, cost: Credit) -> None:
        """Return the credit of a batch without a subscription that was taken."""
        self._unowned = self._unowned.minus(cost)
        self._refill()

    def settle(self, window: Window) -> None:
        """Settle a window's returned credit; windows that are short are served first."""
        self._outstanding = self._outstanding.minus(window.take_returned())
        for other in list(self.short):
            self._top_up(other)
        self._top_up(window)

    def closed(self, window: Window) -> None:
        """Remove a window that has ended."""
        self._windows.pop(window, None)
        self.short.pop(window, None)
        self._outstanding = self._outstanding.minus(window.outstanding)
        window.take_returned()
        self.keep(window.waiting)
        self._refill()

    def overdrawn(self) -> list[Window]:
        """Return the windows above their share while another one is starved; none if no window is starved."""
        if not any(each.is_starved for each in self._windows):
            return []
        self._settle_all()
        share = self._share
        return [
            each
            for each in self._windows
            if each.outstanding.records > share.records or each.outstanding.bytes > share.bytes
        ]

    @property
    def _whole(self) -> Credit:
        """The limit, raised if it is too small for `paused_max` plus one record and one byte for each subscription."""
        paused, parts = self.paused_max, self._parts
        return Credit(max(self._bound.records, parts + paused.records), max(self._bound.bytes, parts + paused.bytes))

    @property
    def _parts(self) -> int:
        return max(self.subscription_count, len(self._windows))

    @property
    def _share(self) -> Credit:
        """The equal share of each subscription; zero once batches without a subscription fill the bound."""
        left = self._whole.minus(self._unowned)
        if left.records <= 0 or left.bytes <= 0:
            return NONE
        return Credit(max(1, left.records // self._parts), max(1, left.bytes // self._parts))

    @property
    def _left(self) -> Credit:
        return self._whole.minus(self.held)

    def _settle_all(self) -> None:
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
        if more != NONE and (is_starved or _is_worth_sending(more, share)):
            window.granted(more)
            self._outstanding = self._outstanding.plus(more)
            window.send(more)
        elif is_starved:
            self.on_starved()
        if window.is_starved or _is_worth_sending(share.minus(window.outstanding), share):
            self.short[window] = None
        else:
            self.short.pop(window, None)


def _is_worth_sending(credit: Credit, share: Credit) -> bool:
    """Return whether a credit is large enough to grant.

    That is at least `REFILL_SHARE` of the window's share, in records or in bytes.
    """
    return credit.records >= _part(share.records) or credit.bytes >= _part(share.bytes)


def _part(share: int) -> int:
    return math.ceil(share * REFILL_SHARE)
