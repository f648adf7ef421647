"""The invariants, see docs/verification.md, checked from outside after every step: against what disks really hold.

`Truth` is what an all-knowing observer writes down per partition: every batch that was ever written, what each node
made durable, which values were accepted where and so decided, what was claimed to be committed. Each step is held
against it at a cost that does not grow with the run. `final` compares the logs themselves byte by byte.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from tests.simulation.final import compare_logs, compare_with_history, unequal
from tests.simulation.history import Publish, PublishReply
from tests.simulation.journals import META
from tests.simulation.truth import Truth, ViolationError

from tidelog_broker.core import effects as fx
from tidelog_broker.core.ports import PartitionKey
from tidelog_broker.storage.errors import DamagedError, StorageError
from tidelog_broker.storage.fences import FenceJournal
from tidelog_broker.storage.meta_journal import MetaJournal
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.header import BatchHeader, unpack_header

if TYPE_CHECKING:
    from tests.simulation.copies import Copy
    from tests.simulation.machine import Machine
    from tests.simulation.process import Process
    from tests.simulation.world import World

_VOTES = pb.ReplicationAck | pb.SealReply | pb.OpenEpochReply


class Checks:
    """See the module. Every method is called by the world when what its name says has just happened."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.truths: dict[PartitionKey, Truth] = {
            key: Truth(genesis, self._bad) for key, genesis in world.genesis.items()
        }

    def _bad(self, node_id: str) -> bool:
        machine = node_id.partition("+")[0]
        return any(one.name == machine and self._world.faults.may_lose(one) for one in self._world.machines)

    def fail(self, invariant: str, what: str) -> NoReturn:
        """Report a broken invariant."""
        raise ViolationError(invariant, what)

    def require(self, condition: bool, invariant: str, what: str) -> None:
        """Report a broken invariant unless `condition` holds."""
        if not condition:
            self.fail(invariant, what)

    # ------------------------------------------------------------------------------------------ nodes

    def started(self, copy: Copy) -> None:
        """A node has opened a partition after a start."""
        truth, node = self.truths[copy.key], copy.process.node_id
        truth.start_watermark(copy.replica, copy.replica.high_watermark)
        fence = copy.replica.fence
        epoch = copy.replica.active.epoch
        self._found(copy)
        if not self._bad(node) and copy.replica.halted is None:
            truth.remembers(node, epoch, fence.promised if fence is not None else None)
        if not (self._bad(node) or self._world.faults.lied or self._world.scenario.retention_bytes):
            truth.keeps_what_it_accepted(node, copy.view.fill_position)
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
        """See what a write that was cut short has left, all the same."""
        truth, node = self.truths[copy.key], copy.process.node_id
        for log in copy.log.epochs:
            known = truth.durable.get((node, log.epoch), log.start_offset)
            if log.end_offset > known:
                from_offset = max(known, log.start_offset)
                batches = log.read(from_offset, 1 << 20, limit_offset=log.end_offset).batches
                truth.wrote(node, log.epoch, from_offset, [unpack_header(batch) for batch in batches])
                truth.payloads(batches)
                truth.made_durable(node, log.epoch, log.end_offset)

    def _written_anew(self, name: str, process: Process, files: Sequence[tuple[Path, int]]) -> None:
        """See that what a node counts on is on its disk, although a sync of it may have failed (I17)."""
        disk = process.sim_disk
        if disk.any_lost:
            lost = [path for path, size_bytes in files if disk.node(path).lacks(size_bytes)]
            self.require(not lost, "I17", f"{name} counts on {lost}, a sync of which has failed")

    def booted(self, process: Process, chains: MetaJournal, fences: FenceJournal) -> None:
        """A node has read its journals: what they hold counts, whether or not the node was told so before it died."""
        self._written_anew(process.node_id, process, [(META / name, sys.maxsize) for name in ("journal", "fences")])
        for fence in fences.load().values():
            self.truths[fence.topic_id, fence.partition].fenced(process.node_id, fence)
        for (topic_id, partition), entries in chains.load().items():
            for entry in entries:
                if entry.WhichOneof("entry") == "decision":
                    self.truths[topic_id, partition].learned(entry.decision, process.node_id)

    def refused_to_start(self, machine: Machine, error: StorageError) -> None:
        """A node cannot start; right for a damaged disk, wrong for any other."""
        if isinstance(error, DamagedError):
            self.require(self._bad(machine.node_id), "disk", f"{machine.node_id}: {error.message}")
            machine.retired = True

    def after_step(self, copy: Copy) -> None:
        """Something has happened in a copy's process."""
        replica = copy.replica
        truth = self.truths[copy.key]
        watermark = replica.high_watermark
        if truth.watermark_moved(replica, watermark):
            truth.claim_committed(replica.active.epoch, watermark, f"the watermark of {copy.name}")
        if replica.halted is not None and not self._bad(copy.process.node_id):
            self.fail("halted", f"{copy.name}: {replica.halted}")
        if replica.owner is not None:
            truth.owned(replica.active.epoch, copy.process.node_id, copy.process.incarnation)

    # ------------------------------------------------------------------------------------------ disks

    def performed(self, copy: Copy, effect: fx.Write, *, done: bool) -> None:
        """A write to a log is on the disk, or found no space."""
        truth, node = self.truths[copy.key], copy.process.node_id
        self._world.clock.note("wrote", copy.name, effect, done)
        if not done:
            return
        end = None
        if isinstance(effect, fx.FinishFill):
            end = copy.view.epoch_end(effect.epoch) or copy.view.fill_position(effect.epoch)
        truth.performed(node, effect, end)
        if isinstance(effect, fx.SetAside):
            known = self._bad(node) or self._world.faults.lied
            self.require(known, "I1", f"{copy.name} sets epoch {effect.epoch} aside: {effect.reason}")

    def journalled(self, process: Process, entries: Sequence[Any]) -> None:
        """Entries of fences or chains are durable."""
        for entry in entries:
            key = (entry.topic_id, entry.partition)
            truth = self.truths[key]
            self._world.clock.note("journal", process.node_id, entry, checksum=entry.ByteSize())
            if isinstance(entry, pb.FenceEntry):
                truth.fenced(process.node_id, entry)
            elif entry.WhichOneof("entry") == "decision":
                truth.learned(entry.decision, process.node_id)

    # ------------------------------------------------------------------------------------------ messages

    def sent(self, copy: Copy, to: str, message: fx.PeerMessage) -> None:
        """A message leaves a node."""
        node = copy.process.node_id
        truth = self.truths[copy.key]
        self._world.clock.note("send", node, to, message)
        if isinstance(message, _VOTES) and message.status == pb.HELD:
            self._able(copy, message)
        truth.sent(node, message)

    def _able(self, copy: Copy, message: fx.PeerMessage) -> None:
        damage = copy.limbo()
        self.require(damage is None, "I14", f"{copy.name} is damaged ({damage}) and says {type(message).__name__}")

    # ------------------------------------------------------------------------------------------ clients

    def answered(self, copy: Copy, publish: Publish, said: PublishReply, *, acks: pb.Acks, depth: int) -> None:
        """A node answers a publish, which asked for `acks`, whether or not the answer arrives."""
        truth = self.truths[copy.key]
        self._world.clock.note("answer", copy.name, publish, said, checksum=max(0, said.end_offset))
        if said.kind == "stored" and acks != pb.ONE:
            truth.claim_committed(said.epoch, said.end_offset, f"{copy.name} acknowledges {publish}")
            truth.acknowledged(publish, said)
            if acks == pb.ALL:
                truth.held_by_all(said.epoch, said.end_offset)
        elif said.kind == "denied":
            truth.denied(publish)
        if publish.outcome == "pending" and said.error in {
            pb.UNKNOWN_PRODUCER,
            pb.DUPLICATE_OUT_OF_WINDOW,
            pb.SEQUENCE_GAP,
        }:
            # An owner that was replaced may not know its producers' newest batches; the newest owner must.
            newest = copy.replica.active.epoch > truth.newest_decided
            ordered = said.error == pb.DUPLICATE_OUT_OF_WINDOW or depth == 1
            self.require(
                not (newest and ordered), "I12", f"{copy.name} knows {publish} badly: {pb.ErrorCode.Name(said.error)}"
            )

    def tried(self, publish: Publish) -> None:
        """A publish arrives at a node."""
        self.truths[publish.key].tried(publish)

    def says_deleted(self, copy: Copy, log_start: int) -> None:
        """A node says that retention has deleted what lies before an offset (I10)."""
        truth, deletes = self.truths[copy.key], bool(self._world.scenario.retention_bytes)
        self.require(deletes or log_start == 0, "I10", f"{copy.name} says that its log begins at {log_start}")
        self.require(log_start <= truth.committed_end, "I10", f"{copy.name} deletes what is not committed: {log_start}")

    def locates(self, copy: Copy) -> Callable[[int | None, BaseException | None], None]:
        """A node is asked for the end of what is committed; what is returned takes its answer (I20)."""
        committed = self.truths[copy.key].committed_end

        def answered(end: int | None, _: BaseException | None) -> None:
            if end is not None:
                self._world.clock.note("end", copy.name, end, checksum=end)
                self.require(end >= committed, "I20", f"{copy.name} says {end}, {committed} was committed before")

        return answered

    def delivered(self, copy: Copy, header: BatchHeader) -> None:
        """A node gives a batch to a consumer."""
        truth = self.truths[copy.key]
        truth.claim_committed(header.epoch, header.end_offset, f"{copy.name} delivers")
        truth.delivered(header)

    # ------------------------------------------------------------------------------------------ the end

    def all_equal(self) -> bool:
        """Whether every copy of every partition is complete and known to be committed to the end."""
        return all(unequal(self._world, key) is None for key in self.truths)

    def describe_all(self) -> str:
        """Say what keeps the copies from being equal, partition by partition."""
        return "".join(f"\n  partition {key[1]}: {unequal(self._world, key)}" for key in self.truths)

    def final(self) -> None:
        """Hold all logs against each other and against what clients were told."""
        for key, truth in self.truths.items():
            log = compare_logs(self._world, key)
            compare_with_history(self._world, key, truth, log)


def _files(copy: Copy) -> Iterator[tuple[Path, int]]:
    """Yield the files of a copy that counts, with how much of each."""
    for log in copy.log.epochs:
        for segment in log.segments if log.damage is None or log.is_repairing else ():
            yield segment.path, segment.size_bytes
