"""Tidelog's client for Python: publish to, consume from and administer a durable, partitioned message log.

    from tidelog import Client

    async with Client("127.0.0.1:7400") as client:
        receipt = await client.producer("flights").send(b"value", key=b"UA")

`tidelog.sync` has the same names, blocking. Errors are in `tidelog.errors`.
"""

from __future__ import annotations

from tidelog import errors
from tidelog.base.refuse_pickling import refuse_to_pickle
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

refuse_to_pickle(Client, Consumer, Producer)

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
