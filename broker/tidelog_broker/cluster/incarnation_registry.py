"""Registry of the incarnations of all nodes: stored durably, exchanged with other nodes, and advanced by ticks.

The rules are in `core.rollback_detection` and `core.known_incarnations`. Handshakes call `register` in both directions,
so two nodes exchange nothing else before each has durably stored the other's incarnation. `run` advances this node's
tick and sends changes to all linked nodes.

If another incarnation proves that a node's directory is an older copy, the node is *refused*. The refusal is permanent
if that other incarnation has joined the cluster or is running. If the other incarnation may still be withdrawn, the
node is *in doubt*: it does not join, even after restarts, until it learns of the withdrawal. An incarnation that stops
before it has joined is withdrawn.
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
from tidelog_broker.core.known_incarnations import (
    KnownIncarnations,
    Starts,
    directory_of,
    known_incarnation,
    newest_of,
    starts_of,
)
from tidelog_broker.core.placement.registry import DIRECTORY_ID_BYTES
from tidelog_broker.core.rollback_detection import (
    ELSEWHERE_MAX,
    INCARNATIONS_PER_MESSAGE_MAX,
    OWN_INCARNATIONS_MAX,
    Directory,
    IncarnationTick,
    OwnIncarnations,
    claim_of,
    why_older,
)
from tidelog_broker.storage.io.errors import DiskFullError, StorageFailedError
from tidelog_broker.storage.node.typed_journal import TypedJournal
from tidelog_broker.wire.handshake_incarnations import StaleDirectoryError
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError
from tidelog_proto.limits import NODE_ID_BYTES_MAX

log = logging.getLogger(__name__)

TICK_S: Final = 1.0
"""Interval at which the tick is advanced while the node writes. A copy of the directory that is older by less than this
interval may not be detected."""
EXCHANGE_TIMEOUT_S: Final = 2.0
WITHDRAW_S: Final = 2.0
"""How long a node that stops before it took part waits until its withdrawal is confirmed by other nodes."""
WITHDRAW_AGAIN_S: Final = 0.02
DISMISS_AFTER_S: Final = 0.1
"""How long a withdrawn incarnation stays connected, so that the answer to its withdrawal is sent first."""
CLOSE_TIMEOUT_S: Final = 1.0
"""How long a stopping node waits for the last incarnations to be written."""
INCARNATIONS_WORKER: Final = 2


class LinkedNodes(Protocol):
    """The links to other nodes, over which the registry exchanges incarnations."""

    @property
    def linked(self) -> frozenset[str]:
        """Ids of the nodes with an established link."""
        ...

    async def exchange_incarnations(
        self, node_id: str, incarnations: pb.Incarnations, *, timeout_s: float
    ) -> pb.IncarnationsReply | None:
        """Send known incarnations to a node; return the later ones that it knows, None if the request fails."""
        ...


class IncarnationRegistry:
    """Stores and exchanges one node's known incarnations; implements `HandshakeIncarnations` for handshakes.

    Args:
        writes: returns the number of durable writes that this node has done.
        failed: called with the error of a failed disk.
        refused: called with the reason, for an operator, once this directory is found to be an older copy; `is_final`
            unless the incarnation that proves it may still be withdrawn.
    """

    def __init__(
        self,
        directory: Directory,
        incarnation: int,
        journal: TypedJournal[pb.KnownIncarnation],
        *,
        offload: Offload,
        writes: Callable[[], int],
        failed: Callable[[BaseException], None],
        refused: Callable[[str, bool], None],
    ) -> None:
        entries = journal.load()
        self._node_id = directory[0]
        self._own_stored = [entry.incarnation for entry in entries if entry.own]
        self.own = OwnIncarnations.of(directory, incarnation, [newest_of(entry) for entry in entries if entry.own])
        self.own.elsewhere |= {entry.incarnation: bool(entry.withdrawn) for entry in entries if entry.elsewhere}
        self._known = KnownIncarnations(entry for entry in entries if not (entry.own or entry.elsewhere))
        self._durable: dict[Directory, Starts] = {of: self._known.starts(of) for of in self._known}
        """The incarnations of each directory that are in the journal."""
        self._unsent: dict[Directory, None] = {}
        """Directories whose incarnations have changed since the last message to the other nodes."""
        self._unanswered: set[str] = set()
        """Linked nodes that did not answer a message: they are sent all known incarnations."""
        self.offered_to: set[str] = set()
        """Nodes that this incarnation was sent to and that did not refuse it: they may have stored it."""
        self._stored_by: set[str] = set()
        """Nodes that have certainly stored this incarnation, even if they refuse it by now."""
        self._why_refused = ""
        self._may_withdraw = False
        self._elsewhere_kept = asyncio.Event()
        """Not set while a start, or a withdrawal, of a copy of this directory is being written to the journal."""
        self._elsewhere_kept.set()
        self._doubted_by = ""
        """The node that reported the incarnation because of which this node is in doubt; "" if it is not."""
        self._writes = writes
        self._writes_seen = 0
        self._refused = refused
        self.superseded: Callable[[str], None] = lambda _: None
        """Called with the id of a node after the newest valid incarnation of one of its directories has changed."""
        self.is_refused = False
        """Whether another node has proven that this directory is an older copy."""
        self._begun = asyncio.Event()
        self._has_reserve: Callable[[], Awaitable[bool]] = partial(
            offload.call, INCARNATIONS_WORKER, journal.has_reserve
        )
        self._has_room = True
        """Whether ticks are written; on a full disk the journal's reserve is kept for starts of nodes."""
        self._failed = failed
        self._failure: BaseException | None = None
        self._failing = asyncio.Event()
        self._journal: GroupCommit[pb.KnownIncarnation] = GroupCommit(
            journal.append,
            mark=journal.mark,
            offload=offload,
            key=INCARNATIONS_WORKER,
            failed=self._journal_failed,
            full=self._full,
        )

    # --- this node's incarnations ----------------------------------------------------------------------

    async def begin(self, *, may_withdraw: bool) -> None:
        """Make the current incarnation durable, before this node contacts any other.

        Args:
            may_withdraw: whether this incarnation takes part only after `take_part`, so that it may be withdrawn
                before that. False for a node that is not admitted yet, which takes part at once: a founder binds the
                other founders to their directories.

        Raises:
            StorageFailedError: the journal of incarnations cannot be written.
        """
        self._may_withdraw = may_withdraw
        too_many = sorted(self._own_stored)[:-OWN_INCARNATIONS_MAX]
        dropped = [self._own_entry(IncarnationTick(incarnation, 0), dropped=True) for incarnation in too_many]
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
        """Wait until the current incarnation is durable."""
        await self._begun.wait()

    @property
    def doubt(self) -> str:
        """Why this node must not take part yet, for an operator; empty if it may."""
        if not self.own.doubted_by:
            return ""
        return why_older(self.own, self._doubted_by, IncarnationTick(self.own.doubted_by, 0), in_use=False)

    def refuse_in_doubt(self) -> None:
        """Stop this node, because its doubt was not resolved by a withdrawal in time. Later starts wait again."""
        start = boot_counter(self.own.doubted_by)
        self._refuse(
            f"{self.doubt}. If start {start} was that of a copy, stop that process and start this node again",
            is_final=False,
        )

    def take_part(self) -> None:
        """Record that this incarnation takes part from now on, so that it is never withdrawn.

        Raises:
            StaleDirectoryError: the directory is, or may be, an older copy, so this incarnation must not take part.
        """
        if self.is_refused or self.own.doubted_by:
            fault = self.doubt or f"the data directory of node {self._node_id!r} is an older copy; see the node's log"
            raise StaleDirectoryError(pb.FORBIDDEN, fault)
        self._may_withdraw = False

    async def withdraw(self, neighbours: LinkedNodes) -> None:
        """Make the nodes that may have stored this incarnation drop it, unless it took part; this node stops then.

        Open links carry the withdrawal, otherwise a handshake does (see `offer`). Returns when those nodes have
        durably dropped it, or after `WITHDRAW_S`.
        """
        if not self._may_withdraw:
            return
        assert self.is_refused, "an incarnation that is withdrawn must never take part"
        entry = self._entry(self.own.directory)
        entry.withdrawn.append(self.own.now.incarnation)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(WITHDRAW_S):
                while self.offered_to:
                    receivers = sorted(self.offered_to & neighbours.linked)
                    ask = partial(
                        neighbours.exchange_incarnations,
                        incarnations=pb.Incarnations(entries=[entry]),
                        timeout_s=WITHDRAW_S,
                    )
                    replies = await asyncio.gather(*map(ask, receivers))
                    self.offered_to -= {
                        node_id for node_id, reply in zip(receivers, replies, strict=True) if reply is not None
                    }
                    if self.offered_to:
                        await asyncio.sleep(WITHDRAW_AGAIN_S)
        if self.offered_to:
            log.warning(
                "start %d of this data directory was withdrawn, because the cluster refused it; these nodes have not "
                "confirmed the withdrawal: %s. If this directory is a copy, they refuse the original directory until "
                "another node reports the withdrawal; if they still refuse it, start that node with --replace in an "
                "empty directory",
                boot_counter(self.own.now.incarnation),
                ", ".join(sorted(self.offered_to)),
            )
        self._may_withdraw = False

    async def run(self, neighbours: LinkedNodes) -> None:
        """Advance the tick while this node writes, and send changes to the linked nodes, until storage fails."""
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
                raised = IncarnationTick(self.own.now.incarnation, self.own.now.tick + 1)
                await self._append([self._own_entry(raised)])
                # Sent only once it is durable, so that no other node knows a later tick than this directory contains.
                self.own.now = raised
                self._unsent[self.own.directory] = None
            await self._send_changes(neighbours)

    async def exchange(self, neighbours: LinkedNodes, node_id: str) -> bool:
        """Exchange all known incarnations with a newly linked node; return False if that node does not answer."""
        entries = [self._entry(of) for of in (self.own.directory, *self._known)]
        self._unanswered.discard(node_id)
        return await self._send(neighbours, node_id, entries)

    async def close(self) -> None:
        """Store pending changes, accept no further ones, and wait for the writes in progress."""
        # The disk may be full, so a failure is ignored: other nodes report these incarnations again.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self._store_changes()
                await self._elsewhere_kept.wait()
        await self._journal.close()

    # --- handshakes ------------------------------------------------------------------------------------

    def offer(self, peer_id: str) -> pb.PeerIncarnations:
        """Return this node's part of a handshake with `peer_id`; that of a refused node withdraws its incarnation.

        Raises:
            StaleDirectoryError: this node is refused, and `peer_id` has nothing to drop.
        """
        own = self.own
        if self.is_refused and not (self._may_withdraw and peer_id in self.offered_to):
            raise StaleDirectoryError(pb.FORBIDDEN, self._why_refused)
        self.offered_to.add(peer_id)
        return pb.PeerIncarnations(
            directory_id=own.directory[1],
            past=[
                pb.IncarnationTick(incarnation=incarnation, tick=tick) for incarnation, tick in sorted(own.past.items())
            ],
            forgotten_below=own.forgotten_below,
            tick=own.now.tick,
            known=self._known.of_node(peer_id),
            withdrawn=[*own.withdrawn, own.now.incarnation] if self.is_refused else own.withdrawn,
        )

    def refutation(self, peer_id: str, incarnation: int, offered: pb.PeerIncarnations) -> pb.KnownIncarnation | None:
        """Return the known incarnation that proves the other node's directory to be an older copy; None without proof.

        Withdrawals that the other node reports are applied first. None also if that node's incarnation is invalid.
        """
        if self.has_fault(peer_id, incarnation, offered):
            return None
        directory = (peer_id, offered.directory_id)
        if offered.withdrawn and directory in self._known:
            self._learn(directory, withdrawn=offered.withdrawn)
        known = self._known.refutation(directory, claim_of(incarnation, offered))
        return None if known is None else known_incarnation(directory, known)

    def predecessor(self, peer_id: str, incarnation: int, offered: pb.PeerIncarnations) -> int:
        """Return the newest known incarnation of a node's directory; 0 if it is unknown or is `incarnation`."""
        known = self._known.get((peer_id, offered.directory_id))
        return known.incarnation if known is not None and known.incarnation != incarnation else 0

    async def is_withdrawn(self, peer_id: str, incarnation: int, offered: pb.PeerIncarnations) -> bool:
        """Return whether an authenticated node withdraws its incarnation, after storing the withdrawal durably."""
        if incarnation not in offered.withdrawn or self.has_fault(peer_id, incarnation, offered):
            return False
        directory = (peer_id, offered.directory_id)
        self._learn(directory, withdrawn=offered.withdrawn)
        await self._keep(directory)
        return True

    def withdrawal_noted(self, by: str) -> StaleDirectoryError:
        """Record that a node has dropped this node's incarnation; return the error that ends the handshake."""
        self.offered_to.discard(by)
        return StaleDirectoryError(pb.FORBIDDEN, self._why_refused)

    @staticmethod
    def has_fault(peer_id: str, incarnation: int, offered: pb.PeerIncarnations) -> str:
        """Return why the incarnation that a node reports of itself is invalid; empty if it is valid."""
        known = known_incarnation((peer_id, offered.directory_id), IncarnationTick(incarnation, offered.tick))
        known.withdrawn.extend(offered.withdrawn)
        return _fault_of(known)

    async def register(self, peer_id: str, incarnation: int, offered: pb.PeerIncarnations) -> None:
        """Compare incarnations with an authenticated peer; return when this node has stored the peer's durably.

        A peer of a build that does not exchange incarnations sends no `PeerIncarnations` and is not compared.

        Raises:
            StaleDirectoryError: the peer knows a later incarnation of this node's directory.
            ProtocolError: FORBIDDEN if the peer's directory is an older copy, or its incarnation was withdrawn;
                EPOCH_CHANGING if the peer knows a later incarnation of this node's directory that may be withdrawn, or
                has not learned of its withdrawal; INVALID_REQUEST if the peer's incarnation is invalid.
        """
        self._take_own_withdrawals(offered.known)
        for known in offered.known:
            if self._refutes(known):
                raise self.refuted(peer_id, known, in_use=False)
        if not offered.directory_id:
            return
        if fault := self.has_fault(peer_id, incarnation, offered):
            raise ProtocolError(pb.INVALID_REQUEST, f"node {peer_id!r} sent an invalid incarnation: {fault}")
        if self.refutation(peer_id, incarnation, offered) is not None:
            raise ProtocolError(
                pb.FORBIDDEN,
                f"node {peer_id!r} uses an older copy of its data directory than node {self._node_id!r} has recorded; "
                "stop it, and start it with its newest directory, or with --replace in an empty one",
            )
        directory = (peer_id, offered.directory_id)
        self._learn(directory, IncarnationTick(incarnation, offered.tick), withdrawn=offered.withdrawn)
        if self._known.is_withdrawn(directory, incarnation):
            raise ProtocolError(
                pb.FORBIDDEN,
                f"start {boot_counter(incarnation)} of node {peer_id!r} was withdrawn, because its data directory is "
                "an older copy; stop that process",
            )
        await self._keep(directory)
        self._stored_by.add(peer_id)

    def refuted(self, by: str, known: pb.KnownIncarnation, *, in_use: bool) -> ProtocolError:
        """Evaluate a node's proof that this directory is an older copy; return the error to raise.

        The error is a StaleDirectoryError, and this node stops, if the incarnation in the proof took part or is running
        (`in_use`), or if this node has taken part itself. Otherwise this node is in doubt until that incarnation is
        withdrawn. An incarnation that was withdrawn, is of another directory or is in this directory proves nothing.
        """
        is_ours = directory_of(known) == self.own.directory and not _fault_of(known)
        if by not in self._stored_by:
            self.offered_to.discard(by)
        if is_ours and not in_use and self.own.is_withdrawn(newest_of(known)):
            return ProtocolError(
                pb.EPOCH_CHANGING,
                f"node {by!r} has not learned yet that start {boot_counter(known.incarnation)} of this node's "
                "directory was withdrawn; retry",
            )
        if not is_ours or not (in_use or self._refutes(known)):
            return ProtocolError(
                pb.FORBIDDEN,
                f"node {by!r} rejects this data directory as an older copy, but its proof is not valid: "
                f"start {boot_counter(known.incarnation)} of node {known.node_id!r}, tick {known.tick}; "
                f"check whether node {by!r} belongs to this cluster and runs a supported release",
            )
        is_final = in_use or known.tick > 0
        if not is_final:
            self._doubted_by = by
            self._note_elsewhere(known.incarnation, is_withdrawn=False)
            if self._may_withdraw and not self.is_refused:
                return ProtocolError(pb.EPOCH_CHANGING, self.doubt)
        why = why_older(self.own, by, newest_of(known), in_use=in_use)
        self._refuse(why, is_final=is_final)
        return StaleDirectoryError(pb.FORBIDDEN, why)

    def newest(self, directory: Directory) -> IncarnationTick | None:
        """Return the newest known incarnation of another directory; None if it is unknown."""
        return self._known.get(directory)

    def starts(self, directory: Directory) -> Starts:
        """Return the known starts of another directory, and those of them that were withdrawn."""
        return self._known.starts(directory)

    def is_registered(self, node_id: str, incarnation: int) -> bool:
        """Return whether an incarnation may gossip: this node knows it, or knows no incarnation of that node."""
        if node_id == self._node_id:
            return incarnation == self.own.now.incarnation
        known = self._known.incarnations(node_id)
        return not known or incarnation in known

    # --- reports of other nodes ------------------------------------------------------------------------

    def learn(self, sender: str, entries: Collection[pb.KnownIncarnation]) -> pb.IncarnationsReply:
        """Apply incarnations that another node reports; return later ones that this node knows."""
        reply = pb.IncarnationsReply()
        self._take_own_withdrawals(entries)
        for entry in entries:
            if self._refutes(entry):
                self.refuted(sender, entry, in_use=False)
                continue
            directory = directory_of(entry)
            if directory == self.own.directory:
                if self.own.is_withdrawn(newest_of(entry)):
                    reply.entries.append(self._entry(directory))
                continue
            if _fault_of(entry):
                continue
            self._learn(directory, *starts_of(entry), withdrawn=entry.withdrawn)
            if self._known.adds_to(entry):
                reply.entries.append(self._entry(directory))
        return reply

    async def keep_withdrawals(self, entries: Collection[pb.KnownIncarnation]) -> None:
        """Wait until the withdrawals that another node has reported are durable on this node."""
        for entry in entries:
            if entry.withdrawn and directory_of(entry) in self._known:
                await self._keep(directory_of(entry))

    def forget(self, node_ids: Collection[str]) -> None:
        """Drop the incarnations of nodes that were removed from the cluster, whose ids are never reused."""
        self._drop(self._known.forget(node_ids))

    # --- internals -------------------------------------------------------------------------------------

    def _refutes(self, known: pb.KnownIncarnation) -> bool:
        if directory_of(known) != self.own.directory or _fault_of(known):
            return False
        return self.own.is_older_than(newest_of(known))

    def _refuse(self, why: str, *, is_final: bool) -> None:
        if not self.is_refused:
            self.is_refused, self._why_refused = True, why
            self._refused(why, is_final)

    def _take_own_withdrawals(self, entries: Iterable[pb.KnownIncarnation]) -> None:
        """Record the withdrawals of starts that copies of this directory made.

        Call it before incarnations are compared.
        """
        for entry in entries:
            if directory_of(entry) == self.own.directory and not _fault_of(entry):
                for incarnation in entry.withdrawn:
                    self._note_elsewhere(incarnation, is_withdrawn=True)

    def _note_elsewhere(self, incarnation: int, *, is_withdrawn: bool) -> None:
        """Record a start that other nodes know of this directory, or of a copy of it, and that it does not contain."""
        evicted = self.own.note_elsewhere(incarnation, is_withdrawn=is_withdrawn)
        if evicted is None:
            return
        self._unsent[self.own.directory] = None
        dropped = [self._elsewhere_entry(one, is_withdrawn=True, dropped=True) for one in evicted]
        self._elsewhere_kept = written = asyncio.Event()
        self._journal.submit([self._elsewhere_entry(incarnation, is_withdrawn=is_withdrawn), *dropped], written.set)

    def _elsewhere_entry(self, incarnation: int, *, is_withdrawn: bool, dropped: bool = False) -> pb.KnownIncarnation:
        entry = known_incarnation(self.own.directory, IncarnationTick(incarnation, 0))
        entry.elsewhere, entry.dropped = True, dropped
        entry.withdrawn.extend([incarnation] if is_withdrawn else [])
        return entry

    def _entry(self, directory: Directory) -> pb.KnownIncarnation:
        """Return the known incarnations of a directory as a message for other nodes."""
        if directory != self.own.directory:
            return self._known.entry(directory)
        entry = known_incarnation(directory, self.own.now)
        entry.withdrawn.extend(self.own.withdrawn)
        return entry

    def _drop(self, directories: Collection[Directory]) -> None:
        """Remove the entries of directories from the journal, after this node has dropped their incarnations."""
        for directory in directories:
            self._durable.pop(directory, None)
            self._unsent.pop(directory, None)
        if directories:
            self._journal.submit([_removal_entry(of) for of in directories], lambda: None)

    def _learn(self, directory: Directory, *starts: IncarnationTick, withdrawn: Iterable[int] = ()) -> None:
        before = self._known.get(directory)
        if not self._known.learn(directory, *starts, withdrawn=withdrawn):
            return
        self._unsent[directory] = None
        self._drop(self._known.take_evicted())
        now = self._known.get(directory)
        if before is None or (now is not None and now.incarnation == before.incarnation):
            return
        if now is not None and now.incarnation > before.incarnation:
            self.superseded(directory[0])
        else:
            asyncio.get_running_loop().call_later(DISMISS_AFTER_S, lambda: self.superseded(directory[0]))

    async def _keep(self, directory: Directory) -> None:
        """Make all known incarnations and withdrawals of a directory durable."""
        starts = self._known.starts(directory)
        if directory in self._known and self._durable.get(directory) != starts:
            await self._append([self._known.entry(directory)])
            self._durable[directory] = starts

    async def _send_changes(self, neighbours: LinkedNodes) -> None:
        """Make changes durable with one sync, and send them; later changes are part of the next round.

        A linked node that has not answered an earlier message is sent all known incarnations, because it may have
        missed changes although its link still exists.
        """
        news = await self._store_changes()
        entries = [self._entry(of) for of in news if of == self.own.directory or of in self._known]
        linked = neighbours.linked
        self._unanswered &= linked
        unanswered = sorted(self._unanswered)
        await asyncio.gather(
            *(self.exchange(neighbours, node_id) for node_id in unanswered),
            *(self._send(neighbours, node_id, entries) for node_id in sorted(linked.difference(unanswered))),
        )

    async def _store_changes(self) -> list[Directory]:
        """Write changes since the last call to the journal; return their directories, including this node's own."""
        news, self._unsent = list(self._unsent), {}
        others = {of: self._known.starts(of) for of in news if of in self._known and self._is_kept(of)}
        if others:
            await self._append([self._known.entry(of) for of in others])
            self._durable |= others
        return news

    def _is_kept(self, directory: Directory) -> bool:
        """Return whether a change is written to the journal: every start is, ticks only while the disk is not full."""
        return self._has_room or self._durable.get(directory) != self._known.starts(directory)

    async def _send(self, neighbours: LinkedNodes, node_id: str, entries: Sequence[pb.KnownIncarnation]) -> bool:
        for first in range(0, len(entries), INCARNATIONS_PER_MESSAGE_MAX):
            message = pb.Incarnations(entries=entries[first : first + INCARNATIONS_PER_MESSAGE_MAX])
            reply = await neighbours.exchange_incarnations(node_id, message, timeout_s=EXCHANGE_TIMEOUT_S)
            if reply is None:
                self._unanswered.add(node_id)
                return False
            self.learn(node_id, reply.entries[:INCARNATIONS_PER_MESSAGE_MAX])
        return True

    async def _append(self, entries: Sequence[pb.KnownIncarnation]) -> None:
        written = asyncio.Event()
        self._journal.submit(entries, written.set)
        await written.wait()

    def _own_entry(self, start: IncarnationTick, *, dropped: bool = False) -> pb.KnownIncarnation:
        entry = known_incarnation(self.own.directory, start)
        entry.own, entry.dropped = True, dropped
        return entry

    def _journal_failed(self, error: BaseException) -> None:
        self._failure = error
        self._failing.set()
        self._failed(error)

    def _full(self, error: DiskFullError) -> None:
        log.warning(
            "this node cannot store the incarnations of other nodes, so new connections between them and this node "
            "wait: %s",
            error,
        )


def _fault_of(known: pb.KnownIncarnation) -> str:
    """Return why an entry that another node has sent is invalid; empty if it is valid."""
    if len(known.directory_id) != DIRECTORY_ID_BYTES:
        return f"the id of a data directory must have {DIRECTORY_ID_BYTES} bytes, got {len(known.directory_id)}"
    if not 1 <= len(known.node_id.encode()) <= NODE_ID_BYTES_MAX:
        return f"a node id must have 1 to {NODE_ID_BYTES_MAX} bytes, got {len(known.node_id.encode())}"
    if len(known.withdrawn) > ELSEWHERE_MAX + 1:
        return f"a directory must have at most {ELSEWHERE_MAX + 1} withdrawn incarnations, got {len(known.withdrawn)}"
    incarnations = (known.incarnation, *known.withdrawn)
    return "" if all(incarnations) else "an incarnation must be at least 1, got 0"


def _removal_entry(directory: Directory) -> pb.KnownIncarnation:
    """Return the entry that removes another directory from the journal."""
    entry = known_incarnation(directory, IncarnationTick(1, 0))
    entry.dropped = True
    return entry
