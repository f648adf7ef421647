"""The invariants of the world of whole nodes: I23, I24 and I30, see docs/verification.md.

A directory counts where its node regards it as admitted. The decisions of a quorum of `__meta` are known from the nodes
that made them durable, and their directories: one lost with its disk differs from the one that has the name now.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from tests.broker.storage.sim_disk import SimDisk
from tests.simulation.truth import ViolationError
from tests.simulation.whole.journals import Journals

from tidelog_broker.core.placement.placement import majority
from tidelog_broker.core.replication.paxos import BallotKey, ballot_key
from tidelog_broker.core.topics import META_TOPIC_ID
from tidelog_broker.storage.io.filesystem import FileSystem
from tidelog_broker.storage.node.node_dir import NodeDir, NodeRecord
from tidelog_proto import broker_pb2 as pb

if TYPE_CHECKING:
    from tests.simulation.whole.machine import Machine
    from tests.simulation.whole.world import World


class Quorum(NamedTuple):
    """Nodes that have accepted the end of an epoch of `__meta`: directory by name, of all that were asked."""

    epoch: int
    placement: tuple[str, ...]
    directories: dict[str, bytes]


class Checks:
    """See the module. Each method is called right after the event that it is named after."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.journals = Journals(self.fail)
        self.admitted: dict[str, bytes] = {}
        """By name: the directory that was admitted, for good."""
        self._quorums: dict[int, Quorum] = {}
        self._decided: dict[int, bytes] = {}
        self._placements: dict[int, tuple[str, ...]] = {0: tuple(world.bootstrap.genesis().placement)}
        self._accepted: dict[tuple[int, BallotKey], dict[str, bytes]] = defaultdict(dict)
        self._records: dict[tuple[str, bytes, int], bytes] = {}
        self.refusals = 0
        self.rollbacks = 0
        self.lost_disks: set[int] = set()
        """Machines with lost disks."""
        self._lost_directories: set[bytes] = set()

    @property
    def is_founded(self) -> bool:
        """Whether anything was ever decided about `__meta`."""
        return bool(self._decided)

    @property
    def needs_no_other_founder(self) -> bool:
        """Whether `__meta` is founded, and all founders with existing disks are admitted."""
        waiting = [one for one in self._world.founders if one not in self.admitted]
        lost = {machine.first_id for machine in self._world.machines if machine.number in self.lost_disks}
        return self.is_founded and lost.issuperset(waiting)

    @property
    def decisions(self) -> int:
        """How many epochs of `__meta` have ended."""
        return len(self._decided)

    def fail(self, invariant: str, what: str) -> NoReturn:
        """Report a broken invariant."""
        raise ViolationError(invariant, what)

    def require(self, condition: bool, invariant: str, what: str) -> None:
        """Report a broken invariant unless `condition` holds."""
        if not condition:
            self.fail(invariant, what)

    # ------------------------------------------------------------------------------------------ directories

    def written(self, fs: FileSystem, record: NodeRecord) -> None:
        """A node.json is durable."""
        machine = self._machine(fs)
        if record.admitted and machine is not None:
            self._admit(record.node_id, bytes.fromhex(record.directory_id))

    def opened(self, machine: Machine, directory: NodeDir) -> None:
        """A node has opened its directory, which may have become admitted when it died before it knew."""
        if directory.admitted:
            self._admit(directory.node_id, directory.directory_id)

    def lost(self, machine: Machine) -> None:
        """A disk goes."""
        self.lost_disks.add(machine.number)
        self._lost_directories.add(machine.directory_id)
        self.journals.made(machine.number)

    def rolled_back(self, machine: Machine) -> None:
        """A disk is put back to an earlier state."""
        self.rollbacks += 1
        self.journals.rolled_back(machine.number)

    def took_part(self, machine: Machine) -> None:
        """A node serves. The world rolls a disk back only where a node knows better and can be asked."""
        self.require(
            not (machine.is_rolled_back or machine.is_copy),
            "I31",
            f"{machine.node_id} takes part with a disk that was rolled back",
        )
        self.require(
            not machine.copy_took_part, "I31", f"{machine.node_id} takes part after a copy of its directory has done so"
        )

    def refused(self, machine: Machine) -> None:
        """A node learns that its name belongs to another directory; an admitted one never does."""
        self.refusals += 1
        self.require(
            self.admitted.get(machine.node_id) != machine.directory_id,
            "I23",
            f"{machine.node_id} is admitted and got the answer that it is not",
        )

    def gave_up(self, machine: Machine, why: str) -> None:
        """A node that takes part stops because of its identity: none is removed here."""
        self.fail("I23", f"{machine.node_id} gives up: {why}")

    def _admit(self, node_id: str, directory_id: bytes) -> None:
        before = self.admitted.setdefault(node_id, directory_id)
        self.require(before == directory_id, "I23", f"two directories of {node_id!r} have been admitted")
        for quorum in self._quorums.values():
            self._meets(quorum)

    # ------------------------------------------------------------------------------------------ __meta

    def accepted(self, fs: FileSystem, entries: Sequence[pb.FenceEntry]) -> None:
        """Fences are durable."""
        machine = self._machine(fs)
        for entry in entries:
            if machine is None or entry.topic_id != META_TOPIC_ID or not entry.HasField("accepted"):
                continue
            key = (entry.epoch, ballot_key(entry.accepted))
            acceptors = self._accepted[key]
            acceptors[machine.node_id] = machine.directory_id
            placement = self._placements.get(entry.epoch, ())
            there = {node: acceptors[node] for node in placement if node in acceptors}
            if placement and len(there) >= majority(len(placement)) and entry.epoch not in self._quorums:
                self._quorums[entry.epoch] = Quorum(entry.epoch, placement, there)
                self._meets(self._quorums[entry.epoch])

    def decided(self, fs: FileSystem, entries: Sequence[pb.ChainEntry]) -> None:
        """Decisions are durable."""
        for entry in entries:
            if entry.topic_id != META_TOPIC_ID or entry.WhichOneof("entry") != "decision":
                continue
            decision = pb.EpochDecision.FromString(entry.decision)
            before = self._decided.setdefault(decision.epoch, entry.decision)
            self.require(
                before == entry.decision,
                "I23",
                f"epoch {decision.epoch} of __meta has ended in two ways: two foundings",
            )
            self._placements[decision.epoch + 1] = tuple(decision.next.placement)

    def _meets(self, quorum: Quorum) -> None:
        """Check that the nodes that may decide include one that remembers."""
        strangers = [
            node
            for node in quorum.placement
            if node in self.admitted and self.admitted[node] != quorum.directories.get(node)
        ]
        self.require(
            len(strangers) < majority(len(quorum.placement)),
            "I23",
            f"{strangers} may decide about epoch {quorum.epoch} of __meta; none of them has accepted its end",
        )

    def applied(self, kind: str, name: bytes, revision: int, raw: bytes) -> None:
        """A node applies a committed record of `__meta`."""
        before = self._records.setdefault((kind, name, revision), raw)
        self.require(before == raw, "I23", f"two records of {kind} {name!r} have revision {revision}")

    def named(self, records: Iterable[pb.TopicRecord]) -> None:
        """A node has applied a record, and knows these topics."""
        names = [record.name for record in records if not record.deleted]
        self.require(len(names) == len(set(names)), "I30", f"two topics have one name: {sorted(names)}")

    # ------------------------------------------------------------------------------------------ the end

    def can_live(self) -> bool:
        """Whether enough disks are left of those that `__meta` counts on."""
        newest = self._placements[max(self._placements)]
        kept = [node for node in newest if any(self._may_have(machine, node) for machine in self._world.machines)]
        return len(kept) >= majority(len(newest))

    def _may_have(self, machine: Machine, node: str) -> bool:
        """Whether a machine has, or may still get, the directory that counts under a name."""
        if machine.node_id != node:
            return False
        if node in self.admitted:
            return self.admitted[node] not in self._lost_directories
        return machine.is_founder or machine.wipes == 0

    def _machine(self, fs: FileSystem) -> Machine | None:
        assert isinstance(fs, SimDisk)
        return next((machine for machine in self._world.machines if machine.disk is fs), None)
