"""The lives of nodes as one node keeps them: noted durably, exchanged with the other nodes, raised while it writes.

The rules are in `core.lives`. Handshakes ask `meet` in both directions, so two nodes exchange nothing else before each
has noted the other's life durably. `run` raises this node's tick and sends what is new to all linked nodes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from functools import partial
from typing import Final, Protocol

from tidelog_broker.base.group_commit import GroupCommit
from tidelog_broker.base.offload import Offload
from tidelog_broker.core.incarnation import boot_counter
from tidelog_broker.core.lives import (
    OWN_LIVES_MAX,
    Directory,
    KnownLives,
    NodeLife,
    OwnLives,
    claim_of,
    directory_of,
    known_life,
    life_of,
)
from tidelog_broker.core.placement.registry import DIRECTORY_ID_BYTES
from tidelog_broker.storage.io.errors import DiskFullError, StorageFailedError
from tidelog_broker.storage.node.typed_journal import TypedJournal
from tidelog_broker.wire.lives import OldLifeError
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError
from tidelog_proto.limits import NODE_ID_BYTES_MAX

log = logging.getLogger(__name__)

TICK_S: Final = 1.0
"""How often the tick is raised while the node writes: what a directory may lose without being found out."""
ENTRIES_MAX: Final = 1000
"""Lives in one message between nodes."""
EXCHANGE_TIMEOUT_S: Final = 2.0
CLOSE_TIMEOUT_S: Final = 1.0
"""How long a node that stops waits for the last lives to be written."""
LIVES_WORKER: Final = 2


class LinkedNodes(Protocol):
    """The nodes to which a link stands."""

    @property
    def linked(self) -> frozenset[str]:
        """Their ids."""
        ...

    async def ask_lives(self, node_id: str, lives: pb.Lives, *, timeout_s: float) -> pb.LivesReply | None:
        """Send lives to a node; return the later ones that it knows, None without an answer in time."""
        ...


class NodeLives:
    """See the module; `HandshakeLives` for links and for the handlers of handshakes.

    Args:
        directory: this node's id and its directory's.
        incarnation: of the life that runs.
        journal: of lives, open.
        offload: the journals' workers.
        writes: returns how many durable writes this node has done.
        failed: called with the error of a disk that failed.
        refused: called with the reason, for an operator, once this directory is found to be an older copy.
    """

    def __init__(
        self,
        directory: Directory,
        incarnation: int,
        journal: TypedJournal[pb.KnownLife],
        *,
        offload: Offload,
        writes: Callable[[], int],
        failed: Callable[[BaseException], None],
        refused: Callable[[str], None],
    ) -> None:
        entries = journal.load()
        self._node_id = directory[0]
        self._kept = [entry.incarnation for entry in entries if entry.own]
        self.own = OwnLives.of(directory, incarnation, [life_of(entry) for entry in entries if entry.own])
        self._known = KnownLives((directory_of(entry), life_of(entry)) for entry in entries if not entry.own)
        self._durable = {of: life.incarnation for of, life in self._known}
        """The incarnation of each directory that is in the journal."""
        self._news: dict[Directory, NodeLife] = {}
        """Lives that were learned since the last message to the other nodes."""
        self._behind: set[str] = set()
        """Linked nodes that did not answer a message: they are sent every known life."""
        self._writes = writes
        self._writes_seen = 0
        self._refused = refused
        self.superseded: Callable[[str], None] = lambda _: None
        """Called with the id of a node of which another life than the one known so far was reported."""
        self.is_refused = False
        """Whether another node has proven this directory to be an older copy."""
        self._begun = asyncio.Event()
        self._has_reserve: Callable[[], Awaitable[bool]] = partial(offload.call, LIVES_WORKER, journal.has_reserve)
        self._has_room = True
        """Whether ticks can be kept; on a full disk the journal's reserve is left to starts of nodes."""
        self._failed = failed
        self._journal: GroupCommit[pb.KnownLife] = GroupCommit(
            journal.append, mark=journal.mark, offload=offload, key=LIVES_WORKER, failed=failed, full=self._full
        )

    # --- this node's lives -----------------------------------------------------------------------------

    async def begin(self) -> None:
        """Make the life that runs durable; before this node speaks to any other."""
        too_many = sorted(self._kept)[:-OWN_LIVES_MAX]
        dropped = [self._own_entry(NodeLife(incarnation, 0), dropped=True) for incarnation in too_many]
        await self._append([self._own_entry(self.own.now), *dropped])
        self._begun.set()

    async def begun(self) -> None:
        """Wait until the life that runs is durable."""
        await self._begun.wait()

    async def run(self, neighbours: LinkedNodes) -> None:
        """Raise the tick while this node writes, and send what is new to the nodes that are linked."""
        while True:
            await asyncio.sleep(TICK_S)
            try:
                self._has_room = await self._has_reserve()
            except StorageFailedError as error:
                self._failed(error)
                return
            writes = self._writes()
            if self._has_room and writes != self._writes_seen:
                self._writes_seen = writes
                raised = NodeLife(self.own.now.incarnation, self.own.now.tick + 1)
                await self._append([self._own_entry(raised)])
                self.own.now = raised  # sent after it is durable: a crash must not leave the directory behind its word
                self._news[self.own.directory] = raised
            await self._send_news(neighbours)

    async def exchange(self, neighbours: LinkedNodes, node_id: str) -> bool:
        """Send every known life to a node that was just linked, and take the later ones; False without an answer."""
        lives = [known_life(self.own.directory, self.own.now), *(known_life(of, life) for of, life in self._known)]
        self._behind.discard(node_id)
        return await self._send(neighbours, node_id, lives)

    async def close(self) -> None:
        """Keep what was learned last, write no more, and wait for what is on its way to the disk."""
        with contextlib.suppress(TimeoutError):  # the disk is full, say: it is learned again from those that know it
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self._keep_news()
        await self._journal.close()

    # --- handshakes ------------------------------------------------------------------------------------

    def offer(self, peer_id: str) -> pb.PeerLife:
        """Return what this node says in a handshake with `peer_id`."""
        own = self.own
        return pb.PeerLife(
            directory_id=own.directory[1],
            past=[pb.Life(incarnation=incarnation, tick=tick) for incarnation, tick in sorted(own.past.items())],
            forgotten_below=own.forgotten_below,
            tick=own.now.tick,
            known=self._known.of_node(peer_id),
        )

    def refutation(self, peer_id: str, incarnation: int, said: pb.PeerLife) -> pb.KnownLife | None:
        """Return the known life that proves the other node's directory to be an older copy; None when nothing does."""
        directory = (peer_id, said.directory_id)
        known = self._known.refutation(directory, claim_of(incarnation, said)) if said.directory_id else None
        return None if known is None else known_life(directory, known)

    def predecessor(self, peer_id: str, incarnation: int, said: pb.PeerLife) -> int:
        """Return the incarnation of the earlier life of a directory that is known here; 0 without one."""
        known = self._known.get((peer_id, said.directory_id))
        return known.incarnation if known is not None and known.incarnation != incarnation else 0

    async def meet(self, peer_id: str, incarnation: int, said: pb.PeerLife) -> None:
        """Compare lives with a node that has proven itself; return when its life is noted durably here.

        A node of a build without lives sends no `PeerLife` and is not compared.

        Raises:
            OldLifeError: that node knows a later life of this node's directory.
            ProtocolError: FORBIDDEN, its directory is an older copy; INVALID_REQUEST, what it sent is not a life.
        """
        for known in said.known:
            if self._refutes(known):
                raise self.refuted(peer_id, known, in_use=False)
        if not said.directory_id:
            return
        if fault := _fault_of(known_life((peer_id, said.directory_id), NodeLife(incarnation, said.tick))):
            raise ProtocolError(pb.INVALID_REQUEST, f"the node {peer_id!r} sent no life of a node: {fault}")
        if self.refutation(peer_id, incarnation, said) is not None:
            raise ProtocolError(
                pb.FORBIDDEN, f"the data directory of the node {peer_id!r} is an older copy; that node must not run"
            )
        directory = (peer_id, said.directory_id)
        self._learn(directory, NodeLife(incarnation, said.tick))
        if self._durable.get(directory) != incarnation:
            await self._append([known_life(directory, NodeLife(incarnation, said.tick))])
            self._durable[directory] = incarnation

    def refuted(self, by: str, known: pb.KnownLife, *, in_use: bool) -> ProtocolError:
        """Take the proof of a node that this directory is an older copy: this node ends. Return the error to raise.

        A life of another directory, or one that this directory contains, proves nothing: then this node goes on.
        """
        is_ours = directory_of(known) == self.own.directory and not _fault_of(known)
        if not is_ours or not (in_use or self._refutes(known)):
            return ProtocolError(
                pb.FORBIDDEN,
                f"the node {by!r} takes this data directory for an older copy, and the life that it names does not "
                f"prove that: start {boot_counter(known.incarnation)} of the node {known.node_id!r}, tick {known.tick}",
            )
        why = _why_old(self.own, by, life_of(known), in_use=in_use)
        if not self.is_refused:
            self.is_refused = True
            self._refused(why)
        return OldLifeError(pb.FORBIDDEN, why)

    def newest(self, directory: Directory) -> NodeLife | None:
        """Return the newest life that is known of another directory."""
        return self._known.get(directory)

    def is_noted(self, node_id: str, incarnation: int) -> bool:
        """Return whether a life may gossip: it was noted here, or nothing is known of that node."""
        if node_id == self._node_id:
            return incarnation == self.own.now.incarnation
        known = self._known.incarnations(node_id)
        return not known or incarnation in known

    # --- what other nodes report -----------------------------------------------------------------------

    def learn(self, sender: str, entries: Collection[pb.KnownLife]) -> pb.LivesReply:
        """Take lives that another node reports; return those of which a later one is known here."""
        reply = pb.LivesReply()
        for entry in entries:
            if self._refutes(entry):
                self.refuted(sender, entry, in_use=False)
                continue
            directory = directory_of(entry)
            if directory == self.own.directory or _fault_of(entry):
                continue
            self._learn(directory, life_of(entry))
            known = self._known.get(directory)
            if known is not None and known > life_of(entry):
                reply.entries.append(known_life(directory, known))
        return reply

    def forget(self, node_ids: Collection[str]) -> None:
        """Drop what is known of nodes that were removed from the cluster: their ids are never used again."""
        self._drop(self._known.forget(node_ids))

    # --- inside ----------------------------------------------------------------------------------------

    def _refutes(self, known: pb.KnownLife) -> bool:
        if directory_of(known) != self.own.directory or _fault_of(known):
            return False
        return self.own.is_older_than(life_of(known))

    def _drop(self, directories: Collection[Directory]) -> None:
        """Remove lives from the journal that are not known any more."""
        for directory in directories:
            self._durable.pop(directory, None)
            self._news.pop(directory, None)
        if directories:
            self._journal.submit([_dropped(of) for of in directories], lambda: None)

    def _learn(self, directory: Directory, life: NodeLife) -> None:
        before = self._known.get(directory)
        if not self._known.learn(directory, life):
            return
        self._news[directory] = life
        self._drop(self._known.take_evicted())
        if before is not None and before.incarnation != life.incarnation:
            self.superseded(directory[0])

    async def _send_news(self, neighbours: LinkedNodes) -> None:
        """Keep what was learned durably, with one sync, and send it on; the next round sends what is learned then.

        A linked node that has not answered an earlier message is sent everything, since its link may last.
        """
        news = await self._keep_news()
        lives = [known_life(of, life) for of, life in news.items()]
        linked = neighbours.linked
        self._behind &= linked
        behind = sorted(self._behind)
        await asyncio.gather(
            *(self.exchange(neighbours, node_id) for node_id in behind),
            *(self._send(neighbours, node_id, lives) for node_id in sorted(linked.difference(behind))),
        )

    async def _keep_news(self) -> dict[Directory, NodeLife]:
        """Write what was learned of other nodes since the last call to the journal; return it, with the own life."""
        news, self._news = self._news, {}
        others = {of: life for of, life in news.items() if of != self.own.directory and self._is_kept(of, life)}
        if others:
            await self._append([known_life(of, life) for of, life in others.items()])
            self._durable |= {of: life.incarnation for of, life in others.items()}
        return news

    def _is_kept(self, directory: Directory, life: NodeLife) -> bool:
        """Return whether a life is written to the journal: each start is, and ticks while the disk is not full."""
        return self._has_room or self._durable.get(directory) != life.incarnation

    async def _send(self, neighbours: LinkedNodes, node_id: str, lives: Sequence[pb.KnownLife]) -> bool:
        for first in range(0, len(lives), ENTRIES_MAX):
            message = pb.Lives(entries=lives[first : first + ENTRIES_MAX])
            reply = await neighbours.ask_lives(node_id, message, timeout_s=EXCHANGE_TIMEOUT_S)
            if reply is None:
                self._behind.add(node_id)
                return False
            self.learn(node_id, reply.entries[:ENTRIES_MAX])
        return True

    async def _append(self, entries: Sequence[pb.KnownLife]) -> None:
        written = asyncio.Event()
        self._journal.submit(entries, written.set)
        await written.wait()

    def _own_entry(self, life: NodeLife, *, dropped: bool = False) -> pb.KnownLife:
        entry = known_life(self.own.directory, life)
        entry.own, entry.dropped = True, dropped
        return entry

    def _full(self, error: DiskFullError) -> None:
        log.warning("the lives of nodes cannot be noted, so no node is linked: %s", error)


def _fault_of(known: pb.KnownLife) -> str:
    """Return why an entry that another node sent cannot be a life of a node; empty when it can."""
    if len(known.directory_id) != DIRECTORY_ID_BYTES:
        return f"the id of a data directory has {DIRECTORY_ID_BYTES} bytes, got {len(known.directory_id)}"
    if not 1 <= len(known.node_id.encode()) <= NODE_ID_BYTES_MAX:
        return f"a node id has 1 to {NODE_ID_BYTES_MAX} bytes, got {len(known.node_id.encode())}"
    return "" if known.incarnation else "an incarnation is at least 1, got 0"


def _dropped(directory: Directory) -> pb.KnownLife:
    """Return the entry that removes what the journal has of another directory."""
    entry = known_life(directory, NodeLife(1, 0))
    entry.dropped = True
    return entry


def _why_old(own: OwnLives, by: str, known: NodeLife, *, in_use: bool) -> str:
    """Return why this directory is refused, for its operator."""
    node_id = own.directory[0]
    contained = own.past | dict([own.now])
    counter, own_counter = boot_counter(known.incarnation), boot_counter(own.now.incarnation)
    if in_use:
        proof = f"start {counter} of that node runs now in another process, as the node {by!r} has verified"
    elif known.incarnation in contained:
        proof = (
            f"in start {counter} that node went on writing after this copy was made (tick {known.tick}; the directory "
            f"has {contained[known.incarnation]}), as the node {by!r} has noted"
        )
    else:
        proof = (
            f"the node {by!r} has noted start {counter} of that node, which this directory does not contain (it is "
            f"starting for the {own_counter}. time)"
        )
    return (
        f"the data directory is an older copy of the node {node_id!r}: {proof}. It may lack acknowledged records, so "
        "it takes no part in the cluster. Use the newest directory of that node; if that is lost, start with --replace "
        "in an empty directory. `tidelog log` reads this one offline"
    )
