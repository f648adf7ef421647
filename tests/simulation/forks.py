"""Effect of an operator's recovery without a quorum on the truth about a partition: there are two truths after it.

Before it, all acknowledged records count. It ends an epoch at the end of the nodes that it reaches, and from
then on another `Truth` holds for all nodes that know the decision: the past up to that end, and nothing after it. For
nodes that have not learned the decision, or that had decided otherwise, the old truth remains. A node changes
from the old truth to the new one when it learns the decision, and never back. So records may be lost only after the
decided end, and only where the decision is known.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, TypeVar

from tidelog_broker.core.replication.chain import EpochChain
from tidelog_broker.core.replication.paxos import BallotKey

if TYPE_CHECKING:
    from tests.simulation.history import Publish
    from tests.simulation.truth import Chosen, Truth

T = TypeVar("T")


class Fork:
    """Where a new truth parts from an old one.

    Attributes:
        parent, truth: the old one and the new one.
        epoch, end_offset, raw: the decision.
        kept: base offset and digest of every batch before that end.
        taken: whether a node has acted on it; until then returning nodes may decide otherwise.
    """

    def __init__(self, parent: Truth, truth: Truth, chosen: Chosen) -> None:
        self.parent = parent
        self.truth = truth
        self.raw = chosen.raw
        self.epoch = chosen.value.epoch
        self.end_offset = chosen.value.end_offset
        self.kept: list[tuple[int, int]] = []
        self.taken = False

    def cuts(self, epoch: int, base_offset: int) -> bool:
        """Whether something of the old truth is given up."""
        return epoch > self.epoch or (epoch == self.epoch and base_offset >= self.end_offset)


def part(parent: Truth, chosen: Chosen, ballot: BallotKey) -> Fork:
    """Return what follows from the decision of an operator's recovery; it must be right (I21)."""
    epoch = chosen.value.epoch
    _judge(parent, chosen)
    truth = type(parent)(parent.genesis, parent.bad)
    fork = truth.fork = Fork(parent, truth, chosen)
    truth.descriptors = {**_through(parent.descriptors, epoch), epoch + 1: chosen.value.next}
    truth.chosen = {**_through(parent.chosen, epoch - 1), epoch: chosen}
    truth.newest_decided = epoch
    truth.batches.update(_through(parent.batches, epoch))  # the same objects: an epoch's content is one everywhere
    truth.by_digest = {where: payload for where, payload in parent.by_digest.items() if where[0] <= epoch}
    truth.deciders = {**_through(parent.deciders, epoch - 1), epoch: set(parent.acceptors[epoch, ballot])}
    truth.proposals = {where: raw for where, raw in parent.proposals.items() if where[0] <= epoch}
    truth.committed = _through(parent.committed, epoch)
    if epoch in truth.committed:
        truth.committed[epoch] = min(truth.committed[epoch], fork.end_offset)
    truth.walk()
    for decided, end in truth.chosen.items():
        held = truth.batches[decided].items()
        fork.kept += [(base, header.digest) for base, header in held if base < end.value.end_offset]
    return fork


def _judge(truth: Truth, chosen: Chosen) -> None:
    """Check that an operator requested it, that all reachable nodes were asked, and that their records are kept."""
    epoch = chosen.value.epoch
    # Others may adopt it under higher ballots, before or after it is decided.
    ballot = min(one for (about, one), raw in truth.proposals.items() if about == epoch and raw == chosen.raw)
    node = ballot.node_id
    reached = truth.named.get(node)
    truth.require(
        reached is not None, "I21", f"{node} ends epoch {epoch} without a quorum and without an operator's request"
    )
    assert reached is not None
    held = truth.start_of(epoch)
    for one in (node, *reached):
        promised = truth.persisted.get((one, epoch))
        truth.require(
            promised is not None and promised >= ballot, "I21", f"{node} ends epoch {epoch} without having asked {one}"
        )
        held = max(held, truth.durable.get((one, epoch), held))
    kept = min(held, truth.committed.get(epoch, truth.start_of(epoch)))
    end_offset = chosen.value.end_offset
    truth.require(
        end_offset >= kept, "I21", f"{node} ends epoch {epoch} at {end_offset}: {kept} is committed and held there"
    )


def _through(known: dict[int, T], epoch: int) -> dict[int, T]:
    return {key: value for key, value in known.items() if key <= epoch}


# ---------------------------------------------------------------------------------------------- knowledge


def truth_of(truth: Truth, chain: EpochChain) -> Truth:
    """Return which truth holds for a node with that chain; `truth` is the first one."""
    first_epoch = chain.genesis.epoch
    while truth.forks:
        known = (truth.forks.get(raw) for raw in chain.decisions[truth.first_open(first_epoch) :])
        fork = next((fork for fork in known if fork is not None), None)
        if fork is None:
            break
        truth = fork.truth
    return truth


def past(truth: Truth) -> Iterator[Fork]:
    """Yield where a truth has parted from an older one, and that one from another, the newest first."""
    while truth.fork is not None:
        yield truth.fork
        truth = truth.fork.parent


def newest(truth: Truth) -> Truth:
    """Return the truth that all nodes must reach in the end: after every decision that a node has acted on."""
    while True:
        fork = next((fork for fork in reversed(truth.forks.values()) if fork.taken), None)
        if fork is None:
            return truth
        truth = fork.truth


def between(truth: Truth, before: Truth) -> list[Fork]:
    """Return where a truth has parted from an older one, the newest first; nothing where it did not come from that."""
    found: list[Fork] = []
    for fork in past(truth):
        found.append(fork)
        if fork.parent is before:
            return found
    return []


def adopt(truth: Truth, before: Truth, node: str) -> None:
    """A node moves from the old truth to the new one; its acts in common epochs count."""
    parted = between(truth, before)
    assert parted, "no node forgets a decision"
    fork = parted[-1]
    for one in parted:
        one.taken = True
    _hand_on(before.durable, truth.durable, node, fork)
    _hand_on(before.ever, truth.ever, node, fork)
    _hand_on(before.promised, truth.promised, node, fork)
    _hand_on(before.persisted, truth.persisted, node, fork)
    _hand_on(before.accepted, truth.accepted, node, fork)
    if node in before.watermarks:  # the only case in which a watermark may go back
        truth.watermarks[node] = min([before.watermarks[node], *(one.end_offset for one in between(truth, before))])


def _hand_on(old: dict[tuple[str, int], T], new: dict[tuple[str, int], T], node: str, fork: Fork) -> None:
    new.update({where: one for where, one in old.items() if where[0] == node and where[1] <= fork.epoch})


# ---------------------------------------------------------------------------------------------- what clients know


def was_cut(truth: Truth, publish: Publish) -> bool:
    """Whether an acknowledged publish is among the records given up on the way to a truth."""
    said = (publish.payload, publish.epoch, publish.base_offset)
    truths = [truth]
    for fork in past(truth):
        if said in fork.parent.acks:
            return fork.cuts(*said[1:]) and not any(said in one.acks for one in truths)
        truths.append(fork.parent)
    return False


def denied(truth: Truth) -> set[int]:
    """Return payloads that must not be stored: those denied by nodes that did not know the given-up records."""
    found = set(truth.denials)
    for fork in past(truth):
        found |= {payload for payload, epoch in fork.parent.denials.items() if epoch <= fork.epoch}
    return found


def overruled_denials(truth: Truth) -> set[int]:
    """Return payloads that were denied only by nodes that had decided otherwise."""
    every = {payload for fork in past(truth) for payload in fork.parent.denials}
    return every - denied(truth)


def lost_of(truth: Truth, producer: int, sequence: int) -> bool:
    """Whether something that a producer had got stored before a sequence was given up."""
    return any(
        known[0] == producer and known[1] < sequence and fork.cuts(*place)
        for fork in past(truth)
        for known, place in fork.parent.places.items()
    )


def stored_elsewhere(truth: Truth, producer: int, sequence: int) -> bool:
    """Whether what precedes a sequence is stored where a recovery is known, which has given up this truth."""
    return any(
        any(known[0] == producer and known[1] < sequence for known in fork.truth.places)
        or stored_elsewhere(fork.truth, producer, sequence)
        for fork in truth.forks.values()
        if fork.taken
    )
