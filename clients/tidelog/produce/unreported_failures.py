"""The failures of a producer that no caller has awaited yet; `Producer.flush` raises the first of them."""

from __future__ import annotations

from typing import Final

from tidelog.produce.batches import Delivery
from tidelog.produce.expiry import copy_of_error

FAILED_MAX: Final = 1024
"""Maximum number of unreported failures that are kept."""


class UnreportedFailures:
    """Keeps the failed deliveries of one producer whose receipts were not awaited, for `Producer.flush`."""

    def __init__(self) -> None:
        self.failed: list[Delivery] = []

    def add(self, delivery: Delivery) -> None:
        """Keep a failed delivery; beyond the limit, drop those that were awaited meanwhile, then those added last."""
        self.failed.append(delivery)
        if len(self.failed) > FAILED_MAX:
            self.failed = [each for each in self.failed if not each.watched][:FAILED_MAX]

    def raise_first(self) -> None:
        """Raise the first failure that is still not awaited, and forget all of them.

        Raises:
            TidelogError: that failure.
        """
        failed, self.failed = self.failed, []
        for delivery in failed:
            if delivery.error is not None and not delivery.watched:
                raise copy_of_error(delivery.error)
