"""The client for blocking programs: the same names as `tidelog`, without `await`.

    from tidelog.sync import Client

    with Client("127.0.0.1:7400") as client:
        receipt = client.producer("flights").send(b"value", key=b"UA")

Each client runs an event loop in a background thread and passes calls to it; a consumer passes whole batches, not
records. A client may be used from any number of threads, but one consumer is iterated in one thread only. Ctrl-C
interrupts a waiting call and leaves the client usable.
"""

from __future__ import annotations

from tidelog import errors
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
from tidelog.produce.receipts import ReceiptRange, Receipts
from tidelog.sync.client import Client, Producer
from tidelog.sync.consumer import Consumer
from tidelog.sync.receipts import PendingReceipt, PendingReceipts
from tidelog_proto.batch.record_batch import RecordBatch

# fmt: off
__all__ = [
    "Client", "ClusterStatus", "Committed", "Compacted", "ConsumedBatch", "Consumer", "Fetched", "Group", "GroupInfo",
    "GroupMemberInfo", "Lag", "NextDeletion", "Node", "Offset", "Partition", "PendingReceipt", "PendingReceipts",
    "Producer", "Receipt", "ReceiptRange", "Receipts", "Record", "RecordBatch", "Recovery", "Replica",
    "StoredEpochs", "TidelogError",
    "Topic", "TopicFigures", "TopicPartition",
    "errors",
]
# fmt: on
