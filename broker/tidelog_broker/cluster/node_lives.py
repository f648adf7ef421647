"""The lives of nodes as one node keeps them: noted durably, exchanged with the other nodes, raised while it writes.

The rules are in `core.lives` and `core.known_lives`. Handshakes ask `meet` in both directions, so two nodes exchange
nothing else before each has noted the other's life durably. `run` raises this node's tick and sends what is new to all
linked nodes.

A node whose directory is found to be an older copy is *refused* for good where the life that proves it took part or
runs. Where that life may still be withdrawn, this node is *in doubt*: it takes no part, in this start and in later
ones, until it hears of the withdrawal. A life that ends before it took part is withdrawn.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from functools import partial
from typing import Final, Protocol

from tidelog_broker.base.group_commit import GroupCommit
from tidelog_broker.base.offload import Offload
from tidelog_broker.core.incarnation import boot_counter
from tidelog_broker.core.known_lives import KnownLives, Starts, directory_of, known_life, life_of, lives_of
from tidelog_broker.core.lives import (
    ELSEWHERE_MAX,
    LIVES_PER_MESSAGE_MAX,
    OWN_LIVES_MAX,
    Directory,
    NodeLife,
    OwnLives,
    claim_of,
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
EXCHANGE_TIMEOUT_S: Final = 2.0
WITHDRAW_S: Final = 2.0
"""How long a node that ends before it took part waits for those that may have noted its start to note that."""
WITHDRAW_AGAIN_S: Final = 0.02
DISMISS_AFTER_S: Final = 0.1
"""How long a life that was withdrawn stays connected: the answer to its withdrawal leaves first."""
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
        refused: called with the reason, for an operator, once this directory is found to be an older copy; `is_final`
            unless the life that proves it may still be withdrawn.
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
        refused: Callable[[str, bool], None],
    ) -> None:
        entries = journal.load()
        self._node_id = directory[0]
        self._kept = [entry.incarnation for entry in entries if entry.own]
        self.own = OwnLives.of(directory, incarnation, [life_of(entry) for entry in entries if entry.own])
        self.own.elsewhere |= {entry.incarnation: bool(entry.withdrawn) for entry in entries if entry.elsewhere}
        self._known = KnownLives(entry for entry in entries if not (entry.own or entry.elsewhere))
        self._durable: dict[Directory, Starts] = {of: self._known.starts(of) for of in self._known}
        """The lives of each directory that are in the journal."""
        self._news: dict[Directory, None] = {}
        """Directories of which something was learned since the last message to the other nodes."""
        self._behind: set[str] = set()
        """Linked nodes that did not answer a message: they are sent everything that is known."""
        self._shown: set[str] = set()
        """Nodes that this life was shown to, without those that refused it: they may have noted it."""
        self._met: set[str] = set()
        """Nodes that have noted this life for certain, also if they refuse it by now."""
        self._why_refused = ""
        self._may_withdraw = False
        self._elsewhere_kept = asyncio.Event()
        """Whether the newest start of a copy of this directory that was noted is durable."""
        self._elsewhere_kept.set()
        self._doubted_by = ""
        """The node that named the life by which this one is in doubt."""
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
        self._failure: BaseException | None = None
        self._failing = asyncio.Event()
        self._journal: GroupCommit[pb.KnownLife] = GroupCommit(
            journal.append,
            mark=journal.mark,
            offload=offload,
            key=LIVES_WORKER,
            failed=self._journal_failed,
            full=self._full,
        )

    # --- this node's lives -----------------------------------------------------------------------------

    async def begin(self, *, may_withdraw: bool) -> None:
        """Make the life that runs durable; before this node speaks to any other.

        `may_withdraw`: whether it takes no part before `take_part`. A node that is still to be admitted binds others.

        Raises:
            StorageFailedError: the journal of lives cannot be written.
        """
        self._may_withdraw = may_withdraw
        too_many = sorted(self._kept)[:-OWN_LIVES_MAX]
        dropped = [self._own_entry(NodeLife(incarnation, 0), dropped=True) for incarnation in too_many]
        appending = asyncio.ensure_future(self._append([self._own_entry(self.own.now), *dropped]))
        failing = asyncio.ensure_future(self._failing.wait())
        try:
            await asyncio.wait((appending, failing), return_when=asyncio.FIRST_COMPLETED)
        finally:
            appending.cancel()
            failing.cancel()
        if self._failure is not None:
            raise self._failure
        self._begun.set()

    async def begun(self) -> None:
        """Wait until the life that runs is durable."""
        await self._begun.wait()

    @property
    def doubt(self) -> str:
        """Why this node must not take part yet, for an operator; empty when nothing known keeps it from that."""
        if not self.own.doubted_by:
            return ""
        return _why_old(self.own, self._doubted_by, NodeLife(self.own.doubted_by, 0), in_use=False)

    def refuse_in_doubt(self) -> None:
        """End this node: the life by which it is in doubt was not withdrawn in time. Later starts wait again."""
        start = boot_counter(self.own.doubted_by)
        self._refuse(
            f"{self.doubt}. If start {start} was that of a copy, stop it and start this one again", is_final=False
        )

    def take_part(self) -> None:
        """Note that this life takes part from now on, so that it is never withdrawn.

        Raises:
            OldLifeError: it must not take part.
        """
        if self.is_refused or self.own.doubted_by:
            raise OldLifeError(pb.FORBIDDEN, self.doubt or "the data directory is an older copy")
        self._may_withdraw = False

    async def withdraw(self, neighbours: LinkedNodes) -> None:
        """Have the nodes that may have noted this life drop it, unless it took part; this node ends then.

        Open links carry the withdrawal, otherwise a handshake does (see `offer`). Returns when those nodes have dropped
        the life durably, or after `WITHDRAW_S`.
        """
        if not self._may_withdraw:
            return
        assert self.is_refused, "a life that is withdrawn must never take part"
        entry = self._entry(self.own.directory)
        entry.withdrawn.append(self.own.now.incarnation)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(WITHDRAW_S):
                while self._shown:
                    asked = sorted(self._shown & neighbours.linked)
                    ask = partial(neighbours.ask_lives, lives=pb.Lives(entries=[entry]), timeout_s=WITHDRAW_S)
                    replies = await asyncio.gather(*map(ask, asked))
                    self._shown -= {node_id for node_id, reply in zip(asked, replies, strict=True) if reply is not None}
                    if self._shown:
                        await asyncio.sleep(WITHDRAW_AGAIN_S)
        if self._shown:
            log.warning(
                "start %d of this node ended before it took part, and that is not noted by: %s; they refuse the "
                "directory of which this one is a copy",
                boot_counter(self.own.now.incarnation),
                ", ".join(sorted(self._shown)),
            )
        self._may_withdraw = False

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
                self._news[self.own.directory] = None
            await self._send_news(neighbours)

    async def exchange(self, neighbours: LinkedNodes, node_id: str) -> bool:
        """Send all that is known to a node that was just linked, and take later lives; False without an answer."""
        lives = [self._entry(of) for of in (self.own.directory, *self._known)]
        self._behind.discard(node_id)
        return await self._send(neighbours, node_id, lives)

    async def close(self) -> None:
        """Keep what was learned last, write no more, and wait for what is on its way to the disk."""
        with contextlib.suppress(TimeoutError):  # the disk is full, say: it is learned again from those that know it
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self._keep_news()
                await self._elsewhere_kept.wait()
        await self._journal.close()

    # --- handshakes ------------------------------------------------------------------------------------

    def offer(self, peer_id: str) -> pb.PeerLife:
        """Return what this node says in a handshake with `peer_id`: that it withdraws its life, once it is refused.

        Raises:
            OldLifeError: this node ends, and `peer_id` has nothing to drop.
        """
        own = self.own
        if self.is_refused and not (self._may_withdraw and peer_id in self._shown):
            raise OldLifeError(pb.FORBIDDEN, self._why_refused)
        self._shown.add(peer_id)
        return pb.PeerLife(
            directory_id=own.directory[1],
            past=[pb.Life(incarnation=incarnation, tick=tick) for incarnation, tick in sorted(own.past.items())],
            forgotten_below=own.forgotten_below,
            tick=own.now.tick,
            known=self._known.of_node(peer_id),
            withdrawn=[*own.withdrawn, own.now.incarnation] if self.is_refused else own.withdrawn,
        )

    def refutation(self, peer_id: str, incarnation: int, said: pb.PeerLife) -> pb.KnownLife | None:
        """Return the known life that proves the other node's directory to be an older copy; None when nothing does.

        Withdrawals of which that node has heard are taken first.
        """
        if self.has_fault(peer_id, incarnation, said):
            return None
        directory = (peer_id, said.directory_id)
        if said.withdrawn and directory in self._known:
            self._learn(directory, withdrawn=said.withdrawn)
        known = self._known.refutation(directory, claim_of(incarnation, said))
        return None if known is None else known_life(directory, known)

    def predecessor(self, peer_id: str, incarnation: int, said: pb.PeerLife) -> int:
        """Return the incarnation of the earlier life of a directory that is known here; 0 without one."""
        known = self._known.get((peer_id, said.directory_id))
        return known.incarnation if known is not None and known.incarnation != incarnation else 0

    async def is_withdrawn(self, peer_id: str, incarnation: int, said: pb.PeerLife) -> bool:
        """Return whether a node that has proven itself withdraws its life; that is durable here then."""
        if incarnation not in said.withdrawn or self.has_fault(peer_id, incarnation, said):
            return False
        directory = (peer_id, said.directory_id)
        self._learn(directory, withdrawn=said.withdrawn)
        await self._keep(directory)
        return True

    def withdrawal_noted(self, by: str) -> OldLifeError:
        """Take the answer of a node that has dropped this life; return the error by which the handshake ends."""
        self._shown.discard(by)
        return OldLifeError(pb.FORBIDDEN, self._why_refused)

    @staticmethod
    def has_fault(peer_id: str, incarnation: int, said: pb.PeerLife) -> str:
        """Return why the life that a node reports of itself is invalid; empty if it is valid."""
        known = known_life((peer_id, said.directory_id), NodeLife(incarnation, said.tick))
        known.withdrawn.extend(said.withdrawn)
        return _fault_of(known)

    async def meet(self, peer_id: str, incarnation: int, said: pb.PeerLife) -> None:
        """Compare lives with a node that has proven itself; return when its life is noted durably here.

        A node of a build without lives sends no `PeerLife` and is not compared.

        Raises:
            OldLifeError: that node knows a later life of this node's directory.
            ProtocolError: FORBIDDEN, its directory is an older copy, or its life was withdrawn; EPOCH_CHANGING, it
                knows a life of this node's directory that may be withdrawn; INVALID_REQUEST, it sent no life.
        """
        self._take_own_withdrawals(said.known)
        for known in said.known:
            if self._refutes(known):
                raise self.refuted(peer_id, known, in_use=False)
        if not said.directory_id:
            return
        if fault := self.has_fault(peer_id, incarnation, said):
            raise ProtocolError(pb.INVALID_REQUEST, f"the node {peer_id!r} sent no life of a node: {fault}")
        if self.refutation(peer_id, incarnation, said) is not None:
            raise ProtocolError(
                pb.FORBIDDEN, f"the data directory of the node {peer_id!r} is an older copy; that node must not run"
            )
        directory = (peer_id, said.directory_id)
        self._learn(directory, NodeLife(incarnation, said.tick), withdrawn=said.withdrawn)
        if self._known.is_withdrawn(directory, incarnation):
            raise ProtocolError(
                pb.FORBIDDEN,
                f"start {boot_counter(incarnation)} of the node {peer_id!r} was withdrawn: that process must end",
            )
        await self._keep(directory)
        self._met.add(peer_id)

    def refuted(self, by: str, known: pb.KnownLife, *, in_use: bool) -> ProtocolError:
        """Take the proof of a node that this directory is an older copy; return the error to raise.

        It is an OldLifeError, and this node ends, if the life that proves it took part or runs, or if this node has
        taken part itself. Otherwise this node is in doubt until that life is withdrawn. A life of another directory, or
        one that this directory contains, proves nothing: then this node goes on.
        """
        is_ours = directory_of(known) == self.own.directory and not _fault_of(known)
        if by not in self._met:
            self._shown.discard(by)
        if is_ours and not in_use and self.own.is_withdrawn(life_of(known)):
            return ProtocolError(
                pb.EPOCH_CHANGING,
                f"the node {by!r} has not heard yet that start {boot_counter(known.incarnation)} of this node's "
                "directory was withdrawn",
            )
        if not is_ours or not (in_use or self._refutes(known)):
            return ProtocolError(
                pb.FORBIDDEN,
                f"the node {by!r} takes this data directory for an older copy, and the life that it names does not "
                f"prove that: start {boot_counter(known.incarnation)} of the node {known.node_id!r}, tick {known.tick}",
            )
        is_final = in_use or known.tick > 0
        if not is_final:
            self._doubted_by = by
            self._note_elsewhere(known.incarnation, is_withdrawn=False)
            if self._may_withdraw and not self.is_refused:
                return ProtocolError(pb.EPOCH_CHANGING, self.doubt)
        why = _why_old(self.own, by, life_of(known), in_use=in_use)
        self._refuse(why, is_final=is_final)
        return OldLifeError(pb.FORBIDDEN, why)

    def newest(self, directory: Directory) -> NodeLife | None:
        """Return the newest life that is known of another directory."""
        return self._known.get(directory)

    def starts(self, directory: Directory) -> Starts:
        """Return the starts that are known of another directory, and those of them that were withdrawn."""
        return self._known.starts(directory)

    def is_registered(self, node_id: str, incarnation: int) -> bool:
        """Return whether a life may gossip: it was noted here, or nothing is known of that node."""
        if node_id == self._node_id:
            return incarnation == self.own.now.incarnation
        known = self._known.incarnations(node_id)
        return not known or incarnation in known

    # --- what other nodes report -----------------------------------------------------------------------

    def learn(self, sender: str, entries: Collection[pb.KnownLife]) -> pb.LivesReply:
        """Take lives that another node reports; return those of which a later one is known here."""
        reply = pb.LivesReply()
        self._take_own_withdrawals(entries)
        for entry in entries:
            if self._refutes(entry):
                self.refuted(sender, entry, in_use=False)
                continue
            directory = directory_of(entry)
            if directory == self.own.directory:
                if self.own.is_withdrawn(life_of(entry)):
                    reply.entries.append(self._entry(directory))
                continue
            if _fault_of(entry):
                continue
            self._learn(directory, *lives_of(entry), withdrawn=entry.withdrawn)
            if self._known.adds_to(entry):
                reply.entries.append(self._entry(directory))
        return reply

    async def keep_withdrawals(self, entries: Collection[pb.KnownLife]) -> None:
        """Return when the withdrawals are durable here that another node has reported."""
        for entry in entries:
            if entry.withdrawn and directory_of(entry) in self._known:
                await self._keep(directory_of(entry))

    def forget(self, node_ids: Collection[str]) -> None:
        """Drop what is known of nodes that were removed from the cluster: their ids are never used again."""
        self._drop(self._known.forget(node_ids))

    # --- inside ----------------------------------------------------------------------------------------

    def _refutes(self, known: pb.KnownLife) -> bool:
        if directory_of(known) != self.own.directory or _fault_of(known):
            return False
        return self.own.is_older_than(life_of(known))

    def _refuse(self, why: str, *, is_final: bool) -> None:
        if not self.is_refused:
            self.is_refused, self._why_refused = True, why
            self._refused(why, is_final)

    def _take_own_withdrawals(self, entries: Iterable[pb.KnownLife]) -> None:
        """Learn which starts of copies of this directory were withdrawn; before lives of it are compared."""
        for entry in entries:
            if directory_of(entry) == self.own.directory and not _fault_of(entry):
                for incarnation in entry.withdrawn:
                    self._note_elsewhere(incarnation, is_withdrawn=True)

    def _note_elsewhere(self, incarnation: int, *, is_withdrawn: bool) -> None:
        """Note a start that this directory does not contain."""
        evicted = self.own.note_elsewhere(incarnation, is_withdrawn=is_withdrawn)
        if evicted is None:
            return
        self._news[self.own.directory] = None
        dropped = [self._elsewhere_entry(one, is_withdrawn=True, dropped=True) for one in evicted]
        self._elsewhere_kept = written = asyncio.Event()
        self._journal.submit([self._elsewhere_entry(incarnation, is_withdrawn=is_withdrawn), *dropped], written.set)

    def _elsewhere_entry(self, incarnation: int, *, is_withdrawn: bool, dropped: bool = False) -> pb.KnownLife:
        entry = known_life(self.own.directory, NodeLife(incarnation, 0))
        entry.elsewhere, entry.dropped = True, dropped
        entry.withdrawn.extend([incarnation] if is_withdrawn else [])
        return entry

    def _entry(self, directory: Directory) -> pb.KnownLife:
        """Return what is known of a directory, as other nodes are sent it."""
        if directory != self.own.directory:
            return self._known.entry(directory)
        entry = known_life(directory, self.own.now)
        entry.withdrawn.extend(self.own.withdrawn)
        return entry

    def _drop(self, directories: Collection[Directory]) -> None:
        """Remove lives from the journal that are not known any more."""
        for directory in directories:
            self._durable.pop(directory, None)
            self._news.pop(directory, None)
        if directories:
            self._journal.submit([_dropped(of) for of in directories], lambda: None)

    def _learn(self, directory: Directory, *lives: NodeLife, withdrawn: Iterable[int] = ()) -> None:
        before = self._known.get(directory)
        if not self._known.learn(directory, *lives, withdrawn=withdrawn):
            return
        self._news[directory] = None
        self._drop(self._known.take_evicted())
        now = self._known.get(directory)
        if before is None or (now is not None and now.incarnation == before.incarnation):
            return
        if now is not None and now.incarnation > before.incarnation:
            self.superseded(directory[0])
        else:
            asyncio.get_running_loop().call_later(DISMISS_AFTER_S, lambda: self.superseded(directory[0]))

    async def _keep(self, directory: Directory) -> None:
        """Return when all lives and withdrawals are durable that are known of a directory."""
        starts = self._known.starts(directory)
        if directory in self._known and self._durable.get(directory) != starts:
            await self._append([self._known.entry(directory)])
            self._durable[directory] = starts

    async def _send_news(self, neighbours: LinkedNodes) -> None:
        """Keep what was learned durably, with one sync, and send it on; the next round sends what is learned then.

        A linked node that has not answered an earlier message is sent everything, since its link may last.
        """
        news = await self._keep_news()
        lives = [self._entry(of) for of in news if of == self.own.directory or of in self._known]
        linked = neighbours.linked
        self._behind &= linked
        behind = sorted(self._behind)
        await asyncio.gather(
            *(self.exchange(neighbours, node_id) for node_id in behind),
            *(self._send(neighbours, node_id, lives) for node_id in sorted(linked.difference(behind))),
        )

    async def _keep_news(self) -> list[Directory]:
        """Write what was learned since the last call to the journal; return the directories, perhaps with the own."""
        news, self._news = list(self._news), {}
        others = {of: self._known.starts(of) for of in news if of in self._known and self._is_kept(of)}
        if others:
            await self._append([self._known.entry(of) for of in others])
            self._durable |= others
        return news

    def _is_kept(self, directory: Directory) -> bool:
        """Return whether news is written to the journal: each start is, and ticks while the disk is not full."""
        return self._has_room or self._durable.get(directory) != self._known.starts(directory)

    async def _send(self, neighbours: LinkedNodes, node_id: str, lives: Sequence[pb.KnownLife]) -> bool:
        for first in range(0, len(lives), LIVES_PER_MESSAGE_MAX):
            message = pb.Lives(entries=lives[first : first + LIVES_PER_MESSAGE_MAX])
            reply = await neighbours.ask_lives(node_id, message, timeout_s=EXCHANGE_TIMEOUT_S)
            if reply is None:
                self._behind.add(node_id)
                return False
            self.learn(node_id, reply.entries[:LIVES_PER_MESSAGE_MAX])
        return True

    async def _append(self, entries: Sequence[pb.KnownLife]) -> None:
        written = asyncio.Event()
        self._journal.submit(entries, written.set)
        await written.wait()

    def _own_entry(self, life: NodeLife, *, dropped: bool = False) -> pb.KnownLife:
        entry = known_life(self.own.directory, life)
        entry.own, entry.dropped = True, dropped
        return entry

    def _journal_failed(self, error: BaseException) -> None:
        self._failure = error
        self._failing.set()
        self._failed(error)

    def _full(self, error: DiskFullError) -> None:
        log.warning("the lives of nodes cannot be noted, so no node is linked: %s", error)


def _fault_of(known: pb.KnownLife) -> str:
    """Return why an entry that another node sent cannot be a life of a node; empty when it can."""
    if len(known.directory_id) != DIRECTORY_ID_BYTES:
        return f"the id of a data directory has {DIRECTORY_ID_BYTES} bytes, got {len(known.directory_id)}"
    if not 1 <= len(known.node_id.encode()) <= NODE_ID_BYTES_MAX:
        return f"a node id has 1 to {NODE_ID_BYTES_MAX} bytes, got {len(known.node_id.encode())}"
    if len(known.withdrawn) > ELSEWHERE_MAX + 1:
        return f"a directory has {ELSEWHERE_MAX + 1} withdrawn lives at most, got {len(known.withdrawn)}"
    incarnations = (known.incarnation, *known.withdrawn)
    return "" if all(incarnations) else "an incarnation is at least 1, got 0"


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
    seen_by = f"the node {by!r}" if by else "another node"
    if in_use:
        proof = f"start {counter} of that node runs now in another process, as the node {by!r} has verified"
    elif known.incarnation in contained:
        proof = (
            f"in start {counter} that node went on writing after this copy was made (tick {known.tick}; the directory "
            f"has {contained[known.incarnation]}), as the node {by!r} has noted"
        )
    else:
        proof = (
            f"{seen_by} has noted start {counter} of that node, which this directory does not contain (it is "
            f"starting for the {own_counter}. time)"
        )
    return (
        f"the data directory is an older copy of the node {node_id!r}: {proof}. It may lack acknowledged records, so "
        "it takes no part in the cluster. Use the newest directory of that node; if that is lost, start with --replace "
        "in an empty directory. `tidelog log` reads this one offline"
    )
