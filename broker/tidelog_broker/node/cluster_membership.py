"""A node's membership in its cluster: links, gossip, admission, and its own record in `__meta`.

The steps of a membership:

    open         other nodes can connect, and this node connects to them
    admit        the cluster has durably assigned this data directory to the node's id; then it may vote
    register     the reachable nodes have durably stored this start; then it takes part
    begin        gossip runs, and the node's own record in `__meta` is kept current
    close

A founder starts with the bootstrap file, any other node with seeds. Such a node asks a seed for the cluster's id before
it has a directory to store the id in (`find_cluster`). The id is verified later, when both sides prove that they have
the secret, because the proofs contain it. From then on every node, founder or not, asks the nodes that it is linked to
for the registered nodes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from typing import Final

from tidelog_broker.base.bootstrap import roles_named
from tidelog_broker.base.node_tls import FILES_LOOK_S
from tidelog_broker.base.secret_file import SecretFile
from tidelog_broker.broker import Broker
from tidelog_broker.cluster.gossip import Gossip
from tidelog_broker.core.membership import members
from tidelog_broker.core.membership.connectivity import ConnectivityMonitor
from tidelog_broker.core.membership.member_states import Change, Event, IdentityConflict
from tidelog_broker.core.peer_auth import Identity
from tidelog_broker.core.placement.registry import removal
from tidelog_broker.core.topics import META_KEY
from tidelog_broker.metadata.internal_topics import meta_record
from tidelog_broker.node.directory_admission import DirectoryAdmission, Founding, own_record
from tidelog_broker.server.forwarding import ask_owner
from tidelog_broker.storage.io.errors import OldCopyError
from tidelog_broker.wire.links import Address, Links
from tidelog_broker.wire.peers import Peers
from tidelog_broker.wire.sockets import check_udp_port
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError
from tidelog_proto.version import NODE_SOFTWARE

log = logging.getLogger(__name__)

ANNOUNCE_AGAIN_S: Final = 1.0
ANNOUNCE_TIMEOUT_S: Final = 10.0
LOOK_S: Final = 0.5
REGISTER_S_MIN: Final = 1.0
"""How long a start waits for nodes that refuse connections, since they may be starting too."""
REGISTER_S_MAX: Final = 4.0
"""How long a start waits for nodes that do not answer; longer than one connection attempt."""
REGISTER_LOOK_S: Final = 0.02
WITHDRAWAL_WAIT_S: Final = 10.0
"""How long a start waits for the withdrawal of another start of its directory.

The other start is refused or takes part within this time: it asks the nodes for `REGISTER_S_MAX`, or waits for this
start.
"""
WITHDRAWAL_WAIT_S_MIN: Final = 4.0
"""The same limit for the start with the lower incarnation: of two starts that wait for each other, one must end first.
"""


class ClusterMembership:
    """Runs one node's membership in its cluster, in the steps that the module lists.

    It implements `LinkEvents`, and so receives the events of links, and the callback for events of gossip.
    """

    def __init__(self, broker: Broker, founding: Founding) -> None:
        self._broker = broker
        self._founding = founding
        self._links: Links | None = None
        self._gossip: Gossip | None = None
        self._look_soon = False
        self._admission: DirectoryAdmission | None = None
        self._doubting: asyncio.Task[None] | None = None
        self._informed_nodes: set[str] = set()
        """The linked nodes that have been sent all known incarnations."""

    # --- lifecycle -------------------------------------------------------------------------------------

    def check_port(self) -> None:
        """Check that the gossip port is free, before anything is written.

        Raises:
            OSError: the port is in use, or the address does not belong to this machine.
        """
        check_udp_port(self._broker.settings.host, self._gossip_port)

    @property
    def _gossip_port(self) -> int:
        settings = self._broker.settings
        return settings.port if settings.gossip_port is None else settings.gossip_port  # 0 picks another free one

    async def open(self) -> None:
        """Accept connections of other nodes, and connect to them. The server must be listening already."""
        broker, founding = self._broker, self._founding
        identity = Identity(
            cluster_id=broker.cluster_id,
            node_id=broker.node_id,
            incarnation=broker.incarnation,
            secrets=founding.secrets,
            bootstrap_hash=founding.bootstrap.hash if founding.bootstrap is not None else b"",
            software=NODE_SOFTWARE,
            needs_certificate=broker.settings.peer_auth == "certificate",
        )
        broker.security.use_secrets(founding.secrets, broker.cluster_id)
        if founding.bootstrap is not None:
            for record in founding.bootstrap.records():
                broker.nodes.apply(record)
            broker.topics.apply(meta_record(founding.bootstrap.genesis()))
        broker.peers = Peers(
            identity,
            received=broker.replication.receive,
            budget=broker.bounds.peers_budget,
            verifiers=broker.threads.verifiers,
            metrics=broker.metrics,
        )
        await broker.incarnations.begin(may_withdraw=broker.dir.admitted)
        broker.incarnations.superseded = self._superseded
        self._links = Links(
            identity,
            events=self,
            queue_bytes=broker.settings.peer_queue_bytes,
            metrics=broker.metrics,
            tls=broker.tls,
            incarnations=broker.incarnations,
        )
        broker.cluster.use_links(self._links)
        self._admission = DirectoryAdmission(
            broker, founding, self._links, gossip_port=self._gossip_port, look=self._look
        )
        self._doubting = broker.tasks.spawn(self._watch_doubt(), "waiting for the withdrawal of a start elsewhere")
        self._look()

    async def admit(self) -> None:
        """Wait until the cluster has assigned this data directory to this node's id; see `directory_admission`.

        Raises:
            IdentityError: the cluster refuses this directory or this node.
        """
        assert self._admission is not None
        await self._admission.admit()

    async def register(self) -> None:
        """Wait until every reachable node has durably stored this start, after which this node may take part.

        This start waits for nodes that refuse connections up to `REGISTER_S_MIN`, since nodes are often started
        together, and for nodes that do not answer up to `REGISTER_S_MAX`. While another start of this directory is
        known that may have taken part, this start waits for the withdrawal of the other one. If the node is asked to
        stop meanwhile, this returns early.

        Raises:
            OldCopyError: a node has proven that this directory is an older copy.
            IdentityError: the cluster uses features that this build lacks.
        """
        broker, links = self._broker, self._links
        assert links is not None
        assert self._admission is not None
        assert self._doubting is not None
        began_s = broker.loop.time()
        are_features_checked = False
        while True:
            if broker.incarnations.is_refused:
                await broker.incarnations.withdraw(broker.cluster)
                raise OldCopyError(broker.lifecycle.stop_reason)
            if broker.lifecycle.stop_reason:  # For example, the node was removed: it stops like a running node.
                return
            if broker.incarnations.doubt:
                began_s = broker.loop.time()
                await asyncio.sleep(REGISTER_LOOK_S)
                continue
            others = {record.node_id for record in broker.nodes.live()} - {broker.node_id}
            missing = others - broker.cluster.linked
            unheard = (others & broker.cluster.linked) - self._informed_nodes
            waited_s = broker.loop.time() - began_s
            is_over = not (missing or unheard) or waited_s >= REGISTER_S_MAX
            if is_over or (not unheard and all(map(links.is_absent, missing)) and waited_s >= REGISTER_S_MIN):
                if are_features_checked:
                    break  # No await from the checks above to `take_part`, so that they still hold.
                await self._admission.check_features()
                are_features_checked = True
                continue
            await asyncio.sleep(REGISTER_LOOK_S)
        self._doubting.cancel()
        if missing:
            log.info(
                "these nodes have recorded this start of the node: %s; these were not reached: %s",
                *map(_comma_list, (others - missing, missing)),
            )

    async def _watch_doubt(self) -> None:
        """Refuse this node if another start of its directory may have taken part and is not withdrawn in time.

        Until that start is withdrawn, this node must not take part: it is in doubt. The check runs from the first link
        on, since a node in doubt may not reach `register`.
        """
        broker = self._broker
        while not broker.lifecycle.stop_reason:
            if broker.incarnations.doubt:
                await self._wait_for_withdrawal()
            await asyncio.sleep(REGISTER_LOOK_S)

    async def _wait_for_withdrawal(self) -> None:
        broker = self._broker
        is_second = broker.incarnations.own.doubted_by > broker.incarnation
        wait_s = WITHDRAWAL_WAIT_S_MIN if is_second else WITHDRAWAL_WAIT_S
        log.warning(
            "this node waits up to %g s before it takes part in the cluster, because another process may have used a "
            "newer copy of its data directory: %s",
            wait_s,
            broker.incarnations.doubt,
        )
        until_s = broker.loop.time() + wait_s
        while broker.incarnations.doubt and not broker.lifecycle.stop_reason:
            if broker.loop.time() >= until_s:
                broker.incarnations.refuse_in_doubt()
                return
            await asyncio.sleep(REGISTER_LOOK_S)

    async def begin(self) -> None:
        """Start gossip and the tasks of a member.

        Raises:
            OSError: the gossip port cannot be used.
            ValueError: this node's entry cannot be sent by gossip.
        """
        broker, settings = self._broker, self._broker.settings
        seeds = [
            members.Address(record.gossip_host, record.gossip_port)
            for record in broker.nodes.live()
            if record.node_id != broker.node_id
        ]
        me = members.Member(
            node_id=broker.node_id,
            incarnation=broker.incarnation,
            host=settings.advertised_host,
            port=broker.advertised_port,
            gossip=members.Address(settings.advertised_host, settings.advertise_gossip_port or 0),
            zone=settings.zone,
            roles=roles_named(settings.roles),
            weight=settings.weight,
        )
        self._gossip = Gossip(
            me,
            cluster_id=broker.cluster_id,
            secrets=self._founding.secrets,
            listen=members.Address(settings.host, self._gossip_port),
            seeds=seeds,
            on_event=self._on_gossip,
            is_registered=broker.incarnations.is_registered,
        )
        await self._gossip.start()
        broker.cluster.use_members(self._gossip.members)
        broker.tasks.spawn(self._keep_announced(), "announcing")
        broker.tasks.spawn(broker.incarnations.run(broker.cluster), "advancing and sending incarnations")
        broker.tasks.spawn(self._watch_connections(), "watching connections")
        broker.tasks.spawn(self._follow_secrets(), "following the cluster's secret")
        assert self._admission is not None
        broker.tasks.spawn(self._admission.bind_remaining_founders(), "binding this directory at other founders")
        self.look_soon()

    async def _follow_secrets(self) -> None:
        """Reload the cluster's secrets when their file changes; close connections authenticated by a removed secret."""
        broker, path = self._broker, self._broker.settings.secret_file
        if path is None:
            return
        file = SecretFile(path, self._founding.secrets)
        while True:
            await asyncio.sleep(FILES_LOOK_S)
            found = await broker.threads.secrets.call(0, file.look)
            if found is not None:
                self._founding.secrets.replace(found)
                assert broker.peers is not None
                cut_off = broker.peers.secrets_changed()
                log.info(
                    "reloaded the cluster's secrets (%d) from %s and closed %d connections", len(found), path, cut_off
                )

    async def close(self) -> None:
        """Leave gossip, then close the links. A node that was refused before it took part first withdraws its start."""
        if self._broker.incarnations.is_refused:
            await self._broker.incarnations.withdraw(self._broker.cluster)
        if self._gossip is not None:
            await self._gossip.stop(leave=self._broker.lifecycle.exit_code == 0)
        if self._links is not None:
            await self._links.close()

    # --- this node's record ----------------------------------------------------------------------------

    async def _keep_announced(self) -> None:
        """Write this node's record to `__meta`, and again whenever the stored record differs from this node."""
        broker = self._broker
        while not broker.lifecycle.stopping:
            own = self._own_record()
            try:
                if broker.nodes.announced(own) is not None:
                    await self._announce(own)
            except ProtocolError as error:
                if error.code == pb.FORBIDDEN:
                    broker.lifecycle.give_up(error.message)
                    return
                log.info("cannot write this node's record to __meta yet, retrying: %s", error.message)
            await asyncio.sleep(ANNOUNCE_AGAIN_S)

    async def _announce(self, own: pb.NodeRecord) -> None:
        broker = self._broker
        envelope = pb.Envelope(node_announce=pb.NodeAnnounce(node=own, is_new=False))

        async def local(envelope: pb.Envelope) -> pb.Envelope:
            await broker.controller.announce(envelope.node_announce)
            return envelope

        if broker.routes.get(META_KEY) is not None:
            await ask_owner(broker, META_KEY, envelope, local)
            return
        for peer in sorted(broker.cluster.linked):  # Any node forwards the request to the owner, which is unknown here.
            await broker.cluster.request(peer, envelope, timeout_s=ANNOUNCE_TIMEOUT_S)
            return

    def _own_record(self) -> pb.NodeRecord:
        assert self._gossip is not None
        return own_record(self._broker, gossip_port=self._gossip.address.port)

    async def _watch_connections(self) -> None:
        """Determine regularly which nodes are alive according to gossip but lack a connection to or from this node."""
        broker, connectivity = self._broker, ConnectivityMonitor()
        while True:
            assert broker.peers is not None
            assert self._gossip is not None
            # Addresses of removed nodes are excluded, because this node has no links to them.
            known = broker.cluster.addresses()
            living = {member.node_id for member in self._gossip.members.live() if member.node_id in known}
            now_ms = int(broker.loop.time() * 1000)
            cut_off = connectivity.unreachable(
                living, outgoing=broker.cluster.linked, incoming=broker.peers.connected, now_ms=now_ms
            )
            if broker.cluster.set_unreachable(cut_off):
                log.warning(
                    "nodes that are alive according to gossip but have no TCP connection to or from this node: %s%s",
                    ", ".join(sorted(cut_off)) or "none",
                    "; allow the nodes' TCP ports in firewalls" if cut_off else "",
                )
                self.look_soon()
            await asyncio.sleep(LOOK_S)

    # --- events ----------------------------------------------------------------------------------------

    def established(self, node_id: str, incarnation: int) -> None:
        """Exchange the known incarnations of nodes over a new link."""
        del incarnation
        self._broker.tasks.spawn(self._exchange_incarnations(node_id), f"exchanging incarnations with {node_id}")
        self.look_soon()

    async def _exchange_incarnations(self, node_id: str) -> None:
        if await self._broker.incarnations.exchange(self._broker.cluster, node_id):
            self._informed_nodes.add(node_id)

    def lost(self, node_id: str) -> None:
        """Forget a lost link; gossip determines whether its node is alive."""
        self._informed_nodes.discard(node_id)

    def _superseded(self, node_id: str) -> None:
        """Close connections with the earlier start of a node, which is refused when it reconnects."""
        broker = self._broker
        if broker.peers is not None:
            broker.peers.dismiss_unless(node_id, broker.incarnations.is_registered)
        if self._links is not None:
            self._links.reconnect(node_id)

    def refused(self, node_id: str) -> None:
        """Make gossip suspect a node whose machine refuses connections, because its process has ended."""
        if self._gossip is not None:
            self._gossip.suspect_now(node_id)

    def removed(self, why: str) -> None:
        """Stop this node, because the cluster has removed it.

        Before its admission, `DirectoryAdmission` ends the start of this node instead.
        """
        if self._broker.dir.admitted:
            self._broker.lifecycle.give_up(why)

    def _on_gossip(self, event: Event) -> None:
        if isinstance(event, IdentityConflict):
            self._broker.lifecycle.give_up(
                f"another process uses node id {event.node_id!r}; stop it, or give this node its own id and data "
                "directory"
            )
        elif event.change is not Change.SUSPECT:  # a suspected node still counts as alive
            self.look_soon()

    def look_soon(self) -> None:
        """Schedule an update of links and replicas after a change of nodes, once per iteration of the event loop."""
        if not self._look_soon:
            self._look_soon = True
            self._broker.loop.call_soon(self._look)

    def _look(self) -> None:
        self._look_soon = False
        if self._links is None or self._broker.lifecycle.stopping:
            return
        addresses: dict[str, Address] = {seed.node_id: seed.address for seed in self._founding.seeds}
        addresses |= self._broker.cluster.addresses()
        self._links.update_peers(addresses)
        self._disconnect_removed()
        self._broker.liveness_changed()

    def _disconnect_removed(self) -> None:
        """Close the connections of removed nodes; stop this node if it was removed."""
        broker = self._broker
        assert broker.peers is not None
        gone = {record.node_id for record in broker.nodes.records() if record.removed}
        for node_id in sorted(gone & broker.peers.connected):
            broker.peers.dismiss(node_id)
        if broker.node_id in gone:
            self.removed(removal(broker.node_id))
        broker.incarnations.forget(gone)


def _comma_list(node_ids: Collection[str]) -> str:
    return ", ".join(sorted(node_ids)) or "no other node"
