"""Tidelog's client for Python: publish to, consume from and administer a durable, partitioned message log.

    from tidelog import Client

    async with Client("127.0.0.1:7400") as client:
        receipt = await client.producer("flights").send(b"value", key=b"UA")

`tidelog.sync` has the same names, blocking. Errors are in `tidelog.errors`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

from tidelog import errors

if TYPE_CHECKING:
    from tidelog.client import Client
    from tidelog.consume.consumer import Consumer
    from tidelog.errors import TidelogError
    from tidelog.groups.options import Group
    from tidelog.model import (
        ClusterStatus,
        Committed,
        Compacted,
        ConsumedBatch,
        Fetched,
        GroupInfo,
        GroupMemberInfo,
        Lag,
        NextDeletion,
        Node,
        Offset,
        Partition,
        Receipt,
        Record,
        Recovery,
        Replica,
        StoredEpochs,
        Topic,
        TopicFigures,
        TopicPartition,
    )
    from tidelog.produce.producer import Producer
    from tidelog.produce.receipts import PendingReceipt, PendingReceipts, ReceiptRange, Receipts
    from tidelog.tables.read_arrow import dataset, read_arrow, scan_polars
    from tidelog_proto.batch.record_batch import RecordBatch

__all__ = [
    "Client",
    "ClusterStatus",
    "Committed",
    "Compacted",
    "ConsumedBatch",
    "Consumer",
    "Fetched",
    "Group",
    "GroupInfo",
    "GroupMemberInfo",
    "Lag",
    "NextDeletion",
    "Node",
    "Offset",
    "Partition",
    "PendingReceipt",
    "PendingReceipts",
    "Producer",
    "Receipt",
    "ReceiptRange",
    "Receipts",
    "Record",
    "RecordBatch",
    "Recovery",
    "Replica",
    "StoredEpochs",
    "TidelogError",
    "Topic",
    "TopicFigures",
    "TopicPartition",
    "dataset",
    "errors",
    "read_arrow",
    "scan_polars",
]

_MODULES: Final = {
    "Client": "tidelog.client",
    "Consumer": "tidelog.consume.consumer",
    "TidelogError": "tidelog.errors",
    "Group": "tidelog.groups.options",
    "ClusterStatus": "tidelog.model",
    "Committed": "tidelog.model",
    "Compacted": "tidelog.model",
    "ConsumedBatch": "tidelog.model",
    "Fetched": "tidelog.model",
    "GroupInfo": "tidelog.model",
    "GroupMemberInfo": "tidelog.model",
    "Lag": "tidelog.model",
    "NextDeletion": "tidelog.model",
    "Node": "tidelog.model",
    "Offset": "tidelog.model",
    "Partition": "tidelog.model",
    "Receipt": "tidelog.model",
    "Record": "tidelog.model",
    "Recovery": "tidelog.model",
    "Replica": "tidelog.model",
    "StoredEpochs": "tidelog.model",
    "Topic": "tidelog.model",
    "TopicFigures": "tidelog.model",
    "TopicPartition": "tidelog.model",
    "Producer": "tidelog.produce.producer",
    "PendingReceipt": "tidelog.produce.receipts",
    "PendingReceipts": "tidelog.produce.receipts",
    "ReceiptRange": "tidelog.produce.receipts",
    "Receipts": "tidelog.produce.receipts",
    "dataset": "tidelog.tables.read_arrow",
    "read_arrow": "tidelog.tables.read_arrow",
    "scan_polars": "tidelog.tables.read_arrow",
    "RecordBatch": "tidelog_proto.batch.record_batch",
}
"""Names that are imported from these modules when they are first used: a command that needs no client starts faster."""


def __getattr__(name: str) -> Any:
    """Return a name of `__all__`."""
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(importlib.import_module(module), name)
    return found


def __dir__() -> list[str]:
    """Return all names, also those that were not used yet."""
    return sorted({*globals(), *__all__})
