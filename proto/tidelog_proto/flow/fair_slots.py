"""Slots that are shared fairly by key, such as a client address or a caller: keys with waiting work take turns.

A key with a thousand waiting coroutines therefore delays another key by one of them. `SlotQueue` decides without I/O;
`FairSlots` lets coroutines wait.
"""

from __future__ import annotations

import asyncio
import math
from collections import OrderedDict
from collections.abc import Hashable, Iterator
from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T", bound=Hashable)


class SlotBounds(NamedTuple):
    """The policy of a scheduler.

    Attributes:
        slots: number of tasks that run at a time.
        key_slots: number of tasks of one key that run at a time.
        waiting_max: maximum number of waiting items. Beyond it the newest item of the key with the most items is
            refused: the new item itself, unless another key has at least two more.
        key_waiting_max: maximum number of waiting items of one key; beyond it the new item is refused.
    """

    slots: int = 1
    key_slots: float = math.inf
    waiting_max: float = math.inf
    key_waiting_max: float = math.inf


class FullError(Exception):
    """Raised if too many items wait, in total or of one key."""


class SlotQueue(Generic[T]):
    """The slots in use, and the waiting items by key. After `give_back`, call `next` until it returns None.

    Attributes:
        is_paused: whether no slot is granted.
        waiting: number of waiting items.
    """

    def __init__(self, bounds: SlotBounds) -> None:
        self.is_paused = False
        self.waiting = 0
        self._bounds = bounds
        self._slots = bounds.slots
        self._taken = 0
        self._taken_by: dict[Hashable, int] | None = {} if bounds.key_slots < bounds.slots else None
        """Slots by key; None if one key may have all."""
        self._waiting: OrderedDict[Hashable, OrderedDict[T, None]] = OrderedDict()
        """The waiting items by key: the key of the next turn first, and the items of a key in order of arrival."""

    def take(self, key: Hashable) -> bool:
        """Take a slot if one is free for the key; return whether it was."""
        if self._taken >= self._slots or self.is_paused:
            return False
        if self._taken_by is not None:
            if self._taken_by.get(key, 0) >= self._bounds.key_slots:
                return False
            self._taken_by[key] = self._taken_by.get(key, 0) + 1
        self._taken += 1
        return True

    def wait(self, key: Hashable, item: T) -> T | None:
        """Queue an item; return the item that is refused in its place, if any.

        Raises:
            FullError: the item itself is refused.
        """
        own = len(self._waiting.get(key, ()))
        refused = None
        if own >= self._bounds.key_waiting_max:
            raise FullError
        if self.waiting >= self._bounds.waiting_max:
            largest, items = max(self._waiting.items(), key=lambda each: len(each[1]))
            if own + 1 >= len(items):
                raise FullError
            refused = next(reversed(items))
            self.remove(largest, refused)
        self._waiting.setdefault(key, OrderedDict())[item] = None
        self.waiting += 1
        return refused

    def remove(self, key: Hashable, item: T) -> None:
        """Remove an item; does nothing if it is not queued."""
        items = self._waiting.get(key)
        if items is not None and item in items:
            del items[item]
            self.waiting -= 1
            if not items:
                del self._waiting[key]

    def next(self) -> tuple[Hashable, T] | None:
        """Take a slot for the next waiting item; None if paused, no slot is free, or no waiting item may use one."""
        if self._taken >= self._slots or self.is_paused:
            return None
        for key, items in self._waiting.items():
            if self.take(key):
                item, _ = items.popitem(last=False)
                self.waiting -= 1
                if items:
                    self._waiting.move_to_end(key)
                else:
                    del self._waiting[key]
                return key, item
        return None

    def give_back(self, key: Hashable) -> int:
        """Release a slot, and return the number of waiting items."""
        assert self._taken > 0, "returned more slots than were taken"
        self._taken -= 1
        if self._taken_by is not None:
            left = self._taken_by[key] = self._taken_by[key] - 1
            if not left:
                del self._taken_by[key]
        return self.waiting

    def items(self) -> Iterator[tuple[Hashable, T]]:
        """Yield all waiting items with their keys."""
        return ((key, item) for key, items in self._waiting.items() for item in items)


class _Turn(asyncio.Future[bool]):
    """A coroutine that waits for a slot; the result is whether it got one."""

    owner: object = None


class FairSlots:
    """Slots for coroutines of one event loop."""

    def __init__(self, bounds: SlotBounds) -> None:
        self._queue: SlotQueue[_Turn] = SlotQueue(bounds)
        self.take_now = self._queue.take
        """Take a slot for a key if one is free; return whether it was."""

    async def take(self, key: Hashable, owner: object = None) -> bool:
        """Wait for a slot, which the caller returns with `give_back`; return False without a slot after `release`.

        Args:
            key: address, caller or connection that the slot is counted for.
            owner: identifies the waiting coroutine for `release`.

        Raises:
            FullError: too many items wait: raised at once, or later if this item is removed for one of another key.
        """
        if self._queue.take(key):
            return True
        turn = _Turn(loop=asyncio.get_running_loop())
        turn.owner = owner
        refused = self._queue.wait(key, turn)
        if refused is not None and not refused.done():
            refused.set_exception(FullError())
        try:
            return await turn
        except asyncio.CancelledError:
            self._queue.remove(key, turn)
            if turn.done() and not turn.cancelled() and turn.exception() is None and turn.result():
                self.give_back(key)  # granted before the cancellation
            raise

    def give_back(self, key: Hashable) -> None:
        """Release a slot, which the next waiting coroutine gets."""
        if self._queue.give_back(key):
            self._grant()

    def pause(self) -> None:
        """Grant nothing until `resume`."""
        self._queue.is_paused = True

    def resume(self) -> None:
        """Grant slots again."""
        self._queue.is_paused = False
        self._grant()

    def release(self, owner: object = None) -> None:
        """Let the waiting coroutines of an owner, by default all, continue without a slot."""
        for key, turn in list(self._queue.items()):
            if owner is None or turn.owner is owner:
                self._queue.remove(key, turn)
                if not turn.done():
                    turn.set_result(False)

    def _grant(self) -> None:
        while (granted := self._queue.next()) is not None:
            key, turn = granted
            if turn.done():  # cancelled, and not resumed yet
                self._queue.give_back(key)
            else:
                turn.set_result(True)
