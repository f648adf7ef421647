"""Faulty variants of the admission of directories, of the metadata journal, and of groups."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

from tests.broker.storage.sim_disk import SimFile
from tests.simulation.mutants import Mutant, Replacement
from tests.simulation.whole import mutations_epochs as epochs
from tests.simulation.whole import mutations_groups as groups
from tests.simulation.whole import mutations_incarnations as incarnations
from tests.simulation.whole import mutations_typed as typed
from tests.simulation.whole.world import CHURNING, GROUPED, HANDED_OVER, MEETING, MIXED, ROLLED_BACK, SLEEPY, TYPED

from tidelog_broker.broker import Broker
from tidelog_broker.core.membership import admission
from tidelog_broker.core.membership.admission import Binders
from tidelog_broker.core.placement.placement import majority
from tidelog_broker.node.directory_admission import DirectoryAdmission
from tidelog_broker.partition.partitions import Partitions
from tidelog_broker.server.handlers import cluster
from tidelog_broker.storage.directory.existence_markers import remove_directory_marker
from tidelog_broker.storage.io.filesystem import FileSystem
from tidelog_broker.storage.node import journal
from tidelog_broker.storage.node.journal import Journal
from tidelog_broker.storage.node.meta_journal import CHAINS
from tidelog_broker.storage.node.node_dir import NodeDir
from tidelog_broker.storage.node.typed_journal import TypedJournal
from tidelog_broker.storage.partition.partition_dirs import partition_dir_name, remove_partition_dir
from tidelog_broker.storage.partition.partition_log import PartitionLog
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.batch.row_layout import Layouts

Replacements = Sequence[Replacement]


def majority_with_itself() -> Replacements:
    """A founder is admitted by as many as are a majority together with it."""
    return [(admission, "binders_needed", lambda founders: majority(founders) - 1)]


def any_directory_will_do() -> Replacements:
    """Any directory that has bound a founder's name counts for it."""

    def answered(self: Binders, peer: str, bound: bytes) -> str:
        if peer in self._other_founders and bound:
            self._bound.add(peer)
        return ""

    return [(Binders, "answered", answered)]


def bound_anew() -> Replacements:
    """A founder keeps the directory that asked last."""

    def bind(self: NodeDir, node_id: str, directory_id: bytes) -> bytes:
        self._rewrite(lambda record: replace(record, bound=record.bound | {node_id: directory_id.hex()}))
        return self.bound(node_id)

    def directory_to_bind(announce: pb.NodeAnnounce, *, bound: bytes, known: pb.NodeRecord | None) -> bytes:
        return announce.node.directory_id

    async def answered(node: Broker, announce: pb.NodeAnnounce, reply: pb.NodeAnnounceReply) -> bytes:
        del reply
        return bind(node.dir, announce.node.node_id, announce.node.directory_id)

    return [(NodeDir, "bind", bind), (cluster, "directory_to_bind", directory_to_bind), (cluster, "_bind", answered)]


def bound_in_memory() -> Replacements:
    """A founder reports that it has bound another one, and writes that only with its next start."""
    told: dict[bytes, dict[str, bytes]] = {}

    async def answered(node: Broker, announce: pb.NodeAnnounce, reply: pb.NodeAnnounceReply) -> bytes:
        del reply
        memory = told.setdefault(node.incarnation.to_bytes(8, "little"), {})
        return memory.setdefault(announce.node.node_id, announce.node.directory_id)

    return [(cluster, "_bind", answered)]


def admitted_unasked() -> Replacements:
    """A founder takes its directory for its own, whatever the others know."""

    async def be_bound(self: DirectoryAdmission) -> None: ...

    return [(DirectoryAdmission, "_wait_until_bound", be_bound)]


def joins_unasked() -> Replacements:
    """A joiner takes part before `__meta` has it."""

    async def be_registered(self: DirectoryAdmission) -> None: ...

    return [(DirectoryAdmission, "_wait_until_registered", be_registered)]


def named_before_durable() -> Replacements:
    """The compacted journal takes the old one's name before it is on the disk."""
    write_file = journal._write_file

    def unsynced(fs: FileSystem, path: Path, magic: bytes, payloads: Sequence[bytes]) -> Any:
        if not payloads:  # a new directory's
            return write_file(fs, path, magic, payloads)
        with patch.object(SimFile, "datasync", lambda self: None):
            return write_file(fs, path, magic, payloads)

    return [(journal, "_write_file", unsynced)]


def old_one_removed_first() -> Replacements:
    """Compaction removes the old journal, and then writes the new one."""
    compact = Journal.compact

    def removed(self: Journal, live: Iterable[bytes]) -> None:
        self._fs.unlink(self.path)
        self._fs.sync_dir(self.path.parent)
        compact(self, live)

    return [(Journal, "compact", removed)]


def forgotten_come_back() -> Replacements:
    """Forgotten entries are invisible to the next compaction, and written with the rest."""
    take = TypedJournal._take

    def taken(self: TypedJournal[Any], entry: Any, payload: bytes) -> None:
        kept = list(self._live.get(self.kind.key(entry), []))
        take(self, entry, payload)
        if self.kind is CHAINS and entry.forgotten:
            self._compacted_too = [*getattr(self, "_compacted_too", []), *kept]  # type: ignore[attr-defined]

    def compact(self: TypedJournal[Any]) -> None:
        live = [payload for chain in self._live.values() for payload in chain]
        self._journal.compact([*live, *getattr(self, "_compacted_too", [])])
        self._dead_bytes = 0

    return [(TypedJournal, "_take", taken), (TypedJournal, "_compact", compact)]


def newest_left_out() -> Replacements:
    """Compaction leaves out the newest decision of each partition."""
    original = TypedJournal._compact

    def compact(self: TypedJournal[Any]) -> None:
        if self.kind is not CHAINS:
            original(self)
            return
        self._journal.compact([payload for chain in self._live.values() for payload in chain[:-1]])
        self._dead_bytes = 0

    return [(TypedJournal, "_compact", compact)]


def closed_ones_hear_nothing() -> Replacements:
    """A closed partition stays closed, whatever other nodes report."""
    return [(Partitions, "adopt_soon", lambda self, key: None)]


def opened_from_nothing() -> Replacements:
    """A partition is opened, and takes part, as if its directory held nothing."""
    opened = Partitions._open_log

    def open_log(self: Partitions, record: pb.TopicRecord, index: int, layouts: Layouts | None) -> PartitionLog:
        fs, directory = self.tools.disk.fs, self._directory / partition_dir_name(record.name, record.topic_id, index)
        if fs.exists(directory):
            remove_partition_dir(fs, directory)
            remove_directory_marker(fs, directory)
        return opened(self, record, index, layouts)

    return [(Partitions, "_open_log", open_log)]


MUTANTS = {
    mutant.name: mutant
    for mutant in (
        Mutant("admitted by a majority with itself", majority_with_itself, mixture=MEETING),
        Mutant("the directory's id not compared", any_directory_will_do, mixture=MEETING),
        Mutant("a founder bound again to the last directory that asks", bound_anew, mixture=MEETING),
        Mutant("bound before it is durable", bound_in_memory, mixture=MEETING),
        Mutant("a wiped founder takes part unasked", admitted_unasked, mixture=MEETING),
        Mutant("a joiner takes part unasked", joins_unasked, mixture=MIXED),
        Mutant("the compacted journal named before it is durable", named_before_durable, mixture=CHURNING),
        Mutant("the old journal removed before the compacted one exists", old_one_removed_first, mixture=CHURNING),
        Mutant("the forgotten written by a compaction", forgotten_come_back, mixture=CHURNING),
        Mutant("a compaction leaves out the newest decision", newest_left_out, mixture=CHURNING),
        Mutant("a closed partition hears nothing", closed_ones_hear_nothing, mixture=SLEEPY),
        Mutant("a closed partition votes from nothing", opened_from_nothing, mixture=SLEEPY),
        Mutant("incarnations not compared", incarnations.incarnations_not_compared, mixture=ROLLED_BACK),
        Mutant("the nonce of an incarnation not compared", incarnations.nonce_not_compared, mixture=ROLLED_BACK),
        Mutant("the tick of an incarnation not compared", incarnations.tick_not_compared, mixture=ROLLED_BACK),
        Mutant("a tick that no other node hears of", incarnations.tick_kept_by_the_node_alone, mixture=ROLLED_BACK),
        Mutant(
            "taking part before an incarnation is recorded", incarnations.takes_part_unregistered, mixture=ROLLED_BACK
        ),
        Mutant("incarnations recorded in memory only", incarnations.noted_in_memory, mixture=ROLLED_BACK),
        Mutant("incarnations of absent nodes not spread", incarnations.not_spread, mixture=ROLLED_BACK),
        Mutant("the refusal of an older copy in memory only", incarnations.refusal_in_memory, mixture=ROLLED_BACK),
        Mutant("the running node ends and not its copy", incarnations.the_running_node_ends, mixture=ROLLED_BACK),
        Mutant("a refused start that is not withdrawn", incarnations.never_withdrawn, mixture=ROLLED_BACK),
        Mutant("a withdrawn start that takes part", incarnations.withdrawn_and_takes_part, mixture=ROLLED_BACK),
        Mutant(
            "the tick before a withdrawn incarnation lost",
            incarnations.tick_of_the_predecessor_lost,
            mixture=ROLLED_BACK,
        ),
        Mutant("taking part while in doubt", incarnations.takes_part_in_doubt, mixture=ROLLED_BACK),
        Mutant("a coordinator begins without members", groups.begins_without_members, mixture=GROUPED),
        Mutant("commits are not checked", groups.commits_unchecked, mixture=GROUPED),
        Mutant("positions not loaded at a takeover", groups.positions_not_loaded, mixture=GROUPED),
        Mutant("an owner that has not read its log", groups.log_not_read, mixture=GROUPED),
        Mutant("members found by a successor have no session", groups.members_found_have_no_session, mixture=GROUPED),
        Mutant("members told before a quorum has it", groups.told_before_it_is_durable, mixture=GROUPED),
        Mutant("records of an epoch that is over appended", epochs.epochs_not_compared, mixture=HANDED_OVER),
        Mutant("records compared with the newest epoch only", epochs.newest_epoch_compared, mixture=HANDED_OVER),
        Mutant("positions pending from an earlier epoch", epochs.prepared_counts_for_ever, mixture=HANDED_OVER),
        Mutant("digest of a schema ignored", typed.digest_ignored, mixture=TYPED),
        Mutant("lowest schema number ignored", typed.floor_ignored, mixture=TYPED),
        Mutant("id of a dropped field used again", typed.id_reused, mixture=TYPED),
        Mutant("narrower types allowed", typed.narrowing_allowed, mixture=TYPED),
        Mutant("schemas left out of snapshots", typed.left_out_of_snapshots, mixture=TYPED),
    )
}


@contextmanager
def switched_on(name: str) -> Iterator[None]:
    """Run the block with a mutant."""
    with ExitStack() as stack:
        for target, attribute, value in MUTANTS[name].replacements():
            stack.enter_context(patch.object(target, attribute, value))
        yield
