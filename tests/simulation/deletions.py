"""Records deleted by retention in one partition, and the producer state that a copy may have lost with them (I12, I22).

An owner decides where the log begins: past the topic's bound, below the commit, and in the open epoch only what every
replica of it has. The others delete after it. Missing records and state below that offset are allowed; no others are.

A copy that held a producer's batches knows the producer for good: a snapshot outlives what retention deletes. Only a
copy that began late, because the records before were deleted first, may know less. It may have forgotten the state that
it never had, and so may a node that requests producer state from it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tests.simulation.clock import Clock
from tests.simulation.scenario import Scenario
from tests.simulation.truth import Truth

from tidelog_broker.storage.partition.partition_log import PartitionLog
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.batch.header import BatchHeader

if TYPE_CHECKING:
    from tests.simulation.copies import Copy

SLACK_US = 80_000
"""By so much the clocks of two nodes may differ, each put a little forward or back."""


class Deletions:
    """See the module.

    Attributes:
        log_start: below this an owner has decided to delete, or is about to.
    """

    def __init__(self, truth: Truth, scenario: Scenario, clock: Clock) -> None:
        self._truth = truth
        self._bytes_max = scenario.retention_bytes
        self._age_us = scenario.retention_ms * 1000
        self._clock = clock
        self.log_start = 0
        self.wanted = 0
        """Below this an owner wants records deleted for readers."""
        self._asked: set[int] = set()
        """Offsets in deletion requests of clients."""
        self._stamped_us: dict[tuple[int, int], int] = {}
        """The epoch and the end of a batch -> when it got its offsets, by a clock that is right."""
        self._noted: dict[str, int] = {}
        """Node -> offset below which it has deleted by itself, so its copy had no gap before that offset."""
        self._kept: dict[str, int] = {}
        """Node -> where its log is to begin, as it has written down; it may begin later, where something is missing."""
        self._began: dict[str, int] = {}
        """Node -> where a copy began that it has deleted more of since."""
        self._told: dict[str, int] = {}
        """Node -> where the copies began that have told it of producers."""

    # ------------------------------------------------------------------------------------------ deleting

    def stamped(self, headers: Sequence[BatchHeader]) -> None:
        """An owner has given offsets to batches."""
        for header in headers:
            self._stamped_us[header.epoch, header.end_offset] = self._clock.now_us

    def asks(self, offset: int) -> None:
        """A client requests to delete records below an offset."""
        self._asked.add(offset)

    def wants(self, copy: Copy, below: int) -> None:
        """An owner is about to have records below an offset deleted for readers."""
        require = self._truth.require
        require(not copy.process.is_held, "I22", f"{copy.name} wants all below {below} deleted, and the topic is held")
        require(below <= self._truth.settled_end, "I22", f"{copy.name} deletes uncommitted records: below {below}")
        if below > self.wanted:
            is_due = below in self._asked or self._is_past_bytes(copy, below) or self._is_old(copy, below)
            require(is_due, "I22", f"{copy.name} wants all below {below} deleted, which its topic keeps")
            self.wanted = below

    def _is_old(self, copy: Copy, below: int) -> bool:
        """Whether all below an offset is as old as the topic keeps records, by a clock that is right."""
        header = next(copy.log.reader.scan_headers(below - 1), None)
        if not self._age_us or header is None:
            return False
        stamped_us = self._stamped_us[header.epoch, header.end_offset]
        return self._clock.now_us - stamped_us >= self._age_us - SLACK_US

    def deletes(self, copy: Copy) -> None:
        """A file of a node's log is gone."""
        self._truth.require(not copy.process.is_held, "I22", f"{copy.name} deletes a file, and the topic is held")

    def decides(self, copy: Copy, below: int) -> None:
        """A node is about to delete below an offset: an owner only invisible records, others only after an owner."""
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
        self._kept[node] = max(self._kept.get(node, 0), below)

    def _judge(self, copy: Copy, below: int) -> None:
        truth, require = self._truth, self._truth.require
        require(below <= truth.settled_end, "I22", f"{copy.name} deletes uncommitted records: below {below}")
        seen_from = copy.replica.state.deleted_below
        require(
            below <= seen_from, "I22", f"{copy.name} deletes below {below}, but readers see records from {seen_from}"
        )
        epoch = truth.newest_decided + 1
        if below > truth.start_of(epoch) and not copy.process.disk.spares.has_ended:
            replicas, holders = len(truth.descriptors[epoch].placement), truth.holders(epoch, below)
            lacking = f"{copy.name} deletes below {below}, which {replicas - holders} of {replicas} replicas lack"
            require(holders == replicas, "I22", lacking)

    def _is_past_bytes(self, copy: Copy, below: int) -> bool:
        """Whether the records before an offset exceed the topic's size limit, at the ends of a node's segments."""
        if not self._bytes_max:
            return False
        segments = [segment for log in copy.log.epochs for segment in log.segments]
        kept = [segment for segment in segments if segment.end_offset > below]
        newest = max((segment.end_offset for segment in segments if segment.end_offset <= below), default=-1)
        last = [segment for segment in segments if segment.end_offset == newest]
        size_bytes = sum(segment.size_bytes for segment in [*last, *kept])
        # A log that has left the partition since, because an epoch began after a gap, counted when it was decided.
        return size_bytes > self._bytes_max or not last or copy.log.start_offset > below

    def says(self, name: str, log_start: int) -> None:
        """A node reports its log start, which is never after the decided one."""
        truth = self._truth
        truth.require(log_start <= self.log_start, "I22", f"{name} reports log start {log_start}, not {self.log_start}")

    def tells(self, name: str, log_start: int) -> None:
        """A node returns its log start to a reader, which is never after that of an owner."""
        wanted = max(self.wanted, self.log_start)
        self._truth.require(log_start <= wanted, "I22", f"{name} returns log start {log_start}, after {wanted}")

    def remembers(self, copy: Copy) -> None:
        """A node has restarted: records that it has deleted are not missing."""
        kept, known = self._kept.get(copy.process.node_id, 0), copy.replica.state.log_start
        self._truth.require(known >= kept, "I22", f"{copy.name} has deleted below {kept}, and knows of {known}")

    # ------------------------------------------------------------------------------------------ producers

    def _beginning(self, node: str, log: PartitionLog) -> int:
        began = self._began.get(node, 0)
        return max(began, log.start_offset) if log.start_offset > self._noted.get(node, 0) else began

    def told(self, copy: Copy, to: str) -> None:
        """A node sends its producer state to another one."""
        self._told[to] = max(self._told.get(to, 0), self.lacks(copy))

    def lost(self, node: str) -> None:
        """A node may have lost its records: from now on its copy began late."""
        self._noted.pop(node, None)
        self._kept.pop(node, None)

    def lacks(self, copy: Copy) -> int:
        """Offset below which a copy may never have had the records."""
        node = copy.process.node_id
        return max(self._beginning(node, copy.log), self._told.get(node, 0))


def log_start_of(message: object) -> int:
    """Return the log start in a message, 0 if it has none."""
    return message.log_start_offset if isinstance(message, pb.AppendBatch | pb.BackfillReply) else 0


def tells_of_producers(message: object) -> bool:
    """Whether a message answers the request for producer state."""
    return isinstance(message, pb.BackfillReply) and message.status == pb.HELD and not message.source_end_offset
