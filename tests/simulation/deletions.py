"""What retention has deleted of one partition, where, and what a copy may have forgotten with it (I12, I22).

An owner decides where the log begins: past the topic's bound, below the commit, and in the open epoch only what every
replica of it has. The others delete after it. What lies below is excused wherever something is missed; nothing else is.

A copy that held a producer's batches knows the producer for good: a snapshot outlives what retention deletes. Only a
copy that began late, because what lies in front was deleted before it came to that, may know less. What it never had
it may have forgotten, and who asks it about producers may have forgotten that with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation.truth import Truth

from tidelog_broker.storage.partition.partition_log import PartitionLog
from tidelog_proto import broker_pb2 as pb

if TYPE_CHECKING:
    from tests.simulation.copies import Copy


class Deletions:
    """See the module.

    Attributes:
        log_start: below this an owner has decided to delete, or is about to.
    """

    def __init__(self, truth: Truth, bytes_max: int) -> None:
        self._truth = truth
        self._bytes_max = bytes_max
        self.log_start = 0
        self._noted: dict[str, int] = {}
        """Node -> below which it has deleted by itself, so that what was there before was there without a hole."""
        self._began: dict[str, int] = {}
        """Node -> where a copy began that it has deleted more of since."""
        self._told: dict[str, int] = {}
        """Node -> where the copies began that have told it of producers."""

    # ------------------------------------------------------------------------------------------ deleting

    def decides(self, copy: Copy, below: int) -> None:
        """A node is about to delete what lies below an offset: an owner by its own decision, others after one."""
        if below > self.log_start:
            self._judge(copy, below)
            self.log_start = below

    def notes(self, copy: Copy, below: int) -> None:
        """A node has written down where its log is going to begin, which is lost where a sync has failed before."""
        if copy.process.sim_disk.any_lost:
            return
        node = copy.process.node_id
        self._began[node] = self._beginning(node, copy.log)
        self._noted[node] = max(self._noted.get(node, 0), below, copy.log.start_offset)

    def _judge(self, copy: Copy, below: int) -> None:
        truth, require = self._truth, self._truth.require
        require(self._bytes_max > 0, "I22", f"{copy.name} deletes below {below}, and all is to be kept")
        require(below <= truth.settled_end, "I22", f"{copy.name} deletes what is not committed: {below}")
        segments = [segment for log in copy.log.epochs for segment in log.segments]
        kept = [segment for segment in segments if segment.end_offset > below]
        newest = max((segment.end_offset for segment in segments if segment.end_offset <= below), default=-1)
        last = [segment for segment in segments if segment.end_offset == newest]
        size_bytes = sum(segment.size_bytes for segment in [*last, *kept])
        # A log that has left the partition since, because an epoch began behind a hole, counted when it was decided.
        is_past = size_bytes > self._bytes_max or not last or copy.log.start_offset > below
        require(is_past, "I22", f"{copy.name} deletes below {below}, and has {size_bytes} of {self._bytes_max} bytes")
        epoch = truth.newest_decided + 1
        if below > truth.start_of(epoch) and not copy.process.disk.spares.has_ended:
            replicas, holders = len(truth.descriptors[epoch].placement), truth.holders(epoch, below)
            lacking = f"{copy.name} deletes below {below}, which {replicas - holders} of {replicas} replicas lack"
            require(holders == replicas, "I22", lacking)

    def says(self, name: str, log_start: int) -> None:
        """A node says where the log begins: nowhere behind what was decided."""
        truth = self._truth
        truth.require(
            log_start <= self.log_start, "I22", f"{name} says that the log begins at {log_start}, not {self.log_start}"
        )

    def remembers(self, copy: Copy) -> None:
        """A node has started again: what it has deleted is not missing."""
        noted, known = self._noted.get(copy.process.node_id, 0), copy.replica.state.log_start
        self._truth.require(known >= noted, "I22", f"{copy.name} has deleted below {noted}, and knows of {known}")

    # ------------------------------------------------------------------------------------------ producers

    def _beginning(self, node: str, log: PartitionLog) -> int:
        began = self._began.get(node, 0)
        return max(began, log.start_offset) if log.start_offset > self._noted.get(node, 0) else began

    def told(self, copy: Copy, to: str) -> None:
        """A node tells another one what it knows of producers."""
        self._told[to] = max(self._told.get(to, 0), self.lacks(copy))

    def lost(self, node: str) -> None:
        """A node may have lost what it held: whatever it begins with, it begins late."""
        self._noted.pop(node, None)

    def lacks(self, copy: Copy) -> int:
        """Below which offset a copy may never have had what was there."""
        node = copy.process.node_id
        return max(self._beginning(node, copy.log), self._told.get(node, 0))


def log_start_of(message: object) -> int:
    """Return where a message says that the log begins, 0 where it says nothing of it."""
    return message.log_start_offset if isinstance(message, pb.AppendBatch | pb.BackfillReply) else 0


def tells_of_producers(message: object) -> bool:
    """Whether a message answers what was asked about producers."""
    return isinstance(message, pb.BackfillReply) and message.status == pb.HELD and not message.source_end_offset
