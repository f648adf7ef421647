"""The state of one partition on this node: which offsets may be read, and whether it may be written.

The methods do not wait, and only `refusal`, `topic` and caches change.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tidelog_broker.cluster.routes import Route, route_of
from tidelog_broker.core.replication.chain import LostRecords
from tidelog_broker.core.replication.epoch_writer import OffsetAssigner
from tidelog_broker.replication.driver import ReplicaDriver
from tidelog_broker.replication.driver_ports import Neighbours
from tidelog_broker.storage.io.errors import NotHeldError
from tidelog_broker.storage.partition.detached_epochs import RunReaders
from tidelog_broker.storage.partition.partition_log import PartitionLog
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError
from tidelog_proto.names import INTERNAL_PREFIX

RETRY_AFTER_MS = 20
FETCHED_AFTER_MS = 500
"""When to retry for records that are being fetched from another node."""


class PartitionState:
    """Determines which offsets of one partition may be read and whether it may be written; creates the errors if not.

    All methods are for the event loop's thread.

    Args:
        record, index: the topic's current record, and the partition's number.
    """

    def __init__(self, record: pb.TopicRecord, index: int, driver: ReplicaDriver, neighbours: Neighbours) -> None:
        self.topic = record
        self.index = index
        self.name = f"{record.name}/{index}"
        self.is_internal = record.name.startswith(INTERNAL_PREFIX)
        """Whether the partition belongs to an internal topic, which clients may not write."""
        self.refusal: ProtocolError | None = None
        """Why the partition does not serve requests any more, because it was deleted or has failed; None if it does."""
        self.log: PartitionLog = driver.view.store
        self.replica = driver.replica
        self._known = driver.replica.state
        self._driver = driver
        self._neighbours = neighbours
        self._node_id = self._known.node_id
        self._looked_at: pb.EpochDescriptor | None = None
        self._is_alone = False
        self.quorum_known: tuple[pb.EpochDescriptor, ProtocolError | None] | None = None
        """The result of `quorum_lost` for an epoch; None if it has to be computed."""
        self._routed = self._known.active
        self._route = route_of(self._routed)

    # --- the active epoch ------------------------------------------------------------------------------

    @property
    def epoch(self) -> int:
        """The active epoch's number."""
        return self._known.active.epoch

    @property
    def engine(self) -> str:
        """The engine that stores the active epoch."""
        return self._driver.view.engine(self.epoch)

    @property
    def owner_id(self) -> str:
        """The owner of the active epoch, as known to this node."""
        return self._known.active.owner

    @property
    def route(self) -> Route:
        """The active epoch's route. Cached, because METADATA needs it for every partition."""
        active = self._known.active
        if active is not self._routed:
            self._routed, self._route = active, route_of(active)
        return self._route

    @property
    def is_member(self) -> bool:
        """Whether this node is a replica of the active epoch."""
        return self._known.is_member

    @property
    def is_alone(self) -> bool:
        """Whether this node has the only copy of the active epoch."""
        active = self._known.active
        if active is not self._looked_at:  # Cached, because each publish asks and reading a protobuf field takes time.
            self._looked_at, self._is_alone = active, list(active.placement) == [self._node_id]
        return self._is_alone

    @property
    def assigner(self) -> OffsetAssigner | None:
        """The owner's state while this node may assign offsets; None otherwise."""
        return self.replica.assigner

    @property
    def is_moving(self) -> bool:
        """Whether this node, the owner, is moving the partition to another placement."""
        return self.replica.moving

    @property
    def syncs_every_group(self) -> bool:
        """Whether an append to the active epoch is synced before it is acknowledged."""
        return self._driver.view.syncs_appends(self.epoch)

    def is_changing(self, epoch: int) -> bool:
        """Return whether `epoch` is over, or about to end."""
        return self.epoch != epoch or self._known.promised or self.replica.retiring

    # --- offsets ---------------------------------------------------------------------------------------

    @property
    def high_watermark(self) -> int:
        """The end of the committed records, as known to this node; for a single copy in LIMBO, of the valid ones."""
        if self._known.halted is not None and self.is_alone:
            return self.log.end_offset
        return self._known.high_watermark

    @property
    def cut_offset(self) -> int | None:
        """Where the log is about to be truncated; None if it is not."""
        return self._driver.cut_offset

    @property
    def readable_end(self) -> int:
        """The end of the records that are committed, in this log, and not about to be truncated."""
        end, cut_offset = min(self.high_watermark, self.log.end_offset), self._driver.cut_offset
        return end if cut_offset is None else min(end, cut_offset)

    @property
    def log_start(self) -> int:
        """The first offset that is not deleted, on this node or on a node that it is fetching from."""
        whole_alone = self.is_alone and self.is_whole and self._known.halted is None
        return max(self.log.start_offset if whole_alone else self._known.log_start, self._known.deleted_below)

    def resume_offset(self, offset: int) -> int:
        """Return where a reader continues if all copies of the record at `offset` are lost; else `offset`."""
        for one in self._losses:
            if one.start <= offset < one.end:
                offset = one.end
        return offset

    @property
    def _losses(self) -> Sequence[LostRecords]:
        """The ranges of lost records, ascending: those that decisions report, and ended epochs without any copy."""
        lost, gone = self._known.chain.lost, self.replica.backfill.lost_ranges
        return sorted((*lost, *gone)) if gone else lost

    def readable_until(self, offset: int) -> int:
        """Return where a read from `offset` ends at the latest: at the readable end, or before lost records."""
        end = self.readable_end
        for one in self._losses:
            if offset < one.end:
                return min(end, max(offset, one.start))
        return end

    def run_beside(self, offset: int) -> RunReaders | None:
        """Return the readers of the copies beside the log that have the record at an offset.

        Such copies are of epochs before a lost one. None if no copy has the record, if it is in the log, or if the
        epochs between them and the log may still be fetched.
        """
        lost_below = self.replica.backfill.lost_below
        return self.log.detached.run_at(offset) if offset < min(lost_below, self.log.start_offset) else None

    @property
    def latest(self) -> int:
        """The offset of the next record: the high watermark, unless records are lost there."""
        return self.resume_offset(self.high_watermark)

    @property
    def held_from(self) -> int:
        """The first offset from which on no epoch is lost."""
        return max(self.log_start, self.replica.backfill.lost_below)

    @property
    def earliest(self) -> int:
        """The first offset that can be read: the log start, unless its records are lost."""
        start = self.log_start
        return max(start, min(self.resume_offset(start), self.high_watermark))

    @property
    def is_whole(self) -> bool:
        """Whether no older epoch has to be fetched from another node."""
        return not self.replica.backfill.lacks_any

    def lies_beyond(self, offset: int, record_epoch: int | None = None) -> bool:
        """Return whether this node owns the partition, and `offset` cannot be the position of a reader.

        The record before `offset` was not appended yet; or it was in `record_epoch` and was truncated. A quorum has
        ended all earlier epochs, and no other node appends to this one, so all committed records are below `offset`.
        This holds while there is no later epoch, which `Access.confirm_owner` checks.
        """
        assigner = self.assigner
        return assigner is not None and (offset > assigner.next_offset or self.was_cut(offset, record_epoch))

    def was_cut(self, offset: int, record_epoch: int | None) -> bool:
        """Return whether the record before `offset` was in `record_epoch` and was truncated, as known to this node.

        An epoch ends early if an operator ends it, or if more copies are lost than a quorum can bear; other records may
        have its offsets now. A reader may continue after records that the epoch has lost. If `record_epoch` is None,
        because the reader does not know it, the result is False.
        """
        chain, active = self._known.chain, self._known.active
        if record_epoch is None or record_epoch == active.epoch or record_epoch < chain.genesis.epoch:
            return False
        if record_epoch > active.epoch:
            return True
        decision = chain.decision(record_epoch)
        return offset > decision.end_offset and not 0 < decision.lost_until <= offset

    # --- refusals ----------------------------------------------------------------------------------------

    @property
    def summary(self) -> str:
        """State: `active`, `sealed` (no live owner, or unused since the start), `no quorum`, `limbo` or `failed`."""
        if self.refusal is not None:
            return "failed"
        if self._known.halted is not None:
            return "limbo"
        if self.lacks_quorum:
            return "no quorum"
        active = self._known.active
        if active.owner == self._node_id:
            return "active" if self.replica.can_append else "sealed"
        return "active" if self._neighbours.alive(active.owner) else "sealed"

    def unwritable(self) -> ProtocolError | None:
        """Return why this node cannot write and waiting is pointless; None if it can, or soon will."""
        if self.refusal is not None:
            return self.refusal
        replica = self.replica
        if replica.state.halted is not None:
            return self.limbo_error()
        if self.is_alone:
            return None
        active, node_id = replica.state.active, self._node_id
        if active.owner not in {node_id, ""}:
            if replica.state.is_member and not self._neighbours.alive(active.owner):
                return self.quorum_lost() or ProtocolError(
                    pb.EPOCH_CHANGING,
                    f"{self.name}: its owner {active.owner} is down, and no replica has taken over yet; retry",
                    retry_after_ms=RETRY_AFTER_MS,
                )
            return self.not_owner()
        if not replica.state.is_member:
            return self.not_owner()
        return self.quorum_lost()

    @property
    def lacks_quorum(self) -> bool:
        """Whether this node has a copy and too few other replicas are alive to accept records."""
        return self._known.is_member and self.quorum_lost() is not None

    def quorum_lost(self) -> ProtocolError | None:
        """Return why there is no quorum, None with a quorum; cached until the set of live nodes changes."""
        active, known = self._known.active, self.quorum_known
        if known is None or known[0] is not active:
            known = self.quorum_known = (active, self._count_living(active))
        return known[1]

    def _count_living(self, active: pb.EpochDescriptor) -> ProtocolError | None:
        alive = self._neighbours.alive
        away = [node for node in active.placement if node != self._node_id and not alive(node)]
        living = len(active.placement) - len(away)
        if living >= active.ack_quorum:
            return None
        return ProtocolError(
            pb.QUORUM_LOST,
            f"{self.name}: {living} of {len(active.placement)} replicas are alive, {active.ack_quorum} are needed; "
            f"start {' or '.join(map(repr, away))} again",
            retry_after_ms=10 * RETRY_AFTER_MS,
        )

    def forget_quorum(self) -> None:
        """Discard the cached result of `quorum_lost`, because the set of live nodes has changed."""
        self.quorum_known = None

    def not_owner(self) -> ProtocolError:
        """Return the error that sends a client to the owner."""
        active = self._known.active
        return ProtocolError(
            pb.NOT_OWNER,
            f"{self.name} is owned by node {active.owner!r} in epoch {active.epoch}; send the request to that node"
            if active.owner
            else f"{self.name} has no owner in epoch {active.epoch}; retry",
            retry_after_ms=RETRY_AFTER_MS,
            epoch=active.epoch,
        )

    def outdated(self, epoch: int | None) -> ProtocolError:
        """Return the error for a batch that was computed from the state of an ended epoch."""
        return ProtocolError(
            pb.EPOCH_CHANGING,
            f"{self.name}: the request was computed from the state of epoch {epoch}, which has ended; it is not "
            "stored, send it again",
            retry_after_ms=RETRY_AFTER_MS,
        )

    def interrupted(self) -> ProtocolError:
        """Return the error for a batch that was pending while another node owned the partition."""
        return ProtocolError(
            pb.EPOCH_CHANGING,
            f"{self.name}: another node has owned the partition since the batch was received; the batch is not "
            "stored, send it again",
            retry_after_ms=RETRY_AFTER_MS,
        )

    def limbo_error(self) -> ProtocolError:
        """Return the error of a halted replica."""
        return ProtocolError(
            pb.LIMBO, f"{self.name} takes no records on this node: {self._known.halted}; see docs/damage.md"
        )

    def out_of_range(self, offset: int, record_epoch: int | None = None) -> ProtocolError:
        """Return the error, with the bounds, for an offset that is deleted, beyond the end, or truncated."""
        what = f"offset {offset} is out of range; offsets {self.earliest} to {self.high_watermark} can be requested"
        if self.was_cut(offset, record_epoch):
            what = (
                f"offset {offset} is after the end of its epoch {record_epoch}: the log was truncated there, "
                "and other records may have these offsets now"
            )
        return ProtocolError(
            pb.OFFSET_OUT_OF_RANGE,
            f"{self.name}: {what}",
            log_start_offset=self.earliest,
            high_watermark=self.high_watermark,
        )

    def lost_error(self, offset: int) -> ProtocolError:
        """Return the error for a record that was lost: the bounds, and where a reader continues."""
        resume = self.resume_offset(offset)
        return ProtocolError(
            pb.OFFSET_OUT_OF_RANGE,
            f"{self.name}: DATA_LOSS: offsets {offset} to {resume - 1} are lost, because too many of the nodes that "
            f"had their records only in memory have restarted; continue at offset {resume}",
            log_start_offset=resume,
            high_watermark=max(resume, self.high_watermark),
        )

    @contextmanager
    def reading(self, offset: int) -> Iterator[None]:
        """Convert errors of a read inside the block into errors that refer the client to a node with `offset`.

        A committed, undeleted offset is never out of range: this copy was truncated or set aside during the read,
        because it is being replaced, and a client that considered the records deleted would skip them.

        Raises:
            ProtocolError: the original error; NOT_OWNER or EPOCH_CHANGING if this copy lacks the records; the
                refusal of a deleted partition, whose log was closed during the read.
        """
        try:
            yield
        except NotHeldError as error:
            raise self.missing_here_error(offset) from error
        except ProtocolError as error:
            if self.refusal is not None:
                raise self.refusal from error
            if error.code == pb.OFFSET_OUT_OF_RANGE and self.log_start <= offset <= self.high_watermark:
                raise self.missing_here_error(offset) from error
            raise

    @property
    def lacks_front(self) -> bool:
        """Whether this is the only copy, and halted, and begins after records that were not deleted."""
        return self._known.halted is not None and self.is_alone and self.log.start_offset > self.log_start

    def missing_here_error(self, offset: int) -> ProtocolError:
        """Return the error for a committed record that this copy lacks: the owner has it, or is itself fetching it.

        If this is the only copy, and halted, its files are missing.
        """
        if self._known.halted is not None and self.is_alone:
            return ProtocolError(
                pb.LIMBO, f"{self.name}: offset {offset} cannot be read: {self._known.halted}; see docs/damage.md"
            )
        missing = self.replica.backfill.missing()
        if missing is None or self._known.active.owner != self._node_id:
            return self.not_owner()
        what = f"{self.name}: offset {offset} is missing on this node, with {missing.records:,} older records"
        if missing.is_unavailable:
            where = f"no node that stored epoch {missing.epoch} has it or answers; start the one that has it"
        else:
            where = f"epoch {missing.epoch} is being fetched from {missing.source or 'another node'}"
        return ProtocolError(pb.EPOCH_CHANGING, f"{what}: {where}", retry_after_ms=FETCHED_AFTER_MS)
