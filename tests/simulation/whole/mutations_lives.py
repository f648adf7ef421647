"""Ways to get lives of nodes wrong: rollback of a disk is not found out, or the wrong node ends."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tests.simulation.mutants import Replacement
from tests.simulation.whole.loop import life_here

from tidelog_broker.cluster.node_lives import NodeLives
from tidelog_broker.core.incarnation import boot_counter
from tidelog_broker.core.known_lives import DirectoryLives, directory_of
from tidelog_broker.core.lives import Claim, Directory, NodeLife, OwnLives
from tidelog_broker.node.membership import Membership
from tidelog_broker.server.handlers import peers
from tidelog_broker.storage.node.node_dir import NodeDir
from tidelog_proto import broker_pb2 as pb


def lives_not_compared() -> list[Replacement]:
    """A directory is regarded as the newest one, regardless of what other nodes know."""
    return [(Claim, "is_older_than", lambda self, known: False)]


def nonce_not_compared() -> list[Replacement]:
    """Only boot counters are compared: another start with the same number passes for this one."""

    def is_older_than(self: Claim, known: NodeLife) -> bool:
        counters = {boot_counter(incarnation): tick for incarnation, tick in self.past.items()}
        counter = boot_counter(known.incarnation)
        return counter > boot_counter(self.incarnation) or known.tick > counters.get(counter, known.tick)

    return [(Claim, "is_older_than", is_older_than)]


def tick_not_compared() -> list[Replacement]:
    """A copy of a running node is accepted, because its next start has a counter of its own."""

    def is_older_than(self: Claim, known: NodeLife) -> bool:
        if known.incarnation in self.past or known.incarnation == self.incarnation:
            return False
        return boot_counter(known.incarnation) >= self.forgotten_below

    return [(Claim, "is_older_than", is_older_than)]


def tick_kept_by_the_node_alone() -> list[Replacement]:
    """A node raises its tick and sends it to no other."""

    async def send_news(self: NodeLives, neighbours: Any) -> None:
        self._news.clear()

    return [(NodeLives, "_send_news", send_news)]


def takes_part_unregistered() -> list[Replacement]:
    """A node takes part without waiting for others to note its start."""

    async def register(self: Membership) -> None: ...

    return [(Membership, "register", register)]


def noted_in_memory() -> list[Replacement]:
    """A node reports that it has noted another one's start, and does not write that."""

    async def meet(self: NodeLives, peer_id: str, incarnation: int, said: pb.PeerLife) -> None:
        for known in said.known:
            if self._refutes(known):
                raise self.refuted(peer_id, known, in_use=False)
        self._known.learn((peer_id, said.directory_id), NodeLife(incarnation, said.tick))

    return [(NodeLives, "meet", meet), (NodeLives, "_keep_news", forget_news)]


async def forget_news(self: NodeLives) -> list[Directory]:
    news, self._news = list(self._news), {}
    return news


def not_spread() -> list[Replacement]:
    """A node sends its own lives only, not those of others."""

    async def send(self: NodeLives, neighbours: Any, node_id: str, lives: Any) -> bool:
        own = [one for one in lives if directory_of(one) == self.own.directory]
        return await neighbours.ask_lives(node_id, pb.Lives(entries=own), timeout_s=2.0) is not None

    return [(NodeLives, "_send", send)]


def the_running_node_ends() -> list[Replacement]:
    """A copy that is started in parallel to the running node counts as its next start."""

    async def refusal(broker: Any, challenge: Any, said: pb.PeerLife) -> pb.PeerWelcome | None:
        refutation = broker.lives.refutation(challenge.node_id, challenge.incarnation, said)
        return None if refutation is None else pb.PeerWelcome(old_life=refutation)

    return [(peers, "_old_life", refusal)]


def refusal_in_memory() -> list[Replacement]:
    """The refusal of an older copy lasts one start."""
    return [(NodeDir, "mark_refused", lambda self, why: None)]


def never_withdrawn() -> list[Replacement]:
    """A start that is refused before it took part ends without a word."""

    async def withdraw(self: NodeLives, neighbours: Any) -> None: ...

    return [(NodeLives, "withdraw", withdraw)]


def withdrawn_and_takes_part() -> list[Replacement]:
    """The start of a copy is withdrawn, and takes part all the same."""
    register = Membership.register

    async def withdrawing(self: Membership) -> None:
        await register(self)
        lives = self._broker.lives
        if life_here().machine.is_copy and lives._may_withdraw:
            lives.is_refused = True
            await lives.withdraw(self._broker.cluster)
            lives.is_refused = False

    return [(Membership, "register", withdrawing)]


def tick_of_the_predecessor_lost() -> list[Replacement]:
    """A node that drops a withdrawn life returns to the one before it as to one that has only begun."""
    learn = DirectoryLives.learn

    def forgetting(self: DirectoryLives, lives: Iterable[NodeLife], withdrawn: Iterable[int]) -> bool:
        before = set(self.withdrawn)
        learned = learn(self, lives, withdrawn)
        if self.withdrawn - before:
            self.ticks = dict.fromkeys(self.ticks, 0)
        return learned

    return [(DirectoryLives, "learn", forgetting)]


def takes_part_in_doubt() -> list[Replacement]:
    """A node takes part although a start elsewhere is known that may have taken part."""
    return [(OwnLives, "doubted_by", property(lambda self: 0))]
