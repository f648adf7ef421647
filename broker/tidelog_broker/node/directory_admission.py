"""Admission of a new data directory to the cluster, before its node votes, stores or gossips anything.

A founder asks the other founders to store the id of its directory durably, until enough of them have
(`core.membership.admission`). This does not need `__meta`, which the founders create afterwards. Any other node is
admitted by a committed record of `__meta` with its id and its directory, written by the owner, which knows all commits:
a lagging node may not know an earlier directory of the same id. Once the record exists any node may report it, since
the owner may have failed before it answered, and this node may be needed for a new owner of `__meta`.

In both cases the answers of all reachable nodes are examined, because any of them may know a conflict.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tidelog_broker.base.bootstrap import Bootstrap, roles_named
from tidelog_broker.broker import Broker
from tidelog_broker.core.cluster_secrets import ClusterSecrets
from tidelog_broker.core.membership.admission import Binders
from tidelog_broker.core.placement.registry import ENGINES_MAX, identity_fault, roles_to
from tidelog_broker.core.topics import META_TOPIC_ID
from tidelog_broker.node.seeds import Seed
from tidelog_broker.storage.node.meta_snapshot import load_meta_snapshot
from tidelog_broker.wire.links import Links
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError
from tidelog_proto.version import NODE_SOFTWARE

log = logging.getLogger(__name__)

ASK_TIMEOUT_S: Final = 2.0
ASK_AGAIN_S: Final = 0.1
PATIENCE_S: Final = 1.0
"""How long a node with enough answers waits for the missing ones, and how long any node waits before it logs which
answers are missing."""
REGISTER_TIMEOUT_S: Final = 20.0
"""Maximum time of a registration request, in which the other node finds the owner of `__meta`, and the owner writes."""
KEEP_BINDING_S: Final = 5.0
_NAMED_MAX: Final = 9


@dataclass(frozen=True, slots=True)
class Founding:
    """How a node joins its cluster: as a founder by the bootstrap file, or through seeds that have answered."""

    secrets: ClusterSecrets
    bootstrap: Bootstrap | None = None
    seeds: tuple[Seed, ...] = ()

    def founders(self, node_id: str) -> frozenset[str]:
        """Return the founders if this node is one of them; otherwise an empty set."""
        named = frozenset(node.node_id for node in self.bootstrap.nodes) if self.bootstrap is not None else frozenset()
        return named if node_id in named else frozenset()


class IdentityError(Exception):
    """Raised when the cluster does not admit this node; the message contains the reason and the remedy."""


def own_record(broker: Broker, *, gossip_port: int) -> pb.NodeRecord:
    """Return this node's record for `__meta`."""
    settings = broker.settings
    return pb.NodeRecord(
        node_id=broker.node_id,
        host=settings.advertised_host,
        port=broker.advertised_port,
        gossip_host=settings.advertised_host,
        gossip_port=gossip_port,
        zone=settings.zone,
        weight=settings.weight,
        roles=roles_to(roles_named(settings.roles)),
        incarnation=broker.incarnation,
        directory_id=broker.dir.directory_id,
        engines=broker.engines.names[:ENGINES_MAX],
        features=sorted(broker.features.own),
        software=NODE_SOFTWARE,
    )


class DirectoryAdmission:
    """Waits until the cluster has durably assigned a node's data directory to the node's id.

    Args:
        founding: how the node joins its cluster.
        links: the connections to the other nodes.
        gossip_port: the node's gossip port (UDP); 0 if not known yet.
        look: called when more nodes have become known.
    """

    def __init__(
        self, broker: Broker, founding: Founding, links: Links, *, gossip_port: int, look: Callable[[], None]
    ) -> None:
        self._broker = broker
        self._founders = founding.founders(broker.node_id)
        self._links = links
        self._gossip_port = gossip_port
        self._look = look
        self._answered_nodes: set[str] = set()
        self._is_registered = False
        """Whether another node knows the committed record of this node with this directory."""
        self._logged_reason = ""

    @property
    def _is_new(self) -> bool:
        return not self._broker.dir.admitted

    async def admit(self) -> None:
        """Wait until the cluster has durably assigned this directory to this node's id, and record it in the directory.

        Raises:
            IdentityError: the id belongs to another directory; or the nodes that could admit this node reject it
                (another cluster, another secret, an id in use); or this build lacks a feature in use.
        """
        broker = self._broker
        if broker.dir.admitted:
            if not self._founders:
                await self._fetch_meta_record()
            return
        if self._founders:
            await self._wait_until_bound()
        else:
            await self._wait_until_registered()
        await asyncio.to_thread(broker.dir.mark_admitted)
        log.info("node %r is admitted to cluster %s", broker.node_id, broker.cluster_id.hex())

    async def check_features(self) -> None:
        """Check that this node supports the features that reachable nodes report as used.

        The node may run an older build than at its last start.

        Raises:
            IdentityError: this node lacks a feature in use.
        """
        linked = sorted(self._broker.cluster.linked)
        for reply in await asyncio.gather(*(self._ask(peer, bind=False) for peer in linked)):
            fault = "" if reply is None else self._broker.features.fault_of_features(reply.features_in_use)
            if fault:
                raise IdentityError(fault)

    async def bind_remaining_founders(self) -> None:
        """Ask founders that were unreachable at this founder's admission to record its data directory, too.

        Each of the other founders can then detect that this founder has lost its disk.
        """
        if not self._founders:
            return
        binders = Binders(self._broker.node_id, self._broker.dir.directory_id, self._founders)
        asked: set[str] = set()
        while True:
            gone = {record.node_id for record in self._broker.nodes.records() if record.removed}
            unbound = set(binders.waited_for) - gone - asked
            if not unbound:
                return
            for peer in sorted(unbound & self._broker.cluster.linked):
                reply = await self._ask(peer, bind=True)
                fault = binders.answered(peer, reply.bound_directory_id) if reply is not None else ""
                if fault:
                    asked.add(peer)
                    log.info(
                        "founder %s has recorded another data directory for this node, one that was never admitted; "
                        "this node continues with its own, and nothing needs to be done",
                        peer,
                    )
            await asyncio.sleep(KEEP_BINDING_S)

    # --- founders --------------------------------------------------------------------------------------

    async def _wait_until_bound(self) -> None:
        binders = Binders(self._broker.node_id, self._broker.dir.directory_id, self._founders)
        patient_until_s = self._broker.loop.time() + PATIENCE_S
        while True:
            await self._ask_all(binders)
            patient = self._broker.loop.time() < patient_until_s
            if not binders.missing and not (patient and binders.waited_for):
                return
            if not patient:
                self._raise_if_rejected(binders.missing)
                self._log_missing_answers(binders)
            await asyncio.sleep(ASK_AGAIN_S)

    def _log_missing_answers(self, binders: Binders) -> None:
        waited_for = binders.waited_for
        named = [f"{name} ({self._links.problem(name) or 'no answer yet'})" for name in waited_for[:_NAMED_MAX]]
        if len(waited_for) > _NAMED_MAX:
            named.append(f"{len(waited_for) - _NAMED_MAX} others")
        self._say(
            f"founder {self._broker.node_id!r} waits for {binders.missing} of {len(waited_for)} other founders to "
            f"record its data directory: {', '.join(named)}. Start them. If they are permanently lost "
            "and the cluster runs without them, start this node with --replace in an empty directory",
            about=str(waited_for),
        )

    # --- joiners ---------------------------------------------------------------------------------------

    async def _wait_until_registered(self) -> None:
        patient_until_s = self._broker.loop.time() + PATIENCE_S
        while True:
            await self._ask_all(None)
            problem = "" if self._is_registered else await self._register()
            if not problem:
                return
            if self._broker.loop.time() >= patient_until_s:
                self._raise_if_rejected(1)
                self._say(f"node {self._broker.node_id!r} waits to be registered in the cluster: {problem}")
            await asyncio.sleep(ASK_AGAIN_S)

    async def _fetch_meta_record(self) -> None:
        """Load the record of `__meta` for a node that failed between its admission and its first copy.

        That record is not part of any log; without it the node cannot store `__meta`, and gossip has no node to
        contact.

        Raises:
            IdentityError: another node knows a different directory of this node's id.
        """
        broker = self._broker
        snapshot = await broker.threads.io.call(0, load_meta_snapshot, broker.disk.fs, broker.dir.meta_state)
        if snapshot is not None and snapshot.HasField("meta"):
            return
        while broker.topics.get(META_TOPIC_ID) is None:
            self._answered_nodes.clear()
            await self._ask_all(None)
            self._say(
                f"node {broker.node_id!r} was admitted but has no cluster metadata yet; it waits for a node that has it"
            )
            await asyncio.sleep(ASK_AGAIN_S)

    async def _register(self) -> str:
        """Have the owner of `__meta` write this node's record; return the problem, or "" on success.

        Raises:
            IdentityError: the owner refuses.
        """
        broker = self._broker
        gossip_port = broker.settings.advertise_gossip_port or self._gossip_port or broker.port
        own = own_record(broker, gossip_port=gossip_port)  # The record is written again once the port is known.
        problem = "no seed and no node known to the seeds is reachable; start them, or set other seeds"
        for peer in sorted(broker.cluster.linked):
            announce = pb.NodeAnnounce(node=own, is_new=self._is_new)
            try:
                answer = broker.cluster.request(peer, pb.Envelope(node_announce=announce), timeout_s=REGISTER_TIMEOUT_S)
                reply = (await answer).envelope.node_announce_reply
            except ProtocolError as error:
                if error.code in {pb.FORBIDDEN, pb.INVALID_REQUEST}:
                    raise IdentityError(error.message) from error
                problem = f"node {peer!r} answers: {error.message}"
                continue
            self._learn(reply)
            if self._is_registered:
                return ""
            problem = f"node {peer!r} has not written the record of this node; upgrade it if it runs an older build"
        return problem

    # --- both ------------------------------------------------------------------------------------------

    async def _ask_all(self, binders: Binders | None) -> None:
        """Ask all reachable nodes that have not answered yet, and founders until they have recorded this directory."""
        to_bind = set(binders.waited_for) if binders is not None else set()
        receivers = sorted(self._broker.cluster.linked - (self._answered_nodes - to_bind))
        replies = await asyncio.gather(*(self._ask(peer, bind=peer in to_bind) for peer in receivers))
        for peer, reply in zip(receivers, replies, strict=True):
            if reply is None:
                continue
            self._answered_nodes.add(peer)
            self._learn(reply)
            fault = binders.answered(peer, reply.bound_directory_id) if binders is not None else ""
            if fault:
                raise IdentityError(fault)

    async def _ask(self, peer: str, *, bind: bool) -> pb.NodeAnnounceReply | None:
        """Ask a node for its known records and, with `bind`, to record this directory; return None if that fails."""
        broker = self._broker
        own = pb.NodeRecord(
            node_id=broker.node_id, incarnation=broker.incarnation, directory_id=broker.dir.directory_id
        )
        told, last = pb.NodeAnnounceReply(), ""
        try:
            while True:
                question = pb.NodeAnnounce(node=own, is_new=self._is_new, ask=True, bind=bind and not last, after=last)
                answer = await broker.cluster.request(
                    peer, pb.Envelope(node_announce=question), timeout_s=ASK_TIMEOUT_S
                )
                reply = answer.envelope.node_announce_reply
                told.MergeFrom(reply)
                if reply.last <= last:
                    return told
                last = reply.last
        except ProtocolError as error:
            log.debug("node %r does not report what it knows of this node: %s", peer, error.message)
            return None

    def _learn(self, reply: pb.NodeAnnounceReply) -> None:
        """Apply the records that another node has reported.

        Raises:
            IdentityError: this build lacks a feature in use, or this node's own record belongs to another directory.
        """
        broker = self._broker
        fault = broker.features.fault_of_features(reply.features_in_use)
        if fault:
            raise IdentityError(fault)
        if reply.HasField("meta"):
            broker.topics.apply(reply.meta)
        for record in reply.nodes:
            if record.node_id != broker.node_id:
                broker.nodes.apply(record)
                continue
            fault = identity_fault(
                broker.node_id, broker.incarnation, broker.dir.directory_id, is_new=self._is_new, known=record
            )
            if fault:
                raise IdentityError(fault)
            self._is_registered |= _stands(record, broker.dir.directory_id)
        self._look()

    def _raise_if_rejected(self, needed: int) -> None:
        own = (self._broker.settings.advertised_host, self._broker.advertised_port)
        refusals = {address: what for address, what in self._links.refusals().items() if address != own}
        if not self._answered_nodes and needed and len(refusals) >= needed:
            raise IdentityError("; ".join(sorted(set(refusals.values()))))

    def _say(self, what: str, *, about: str = "") -> None:
        """Log the reason for waiting, once as long as `about` (by default the reason itself) stays the same."""
        if self._logged_reason != (about or what):
            self._logged_reason = about or what
            log.info("%s", what)


def _stands(record: pb.NodeRecord, directory_id: bytes) -> bool:
    """Return whether a node's record is committed with this directory, which its later records never change."""
    return record.revision > 0 and not record.removed and record.directory_id == directory_id
