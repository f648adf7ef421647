"""The invariants, see docs/verification.md, checked from outside after every step: against what disks really hold.

`Truth` is what an all-knowing observer writes down per partition: every batch that was ever written, what each node
made durable, which values were accepted where and so decided, what was claimed to be committed. Each step is held
against it at a cost that does not grow with the run. `final` compares the logs themselves byte by byte.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from tests.simulation import forks
from tests.simulation.contents import LoggedContents
from tests.simulation.deletions import Deletions, log_start_of, tells_of_producers
from tests.simulation.final import compare_compacted, compare_logs, compare_with_history, unequal
from tests.simulation.forks import Fork
from tests.simulation.history import Publish, PublishReply
from tests.simulation.journals import META
from tests.simulation.losses import Losses
from tests.simulation.truth import Truth, ViolationError

from tidelog_broker.core.replication import effects as fx
from tidelog_broker.core.topics import PartitionKey
from tidelog_broker.storage.commit_log.commit_log import CommitLog
from tidelog_broker.storage.io.errors import DamagedError, StorageError
from tidelog_broker.storage.node.typed_journal import TypedJournal
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.batch.header import Flags, unpack_header
from tidelog_proto.errors import ProtocolError

if TYPE_CHECKING:
    from tests.simulation.copies import Copy
    from tests.simulation.machine import Machine
    from tests.simulation.process import Process
    from tests.simulation.world import World

FORGOTTEN = {pb.SEQUENCE_GAP, pb.UNKNOWN_PRODUCER}
"""Errors for a producer whose newest batches are unknown."""

_VOTES = pb.ReplicationAck | pb.SealReply | pb.OpenEpochReply


class Checks:
    """See the module. The world calls each method right after the event that it is named after."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.truths: dict[PartitionKey, Truth] = {
            key: Truth(genesis, self._bad) for key, genesis in world.genesis.items()
        }
        """The first of each partition: after an operator's recovery there is another one, see `forks`."""
        self._in_memory: dict[Copy, Truth] = {}
        self._on_disk: dict[tuple[PartitionKey, str], Truth] = {}
        """The truth that holds for a node, by its knowledge and its disk."""
        self._to_tell: list[tuple[Copy, Fork]] = []
        """Losses that nodes have learned of in this step."""
        self._told: set[tuple[Process, str]] = set()
        self.deletions = {key: Deletions(truth, world.scenario, world.clock) for key, truth in self.truths.items()}
        config = world.topic.config
        for key, truth in self.truths.items():
            if world.scenario.in_memory:
                truth.losses = Losses(truth)
            if world.scenario.deduplicates:
                truth.contents = LoggedContents(
                    records_max=config.deduplicate_records,
                    age_us=config.deduplicate_s * 1_000_000,
                    require=self.require,
                )
            truth.lacked_by = partial(self._lacked_by, key)

    def _bad(self, node_id: str) -> bool:
        machine = node_id.partition("+")[0]
        return any(one.name == machine and self._world.faults.may_lose(one) for one in self._world.machines)

    def _lacked_by(self, key: PartitionKey, node_id: str) -> int:
        machine = self._world.machine_of(node_id)
        process = machine.process if machine is not None else None
        copy = process.partitions.get(key) if process is not None else None
        return self.deletions[key].lacks(copy) if copy is not None else 0

    def fail(self, invariant: str, what: str) -> NoReturn:
        """Report a broken invariant."""
        raise ViolationError(invariant, what)

    def require(self, condition: bool, invariant: str, what: str) -> None:
        """Report a broken invariant unless `condition` holds."""
        if not condition:
            self.fail(invariant, what)

    # ------------------------------------------------------------------------------------------ which truth

    def truth_of(self, copy: Copy) -> Truth:
        """Return what holds for a node that knows what this one does."""
        root = self.truths[copy.key]
        if not root.forks:
            return root
        truth, before = forks.truth_of(root, copy.replica.state.chain), self._in_memory.get(copy)
        if before is not None and truth is not before:
            forks.adopt(truth, before, copy.process.node_id)
            self._in_memory[copy] = truth
            self._to_tell += [(copy, fork) for fork in forks.between(truth, before)]
        return truth

    def truth_by(self, key: PartitionKey, epoch: int) -> Truth:
        """Return the truth for nodes that have taken part in every recovery before the end of an epoch."""
        truth = forks.newest(self.truths[key])
        return truth if truth.fork is None or truth.fork.epoch < epoch else truth.fork.parent

    def recovered(self, copy: Copy, said: pb.ClusterChangeReply) -> None:
        """An operator gets the result of a recovery: the decision, and whether records may be lost (I21)."""
        decided = copy.replica.state.decision(said.epoch)
        self.require(
            said.end_offset == decided.end_offset and (said.unsafe or not decided.unsafe),
            "I21",
            f"the operator got {said}, but the decision is {decided}",
        )

    def _by_disk(self, key: PartitionKey, node: str) -> Truth:
        """Return the truth for a node with the knowledge on this node's disk."""
        return self._on_disk.get((key, node)) or self.truths[key]

    def _go_over(self, key: PartitionKey, node: str, decision: bytes) -> None:
        before = self._by_disk(key, node)
        fork = before.forks.get(decision)
        if fork is not None:
            self._on_disk[key, node] = fork.truth
            forks.adopt(fork.truth, before, node)

    def logged(self, process: Process, text: str) -> None:
        """A node has logged a loss."""
        self._told.add((process, text))

    def _tell(self) -> None:
        """Check that a loss is logged at each node that learns of it (I21)."""
        pending, self._to_tell = self._to_tell, []
        for copy, fork in pending:
            name = copy.partition.name
            text = f"DATA_LOSS: {name}: an operator ended epoch {fork.epoch} at offset {fork.end_offset}"
            told = any(process is copy.process and said.startswith(text) for process, said in self._told)
            self.require(told, "I21", f"{copy.name} knows that epoch {fork.epoch} was cut short, and did not report it")

    def is_overruled(self, copy: Copy) -> bool:
        """Whether a copy has stopped for good, rightly: it knows another end of an epoch than an operator's recovery.

        So a stopped node must know the decision about that epoch, and another replica must continue without it.
        """
        known = self.truth_of(copy).forks.values()
        return copy.replica.state.halted_permanently and any(
            fork.taken and fork.epoch < copy.replica.state.active.epoch for fork in known
        )

    # ------------------------------------------------------------------------------------------ nodes

    def started(self, copy: Copy) -> None:
        """A node has opened a partition after a start."""
        truth, node = self.truth_of(copy), copy.process.node_id
        self._in_memory[copy] = truth
        truth.start_watermark(copy.replica, copy.replica.state.high_watermark)
        fence = copy.replica.state.fence
        epoch = copy.replica.state.active.epoch
        self._found(copy)
        if not self._bad(node) and copy.replica.state.halted is None:
            truth.remembers(node, epoch, fence.promised if fence is not None else None)
        if self._bad(node):
            self.deletions[copy.key].lost(node)
        else:
            self.deletions[copy.key].remembers(copy)
        if not (self._bad(node) or self._world.faults.lied or truth.losses is not None):
            truth.keeps_what_it_accepted(node, copy.view.copy_position, deleted=copy.replica.state.log_start)
        always = truth.flush_of(epoch) == pb.ALWAYS
        if always and not self._bad(node) and copy.limbo() is None:
            end = copy.view.epoch_end(epoch)
            durable = truth.durable.get((node, epoch), -1)
            self.require(
                (end[0] if end else -1) >= durable or durable <= truth.start_of(epoch),
                "I3",
                f"{copy.name} lost a part of epoch {epoch}: {end}, durable was {durable}",
            )
        self._written_anew(copy.name, copy.process, list(_files(copy)))
        if not always or self._bad(node):
            truth.reopened(node, {epoch: found[0] for epoch in truth.epochs() if (found := copy.view.epoch_end(epoch))})

    def _found(self, copy: Copy) -> None:
        """Check the remains of a write that was cut short."""
        truth, node = self.truth_of(copy), copy.process.node_id
        for log in copy.log.epochs:
            known = truth.durable.get((node, log.epoch), log.start_offset)
            if log.end_offset > known:
                from_offset = max(known, log.start_offset)
                batches = log.reader.read(from_offset, 1 << 20, limit_offset=log.end_offset).batches
                try:
                    headers = [unpack_header(batch) for batch in batches]
                except ProtocolError:
                    if not self._bad(node):
                        raise
                    continue  # it has rotted meanwhile, which the next reader detects
                if not any(header.flags & Flags.DERIVED for header in headers):  # else its digest tells, once compared
                    truth.wrote(node, log.epoch, from_offset, headers)
                    truth.payloads(batches)
                truth.made_durable(node, log.epoch, log.end_offset)

    def _written_anew(self, name: str, process: Process, files: Sequence[tuple[Path, int]]) -> None:
        """Check that data that a node relies on is on its disk, although a sync of it may have failed (I17)."""
        disk = process.sim_disk
        if disk.any_lost:
            lost = [path for path, size_bytes in files if disk.node(path).lacks(size_bytes)]
            self.require(not lost, "I17", f"{name} counts on {lost}, a sync of which has failed")

    def booted(
        self, process: Process, chains: TypedJournal[pb.ChainEntry], fences: TypedJournal[pb.FenceEntry]
    ) -> None:
        """A node has read its journals: their content counts, even if the node died before it learned of the writes."""
        self._written_anew(process.node_id, process, [(META / name, sys.maxsize) for name in ("journal", "fences")])
        known = [
            ((entry.topic_id, entry.partition), entry.decision)
            for entry in chains.load()
            if entry.WhichOneof("entry") == "decision"
        ]
        for key, decision in known:
            self._go_over(key, process.node_id, decision)
        for fence in fences.load():
            self._by_disk((fence.topic_id, fence.partition), process.node_id).fenced(process.node_id, fence)
        for key, decision in known:
            self._by_disk(key, process.node_id).learned(decision, process.node_id)

    def refused_to_start(self, machine: Machine, error: StorageError) -> None:
        """A node cannot start; right for a damaged disk, wrong for any other."""
        if isinstance(error, DamagedError):
            self.require(self._bad(machine.node_id), "disk", f"{machine.node_id}: {error.message}")
            machine.retired = True

    def after_step(self, copy: Copy) -> None:
        """Something has happened in a copy's process."""
        replica = copy.replica
        truth = self.truth_of(copy)
        if self._to_tell:
            self._tell()
        watermark = replica.state.high_watermark
        if truth.watermark_moved(replica, watermark):
            truth.claim_committed(replica.state.active.epoch, watermark, f"the watermark of {copy.name}")
        if replica.state.halted is not None and not self._bad(copy.process.node_id) and not self.is_overruled(copy):
            self.fail("halted", f"{copy.name}: {replica.state.halted}")
        if replica.state.deleted_below or self._world.scenario.deletes:
            truth.shows_from(replica.state.active.epoch, replica.state.deleted_below, copy.name)
        if replica.state.log_start:
            self.deletions[copy.key].says(copy.name, replica.state.log_start)
        if replica.state.owner is not None:
            truth.owned(replica.state.active.epoch, copy.process.node_id, copy.process.incarnation)

    # ------------------------------------------------------------------------------------------ disks

    def performed(self, copy: Copy, effect: fx.Write, *, done: bool) -> None:
        """A write to a log is on the disk, or found no space."""
        node = copy.process.node_id
        truth = self._by_disk(copy.key, node)
        self._world.clock.note("wrote", copy.name, effect, done)
        if not done:
            return
        end = None
        if isinstance(effect, fx.FinishPartialCopy):
            end = copy.view.epoch_end(effect.epoch) or copy.view.copy_position(effect.epoch)
        truth.performed(node, effect, end)
        if isinstance(effect, fx.SetAside):
            known = self._bad(node) or self._world.faults.lied
            self.require(known, "I1", f"{copy.name} sets epoch {effect.epoch} aside: {effect.reason}")

    def journalled(self, process: Process, entries: Sequence[Any]) -> None:
        """Entries of fences or chains are durable."""
        for entry in entries:
            key = (entry.topic_id, entry.partition)
            self._world.clock.note("journal", process.node_id, entry, checksum=entry.ByteSize())
            if isinstance(entry, pb.FenceEntry):
                self._by_disk(key, process.node_id).fenced(process.node_id, entry)
            elif entry.WhichOneof("entry") == "decision":
                self._go_over(key, process.node_id, entry.decision)
                self._by_disk(key, process.node_id).learned(entry.decision, process.node_id)

    # ------------------------------------------------------------------------------------------ messages

    def sent(self, copy: Copy, to: str, message: fx.PeerMessage) -> None:
        """A message leaves a node."""
        node = copy.process.node_id
        truth = self.truth_of(copy)
        self._world.clock.note("send", node, to, message)
        if isinstance(message, _VOTES) and message.status == pb.HELD:
            self._able(copy, message)
        truth.sent(node, message)
        self.deletions[copy.key].says(copy.name, log_start_of(message))
        if tells_of_producers(message):
            self.deletions[copy.key].told(copy, to)

    def _able(self, copy: Copy, message: fx.PeerMessage) -> None:
        damage = copy.limbo()
        self.require(damage is None, "I14", f"{copy.name} is damaged ({damage}) and sends {type(message).__name__}")

    # ------------------------------------------------------------------------------------------ clients

    def answered(self, copy: Copy, publish: Publish, said: PublishReply, *, acks: pb.Acks, depth: int) -> None:
        """A node answers a publish, which asked for `acks`, whether or not the answer arrives."""
        truth = self.truth_of(copy)
        self._world.clock.note("answer", copy.name, publish, said, checksum=max(0, said.end_offset))
        if said.kind == "stored" and acks != pb.ONE:
            truth.claim_committed(said.epoch, said.end_offset, f"{copy.name} acknowledges {publish}")
            truth.acknowledged(publish, said)
            if acks == pb.ALL:
                truth.held_by_all(said.epoch, said.end_offset)
        elif said.kind == "denied":
            truth.denied(publish, copy.replica.state.active.epoch)
        if publish.outcome == "pending" and said.error in {
            pb.UNKNOWN_PRODUCER,
            pb.DUPLICATE_OUT_OF_WINDOW,
            pb.SEQUENCE_GAP,
        }:
            # An owner that was replaced may not know its producers' newest batches; the newest owner must.
            newest = copy.replica.state.active.epoch > truth.newest_decided
            out_of_window = said.error == pb.DUPLICATE_OUT_OF_WINDOW
            ordered = not self._world.scenario.shares_ids if out_of_window else depth == 1
            lost = self.is_forgotten(copy, publish, said) or (
                said.error in FORGOTTEN and forks.stored_elsewhere(truth, publish.producer_id, publish.base_sequence)
            )
            newest = newest and not self._may_have_forgotten(copy, publish, said)
            self.require(
                not (newest and ordered) or lost,
                "I12",
                f"{copy.name} knows {publish} badly: {pb.ErrorCode.Name(said.error)}",
            )

    def is_forgotten(self, copy: Copy, publish: Publish, said: PublishReply) -> bool:
        """Whether a producer is unknown because a recovery that this node knows has truncated its batches."""
        return said.error in FORGOTTEN and forks.lost_of(
            self.truth_of(copy), publish.producer_id, publish.base_sequence
        )

    def _may_have_forgotten(self, copy: Copy, publish: Publish, said: PublishReply) -> bool:
        """Whether a node may lack a part of a producer's state, because retention deleted it before the node had it."""
        truth, node = self.truths[copy.key], copy.process.node_id
        if said.error == pb.UNKNOWN_PRODUCER:
            return truth.may_forget(publish.producer_id, node)
        return said.error == pb.DUPLICATE_OUT_OF_WINDOW and truth.may_forget_place(publish, node)

    def tried(self, publish: Publish) -> None:
        """A publish arrives at a node."""
        self.truths[publish.key].tried(publish)

    def says_deleted(self, copy: Copy, log_start: int) -> None:
        """A node reports that records before an offset are deleted (I10)."""
        self.deletions[copy.key].tells(copy.name, log_start)

    def says_lost(self, copy: Copy, position: int, resume: int) -> None:
        """A node reports to a reader that the records from its position on are lost (M1, M3)."""
        losses = self.truth_of(copy).losses
        assert losses is not None
        losses.told(copy.name, position, resume)

    def deleted(self, copy: Copy, offset: int) -> None:
        """A node answers that records below an offset are deleted for good."""
        self._world.clock.note("deleted", copy.name, offset, checksum=offset)
        state = copy.replica.state
        shown_from = max(state.deleted_below, copy.partition.state.log_start)
        self.require(
            shown_from >= offset,
            "I26",
            f"{copy.name} reports that all records below {offset} are deleted, and shows them",
        )
        self.truth_of(copy).shows_from(state.active.epoch, shown_from, copy.name)

    def reads(self, copy: Copy, offset: int, shown_from: int) -> None:
        """A node delivers records at an offset; `shown_from` was its first visible offset at the request."""
        self.require(offset >= shown_from, "I26", f"{copy.name} gives {offset}, all below {shown_from} is deleted")

    def locates(self, copy: Copy) -> tuple[int, Callable[[int | None, BaseException | None], None]]:
        """A node is asked for the end of what is committed, by a reader that has read all of it (I20).

        Returns:
            Where the reader is, and what takes the node's answer.
        """
        asked = self.truth_of(copy)
        committed = asked.committed_end

        def answered(end: int | None, error: BaseException | None) -> None:
            cuts = [fork.end_offset for fork in forks.between(self.truth_of(copy), asked)]
            known = min([committed, *cuts])
            if isinstance(error, ProtocolError) and error.code == pb.OFFSET_OUT_OF_RANGE:
                self.require(known < committed, "I20", f"{copy.name} reports that {committed} was never given out")
            if end is not None:
                self._world.clock.note("end", copy.name, end, checksum=end)
                self.require(end >= known, "I20", f"{copy.name} returned {end}, but {known} was committed before")

        return committed, answered

    def delivered(self, copy: Copy, asked: Truth, data: bytes) -> None:
        """A node gives a batch to a consumer that asked it when another truth may still have held for it."""
        truth, header = self.truth_of(copy), unpack_header(data)
        if any(
            header.epoch == fork.epoch and fork.cuts(header.epoch, header.base_offset)
            for fork in forks.between(truth, asked)
        ):
            truth = asked
        truth.claim_committed(header.epoch, header.end_offset, f"{copy.name} delivers")
        truth.delivered(header, data)

    # ------------------------------------------------------------------------------------------ the end

    def all_equal(self) -> bool:
        """Whether every copy of every partition is complete and known to be committed to the end."""
        return all(unequal(self._world, key) is None for key in self.truths)

    def describe_all(self) -> str:
        """Say what keeps the copies from being equal, partition by partition."""
        return "".join(f"\n  partition {key[1]}: {unequal(self._world, key)}" for key in self.truths)

    def final(self) -> None:
        """Compare all logs with each other and with the answers to clients."""
        for key, root in self.truths.items():
            log = compare_logs(self._world, key)
            compare = compare_compacted if self._world.scenario.compacts else compare_with_history
            compare(self._world, key, forks.newest(root), log)


def _files(copy: Copy) -> Iterator[tuple[Path, int]]:
    """Yield the files of a copy that counts, with how much of each."""
    for log in copy.log.epochs:
        for segment in log.segments if log.damage is None or log.is_repairing else ():
            if copy.process.sim_disk.exists(segment.path):  # The newest records may be in the commit log alone.
                yield segment.path, segment.size_bytes
        if isinstance(log.sync_group, CommitLog) and log.damage is None:
            for file in log.sync_group.files.all:
                yield file.path, file.end - file.base
