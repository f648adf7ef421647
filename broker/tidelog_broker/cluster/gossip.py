"""Cluster membership over UDP: the socket, timer and authentication around `core.membership.failure_detection`.

Forged or replayed datagrams and those of other clusters are counted, logged at a limited rate, and not answered. Seeds
may be names or addresses; names are resolved in the background and repeatedly, because the address of a restarted seed
may have changed.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import random
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from tidelog_broker.core.cluster_secrets import ClusterSecrets
from tidelog_broker.core.membership.datagram_auth import DatagramAuth
from tidelog_broker.core.membership.failure_detection import Effects, Refusal, Swim
from tidelog_broker.core.membership.member_states import Change, Event, IdentityConflict
from tidelog_broker.core.membership.members import Address, Member, Members
from tidelog_broker.core.membership.swim_settings import SwimSettings
from tidelog_proto.wire.name_resolution import look_up

log = logging.getLogger(__name__)

_SEEDS_AGAIN_S: Final = 10.0
_SEED_ADDRESSES_MAX: Final = 4
"""Maximum number of addresses used per seed name; all are contacted, since the first may be unreachable."""
_LOG_AGAIN_S: Final = 10.0
_LOG_AGAIN_S_MAX: Final = 3600.0
_FORGED: Final = "not signed with this cluster's secret"


class _LogBackOff(NamedTuple):
    """Limits the log lines about datagrams dropped for one reason: the time of the next, and the interval before it."""

    at_s: float
    wait_s: float


class Gossip:
    """Runs the membership protocol of one node. Construct, `await start()`, `await stop()`.

    Everything runs on the event loop that calls `start`; the callback is called there and must neither block nor raise.

    Args:
        me: this node's entry. `me.gossip` is the address, or the name, at which other nodes reach this node's gossip.
            `start` replaces an empty host and a port of 0 by those of the bound socket, and resolves a name.
        cluster_id: 16 bytes.
        secrets: the cluster's secrets, at least 16 bytes each.
        listen: the address to bind; port 0 picks a free one.
        seeds: gossip addresses of some nodes, possibly including this one.
        on_event: called with every change, in order. An IdentityConflict is the last event: the node has to stop.
        is_registered: returns whether an incarnation of a node is registered; gossip of other incarnations is dropped.

    Raises:
        ValueError: a secret is too short.
    """

    def __init__(
        self,
        me: Member,
        *,
        cluster_id: bytes,
        secrets: ClusterSecrets,
        listen: Address,
        seeds: Sequence[Address] = (),
        on_event: Callable[[Event], None],
        settings: SwimSettings | None = None,
        is_registered: Callable[[str, int], bool] = lambda _node_id, _incarnation: True,
    ) -> None:
        self.forged = 0
        """Datagrams dropped because they were not signed with a secret of the cluster."""
        self.unsent = 0
        """Datagrams dropped because the socket's send buffer was full."""
        self._me = me
        self._cluster_id = cluster_id
        self._auth = DatagramAuth(secrets)
        self._listen = listen
        self._seeds = tuple(seeds)
        self._on_event = on_event
        self._settings = settings
        self._is_registered = is_registered
        self._swim: Swim | None = None
        self._receiver = _Receiver(self._received)
        self._transport: asyncio.DatagramTransport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._resolving: asyncio.Task[None] | None = None
        self._log_again: dict[str, _LogBackOff] = {}
        self._unlogged: dict[str, int] = {}

    # ------------------------------------------------------------------------------- start and stop

    async def start(self) -> None:
        """Bind the socket and begin to contact the seeds.

        Raises:
            OSError: the address cannot be bound, or this node's name cannot be resolved.
            ValueError: this node's entry cannot be sent, see `check_member`.
        """
        assert self._transport is None, "gossip must be started only once"
        self._loop = asyncio.get_running_loop()
        try:
            self._transport, _ = await self._loop.create_datagram_endpoint(
                lambda: self._receiver, local_addr=self._listen
            )
        except OSError as error:
            cause = error.__cause__ if isinstance(error.__cause__, OSError) else error  # uvloop chains the actual error
            host, port = self._listen
            why = f"cannot listen on {host}:{port} (UDP) for gossip: {cause.strerror}"
            raise OSError(cause.errno, why) from error
        try:
            bound = self._transport.get_extra_info("sockname")
            host, *_ = await self._resolve(self._me.gossip.host or bound[0])
            me = replace(self._me, gossip=Address(host, self._me.gossip.port or bound[1]))
            self._swim = Swim(
                me,
                cluster_id=self._cluster_id,
                chooser=random.SystemRandom(),
                now_ms=self._now_ms(),
                settings=self._settings,
                is_registered=self._is_registered,
            )
        except BaseException:
            self._transport.abort()
            raise
        self._resolving = self._loop.create_task(self._resolve_seeds(), name="gossip seeds")
        self._tick()

    async def stop(self, *, leave: bool = True) -> None:
        """Stop; with `leave`, announce that this node leaves first. May be called twice."""
        transport, self._transport = self._transport, None
        if transport is None:
            return
        assert self._resolving is not None
        if self._timer is not None:
            self._timer.cancel()
        self._resolving.cancel()
        await asyncio.wait([self._resolving])
        if leave:
            for to, payload in self._running.leave(self._now_ms()).outgoing:
                transport.sendto(self._auth.sign(payload), to)
        transport.close()  # the transport closes after sending its buffer
        dropped = [f"{count} {why.value}" for why, count in self.refusals.items()]
        if self.forged or dropped:
            log.info(
                "gossip datagrams dropped since the start of this node: %s",
                ", ".join([f"{self.forged} {_FORGED}", *dropped]),
            )

    @property
    def members(self) -> Members:
        """All known nodes by id, including this one. A live view."""
        return self._running.members

    @property
    def address(self) -> Address:
        """The address of this node's gossip for other nodes."""
        return self._running.me.gossip

    def suspect_now(self, node_id: str) -> None:
        """Suspect a node at once, because it refused a connection."""
        if self._transport is not None:
            self._carry_out(self._running.suspect_now(node_id, self._now_ms()))

    # ------------------------------------------------------------------------------------------ counters

    @property
    def refusals(self) -> Mapping[Refusal, int]:
        """Dropped authenticated datagrams by reason."""
        return self._running.refusals

    # ---------------------------------------------------------------------------------------- timers and datagrams

    @property
    def _running(self) -> Swim:
        assert self._swim is not None, "gossip must be started first"
        return self._swim

    def _now_ms(self) -> int:
        return int(self._loop.time() * 1000)

    def _tick(self) -> None:
        self._carry_out(self._running.tick(self._now_ms()))

    def _received(self, datagram: bytes, source: Address) -> None:
        if self._transport is None or self._swim is None:
            return
        payload = self._auth.verify(datagram)
        if payload is None:
            self.forged += 1
            self._log_refusal(_FORGED, source)
            return
        effects = self._swim.receive(payload, source, self._now_ms())
        if effects.refusal is not None:
            self._log_refusal(effects.refusal.value, source)
        self._carry_out(effects)

    def _carry_out(self, effects: Effects) -> None:
        for to, payload in effects.outgoing:
            self._send(to, payload)
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(self._running.next_tick_ms / 1000, self._tick)
        for event in effects.events:
            _log_event(event)
            self._on_event(event)

    def _send(self, to: Address, payload: bytes) -> None:
        assert self._transport is not None
        if self._receiver.full:
            self.unsent += 1
        else:
            self._transport.sendto(self._auth.sign(payload), to)

    def _log_refusal(self, reason: str, source: Address) -> None:
        """Log a dropped datagram, with an interval per reason that grows from ten seconds to an hour.

        A reason can persist: a node at the address of a removed node receives the datagrams for that node forever.
        """
        now_s = self._loop.time()
        again = self._log_again.get(reason)
        if again is not None and now_s < again.at_s:
            self._unlogged[reason] = self._unlogged.get(reason, 0) + 1
            return
        wait_s = _LOG_AGAIN_S if again is None else min(4 * again.wait_s, _LOG_AGAIN_S_MAX)
        self._log_again[reason] = _LogBackOff(now_s + wait_s, wait_s)
        more = self._unlogged.pop(reason, 0)
        log.warning(
            "dropped a gossip datagram from %s port %d: %s (%d similar messages suppressed)", *source, reason, more
        )

    # ------------------------------------------------------------------------------------------ names

    async def _resolve_seeds(self) -> None:
        """Resolve all seeds repeatedly and concurrently, so that one slow lookup does not delay the others."""
        resolved: dict[Address, list[Address]] = {}

        async def resolve(seed: Address) -> None:
            try:
                found = await self._resolve(seed.host)
                resolved[seed] = [Address(host, seed.port) for host in sorted(found)[:_SEED_ADDRESSES_MAX]]
            except OSError as error:
                log.warning("cannot resolve the seed %s port %d, retrying in %d s: %s", *seed, _SEEDS_AGAIN_S, error)
            else:
                self._running.set_seeds([address for each in resolved.values() for address in each])
                self._tick()

        while True:
            await asyncio.gather(*map(resolve, self._seeds))
            await asyncio.sleep(_SEEDS_AGAIN_S)

    async def _resolve(self, host: str) -> list[str]:
        """Return the IP addresses of a host in the socket's address family, at least one."""
        with contextlib.suppress(ValueError):
            return [str(ipaddress.ip_address(host))]
        assert self._transport is not None
        family = self._transport.get_extra_info("socket").family
        infos = await look_up(host, 0, family=family, kind=socket.SOCK_DGRAM)
        return list(dict.fromkeys(str(info[4][0]) for info in infos))


class _Receiver(asyncio.DatagramProtocol):
    """Delivers datagrams. Socket errors concern single datagrams and are left to the probes to detect."""

    def __init__(self, received: Callable[[bytes, Address], None]) -> None:
        self.full = False
        """Whether the transport's send buffer is full; its size is bounded."""
        self._received = received

    def pause_writing(self) -> None:
        self.full = True

    def resume_writing(self) -> None:
        self.full = False

    def datagram_received(self, data: bytes, addr: tuple[Any, ...]) -> None:
        self._received(data, Address(addr[0], addr[1]))


def _log_event(event: Event) -> None:
    if isinstance(event, IdentityConflict):
        log.critical(
            "another process uses node id %r (incarnation %d, this process has %d): stop it, or give it its own node "
            "id and data directory",
            event.node_id,
            event.other_incarnation,
            event.incarnation,
        )
        return
    member = event.member
    level = logging.WARNING if event.change in {Change.SUSPECT, Change.DEAD} else logging.INFO
    log.log(level, "node %r (%s port %d) is %s", member.node_id, member.host, member.port, event.change.value)
