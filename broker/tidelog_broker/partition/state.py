"""What this node knows of one of its partitions: what may be read here, and whether it may be written.

Nothing here waits or changes anything, but for `refusal`, `topic` and what is kept because every publish asks for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tidelog_broker.cluster.routes import Route, route_of
from tidelog_broker.core.replication.epoch_writer import Owner
from tidelog_broker.replication.driver import ReplicaDriver
from tidelog_broker.replication.driver_ports import Neighbours
from tidelog_broker.storage.io.errors import NotHeldError
from tidelog_broker.storage.partition.partition_log import PartitionLog
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError
from tidelog_proto.names import INTERNAL_PREFIX

RETRY_AFTER_MS = 20
FETCHED_AFTER_MS = 500
"""How soon to ask again for what is being fetched from another node."""


class PartitionState:
    """See the module. All methods are for the event loop's thread.

    Args:
        record, index: the topic as it is now, and the partition's number in it.
        driver: of its replica here.
        neighbours: the other nodes.
    """

    def __init__(self, record: pb.TopicRecord, index: int, driver: ReplicaDriver, neighbours: Neighbours) -> None:
        self.topic = record
        self.index = index
        self.name = f"{record.name}/{index}"
        self.is_internal = record.name.startswith(INTERNAL_PREFIX)
        """Whether clients may not write here."""
        self.refusal: ProtocolError | None = None
        """Why it serves nothing any more: deleted or failed."""
        self.log: PartitionLog = driver.view.store
        self.replica = driver.replica
        self._known = driver.replica.state
        self._driver = driver
        self._neighbours = neighbours
        self._node_id = self._known.node_id
        self._looked_at: pb.EpochDescriptor | None = None
        self._is_alone = False
        self._quorum_known: tuple[pb.EpochDescriptor, ProtocolError | None] | None = None
        self._routed = self._known.active
        self._route = route_of(self._routed)

    # --- the active epoch ------------------------------------------------------------------------------

    @property
    def epoch(self) -> int:
        """The active epoch's number."""
        return self._known.active.epoch

    @property
    def owner_id(self) -> str:
        """The node that owns the active epoch, as far as is known here."""
        return self._known.active.owner

    @property
    def route(self) -> Route:
        """The active epoch, for who looks for its owner. Kept: METADATA asks for every partition at once."""
        active = self._known.active
        if active is not self._routed:
            self._routed, self._route = active, route_of(active)
        return self._route

    @property
    def is_member(self) -> bool:
        """Whether the active epoch has a copy here."""
        return self._known.is_member

    @property
    def is_alone(self) -> bool:
        """Whether this node holds the only copy."""
        active = self._known.active
        if active is not self._looked_at:  # asked with every publish, and looking through a message takes its time
            self._looked_at, self._is_alone = active, list(active.placement) == [self._node_id]
        return self._is_alone

    @property
    def writer(self) -> Owner | None:
        """The owner's state, while offsets may be given out."""
        return self._known.owner if self.replica.can_append else None

    @property
    def is_moving(self) -> bool:
        """Whether the owner here is giving the partition to another placement."""
        return self.replica.moving

    @property
    def syncs_every_group(self) -> bool:
        """Whether an append to the active epoch is synced before it is acknowledged."""
        return self._driver.view.synced(self.epoch)

    def is_changing(self, epoch: int) -> bool:
        """Whether `epoch` is over here, or about to be."""
        return self.epoch != epoch or self._known.promised or self.replica.retiring

    # --- offsets ---------------------------------------------------------------------------------------

    @property
    def high_watermark(self) -> int:
        """The end of what is committed, as far as is known here; of a lone copy in LIMBO, the end of what is good."""
        if self._known.halted is not None and self.is_alone:
            return self.log.end_offset
        return self._known.high_watermark

    @property
    def cut_offset(self) -> int | None:
        """Where the log is about to be cut; None while it is not."""
        return self._driver.cut_offset

    @property
    def readable_end(self) -> int:
        """The end of what is committed and in the log here, and is going to stay there."""
        end, cut_offset = min(self.high_watermark, self.log.end_offset), self._driver.cut_offset
        return end if cut_offset is None else min(end, cut_offset)

    @property
    def log_start(self) -> int:
        """The first offset that is not deleted, here or on a node that this one is still fetching from."""
        whole_alone = self.is_alone and self.is_whole
        return max(self.log.start_offset if whole_alone else self._known.log_start, self._known.deleted_below)

    @property
    def is_whole(self) -> bool:
        """Whether no older epoch has still to be fetched from another node."""
        return not self.replica.backfill.incomplete

    def lies_beyond(self, offset: int, record_epoch: int | None = None) -> bool:
        """Whether this node gives out the offsets, and no reader can be at `offset`.

        The one in front of it was not given out yet; or it was cut, where it is known to have been in `record_epoch`.

        A quorum has ended all that came before the epoch, and nobody else appends to it: what is committed lies below.
        Only for as long as there is no later epoch, which `Access.confirm_owner` makes sure of.
        """
        writer = self.writer
        return writer is not None and (offset > writer.next_offset or self.was_cut(offset, record_epoch))

    def was_cut(self, offset: int, record_epoch: int | None) -> bool:
        """Whether the record in front of `offset`, which was in an epoch, is in it no more, as far as is known here.

        So it is where the epoch ended without all of it: an operator, or the loss of more copies than a quorum can
        bear, had it end earlier, and other records may have its offset now. None: the epoch is not known.
        """
        chain, active = self._known.chain, self._known.active
        if record_epoch is None or record_epoch == active.epoch or record_epoch < chain.genesis.epoch:
            return False
        return record_epoch > active.epoch or offset > chain.decision(record_epoch).end_offset

    # --- why it cannot be used ---------------------------------------------------------------------------

    @property
    def summary(self) -> str:
        """`active`, `sealed` (nobody owns it now, or not used since the start), `no quorum`, `limbo` or `failed`."""
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
        """Why nothing can be written here and waiting makes no sense; None while it does, or can be."""
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
                    f"{self.name}: {active.owner} is away, and nobody has taken over yet",
                    retry_after_ms=RETRY_AFTER_MS,
                )
            return self.not_owner()
        if not replica.state.is_member:
            return self.not_owner()
        return self.quorum_lost()

    @property
    def lacks_quorum(self) -> bool:
        """Whether there is a copy here, and too few of the others for records to be taken."""
        return self._known.is_member and self.quorum_lost() is not None

    def quorum_lost(self) -> ProtocolError | None:
        """Why no quorum can be had, None while one can. Kept until somebody comes or goes: every publish asks."""
        active, known = self._known.active, self._quorum_known
        if known is None or known[0] is not active:
            known = self._quorum_known = (active, self._count_living(active))
        return known[1]

    def _count_living(self, active: pb.EpochDescriptor) -> ProtocolError | None:
        alive = self._neighbours.alive
        away = [node for node in active.placement if node != self._node_id and not alive(node)]
        living = len(active.placement) - len(away)
        if living >= active.ack_quorum:
            return None
        return ProtocolError(
            pb.QUORUM_LOST,
            f"{self.name}: {living} of {len(active.placement)} replicas are there, {active.ack_quorum} are needed; "
            f"start {' or '.join(map(repr, away))} again",
            retry_after_ms=10 * RETRY_AFTER_MS,
        )

    def forget_quorum(self) -> None:
        """Count anew who is there: it has changed, and replicas are about to act on it."""
        self._quorum_known = None

    def not_owner(self) -> ProtocolError:
        """Return the error that sends a client to the owner."""
        active = self._known.active
        return ProtocolError(
            pb.NOT_OWNER,
            f"{self.name} is owned by {active.owner or 'nobody yet'} in epoch {active.epoch}",
            retry_after_ms=RETRY_AFTER_MS,
            epoch=active.epoch,
        )

    def outdated(self, epoch: int | None) -> ProtocolError:
        """Return the error for a batch that was computed from the state of an epoch that has ended."""
        return ProtocolError(
            pb.EPOCH_CHANGING,
            f"{self.name}: the request was computed from the state of epoch {epoch}, which has ended; it is not "
            "stored, send it again",
            retry_after_ms=RETRY_AFTER_MS,
        )

    def interrupted(self) -> ProtocolError:
        """Return the error for a batch that was pending here while another node owned the partition."""
        return ProtocolError(
            pb.EPOCH_CHANGING,
            f"{self.name}: another node has owned the partition since the batch was received; the batch is not "
            "stored, send it again",
            retry_after_ms=RETRY_AFTER_MS,
        )

    def limbo_error(self) -> ProtocolError:
        """Return the error of a halted replica."""
        return ProtocolError(
            pb.LIMBO, f"{self.name} takes no records here: {self._known.halted}; see `tidelog log verify`"
        )

    def out_of_range(self, offset: int, record_epoch: int | None = None) -> ProtocolError:
        """Return the error for an offset that is gone, was never given out, or was cut, with the bounds."""
        what = f"offset {offset} is not in {self.log_start}..{self.high_watermark}"
        if self.was_cut(offset, record_epoch):
            what = (
                f"offset {offset} was reached in epoch {record_epoch}, which ended before it: the log was cut there, "
                "and other records may have these offsets now"
            )
        return ProtocolError(
            pb.OFFSET_OUT_OF_RANGE,
            f"{self.name}: {what}",
            log_start_offset=self.log_start,
            high_watermark=self.high_watermark,
        )

    @contextmanager
    def reading(self, offset: int) -> Iterator[None]:
        """Say, of what fails inside, why nothing can be read from `offset` on.

        What is committed and not deleted is out of nobody's range: this copy was cut or set aside under the read, as it
        is made anew, and whoever believed that it is gone would go on somewhere else.

        Raises:
            ProtocolError: what it was; NOT_OWNER or EPOCH_CHANGING where this copy lacks the records; the refusal of a
                partition that is deleted, under which its log was closed.
        """
        try:
            yield
        except NotHeldError as error:
            raise self.not_here(offset) from error
        except ProtocolError as error:
            if self.refusal is not None:
                raise self.refusal from error
            if error.code == pb.OFFSET_OUT_OF_RANGE and self.log_start <= offset <= self.high_watermark:
                raise self.not_here(offset) from error
            raise

    def not_here(self, offset: int) -> ProtocolError:
        """Return the error for a committed record that this copy lacks: the owner has it, or is fetching it itself."""
        missing = self.replica.backfill.missing()
        if missing is None or self._known.active.owner != self._node_id:
            return self.not_owner()
        what = f"{self.name}: offset {offset} is not here yet, {missing.records:,} older records are missing"
        if missing.is_unavailable:
            where = f"no node that stored epoch {missing.epoch} since has it or answers; start the one that has it"
        else:
            where = f"epoch {missing.epoch} is being fetched from {missing.source or 'another node'}"
        return ProtocolError(pb.EPOCH_CHANGING, f"{what}: {where}", retry_after_ms=FETCHED_AFTER_MS)
