from __future__ import annotations

import inspect

from tidelog.sync_receipts import PendingReceipt, PendingReceipts


def test_both_are_waited_for_in_the_same_way() -> None:
    one, many = (set(dict(inspect.getmembers(cls, inspect.isfunction))) for cls in (PendingReceipt, PendingReceipts))
    assert one == many == {"__init__", "done", "result"}
