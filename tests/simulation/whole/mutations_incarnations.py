"""Mutants of the exchange of incarnations: rollback of a disk is not found out, or the wrong node ends."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tests.simulation.mutants import Replacement
from tests.simulation.whole.loop import process_here

from tidelog_broker.cluster.incarnation_registry import IncarnationRegistry
from tidelog_broker.core.incarnation import boot_counter
from tidelog_broker.core.known_incarnations import DirectoryIncarnations, directory_of
from tidelog_broker.core.rollback_detection import Claim, Directory, IncarnationTick, OwnIncarnations
from tidelog_broker.node.cluster_membership import ClusterMembership
from tidelog_broker.server.handlers import peers
from tidelog_broker.storage.node.node_dir import NodeDir
from tidelog_proto import broker_pb2 as pb


def incarnations_not_compared() -> list[Replacement]:
    """A directory is regarded as the newest one, regardless of what other nodes know."""
    return [(Claim, "is_older_than", lambda self, known: False)]


def nonce_not_compared() -> list[Replacement]:
    """Only boot counters are compared: another start with the same number passes for this one."""

    def is_older_than(self: Claim, known: IncarnationTick) -> bool:
        counters = {boot_counter(incarnation): tick for incarnation, tick in self.past.items()}
        counter = boot_counter(known.incarnation)
        return counter > boot_counter(self.incarnation) or known.tick > counters.get(counter, known.tick)

    return [(Claim, "is_older_than", is_older_than)]


def tick_not_compared() -> list[Replacement]:
    """A copy of a running node is accepted, because its next start has a counter of its own."""

    def is_older_than(self: Claim, known: IncarnationTick) -> bool:
        if known.incarnation in self.past or known.incarnation == self.incarnation:
            return False
        return boot_counter(known.incarnation) >= self.forgotten_below

    return [(Claim, "is_older_than", is_older_than)]


def tick_kept_by_the_node_alone() -> list[Replacement]:
    """A node raises its tick and sends it to no other."""

    async def send_news(self: IncarnationRegistry, neighbours: Any) -> None:
        self._unsent.clear()

    return [(IncarnationRegistry, "_send_changes", send_news)]


def takes_part_unregistered() -> list[Replacement]:
    """A node takes part without waiting for others to note its start."""

    async def register(self: ClusterMembership) -> None: ...

    return [(ClusterMembership, "register", register)]


def noted_in_memory() -> list[Replacement]:
    """A node reports that it has noted another one's start, and does not write that."""

    async def register(self: IncarnationRegistry, peer_id: str, incarnation: int, offered: pb.PeerIncarnations) -> None:
        for known in offered.known:
            if self._refutes(known):
                raise self.refuted(peer_id, known, in_use=False)
        self._known.learn((peer_id, offered.directory_id), IncarnationTick(incarnation, offered.tick))

    return [(IncarnationRegistry, "register", register), (IncarnationRegistry, "_store_changes", forget_news)]


async def forget_news(self: IncarnationRegistry) -> list[Directory]:
    news, self._unsent = list(self._unsent), {}
    return news


def not_spread() -> list[Replacement]:
    """A node sends its own incarnations only, not those of others."""

    async def send(self: IncarnationRegistry, neighbours: Any, node_id: str, incarnations: Any) -> bool:
        own = [one for one in incarnations if directory_of(one) == self.own.directory]
        return await neighbours.exchange_incarnations(node_id, pb.Incarnations(entries=own), timeout_s=2.0) is not None

    return [(IncarnationRegistry, "_send", send)]


def the_running_node_ends() -> list[Replacement]:
    """A copy that is started in parallel to the running node counts as its next start."""

    async def refusal(broker: Any, challenge: Any, offered: pb.PeerIncarnations) -> pb.PeerWelcome | None:
        refutation = broker.incarnations.refutation(challenge.node_id, challenge.incarnation, offered)
        return None if refutation is None else pb.PeerWelcome(later_incarnation=refutation)

    return [(peers, "_later_incarnation", refusal)]


def refusal_in_memory() -> list[Replacement]:
    """The refusal of an older copy lasts one start."""
    return [(NodeDir, "mark_refused", lambda self, why: None)]


def never_withdrawn() -> list[Replacement]:
    """A start that is refused before it took part ends without a word."""

    async def withdraw(self: IncarnationRegistry, neighbours: Any) -> None: ...

    return [(IncarnationRegistry, "withdraw", withdraw)]


def withdrawn_and_takes_part() -> list[Replacement]:
    """The start of a copy is withdrawn, and takes part all the same."""
    register = ClusterMembership.register

    async def withdrawing(self: ClusterMembership) -> None:
        await register(self)
        registry = self._broker.incarnations
        if process_here().machine.is_copy and registry._may_withdraw:
            registry.is_refused = True
            await registry.withdraw(self._broker.cluster)
            registry.is_refused = False

    return [(ClusterMembership, "register", withdrawing)]


def tick_of_the_predecessor_lost() -> list[Replacement]:
    """A node that drops a withdrawn incarnation returns to the previous one, and forgets its tick."""
    learn = DirectoryIncarnations.learn

    def forgetting(self: DirectoryIncarnations, starts: Iterable[IncarnationTick], withdrawn: Iterable[int]) -> bool:
        before = set(self.withdrawn)
        learned = learn(self, starts, withdrawn)
        if self.withdrawn - before:
            self.ticks = dict.fromkeys(self.ticks, 0)
        return learned

    return [(DirectoryIncarnations, "learn", forgetting)]


def takes_part_in_doubt() -> list[Replacement]:
    """A node takes part although a start elsewhere is known that may have taken part."""
    return [(OwnIncarnations, "doubted_by", property(lambda self: 0))]
