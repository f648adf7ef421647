"""Where copies go and who should own a partition: rendezvous hashing, weighted, spread over zones and machines.

Every node computes the same answer from the same registry, so nobody has to hand out placements and nothing has to
be remembered. Each (partition, node) pair has a score; the highest come first. A node that joins can only win pairs
of its own, and one that leaves loses only its own, so of n copies about one in n moves, and only onto or off that node.

    score = -weight / ln(u),   u = murmur3_x64_128(topic id | partition | node id) as a number in (0, 1)

Rendezvous hashing is Thaler and Ravishankar's (1998), this way of weighting it Schindelhauer and Schomaker's ("Weighted
distributed hash tables", 2005): a node comes first with probability weight / sum of weights, and changing one weight
moves copies only onto or off that node. The logarithm is the C library's: two of them may differ in the last of 53
bits, which decides only between scores that are equal to one part in 10^15. Even then nothing is lost: a placement
counts once it is decided, and the epoch's descriptor, not this module, says what it is.

Spreading is greedy: the next copy goes to the zone with the fewest copies so far, there to the machine with the
fewest, there to the highest score. Nodes that are alive go before all that are not: a dead one gets a copy only
to fill up, because the number of copies follows the registered nodes and never the number alive; a quorum that
shrank with every failure would promise nothing.

At least one copy goes to a node that may also own the partition, where one is alive: an epoch that only storing nodes
hold would have nobody to own it but one of them (see `candidates`). Where the greedy choice has no such node, it is
made again and begins with the first of them. So where roles and zones cross, a node that comes or goes may move a
second copy.

Rejected: a consistent-hash ring (uneven without many virtual nodes, and zones do not fit in), round-robin over sorted
nodes (one node more moves nearly everything), and an assignment that is kept and balanced by a leader (more state).
"""

from __future__ import annotations

import math
import struct
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from enum import Flag
from typing import Final, NamedTuple

import mmh3

WEIGHT_ORDINARY: Final = 100
WEIGHT_MAX: Final = 10_000

_KEY: Final = struct.Struct("<16sI")


class Role(Flag):
    """What a node does."""

    INGESTION = 1
    """Takes clients' records: owns partitions of those that it stores. Without PERSISTENCE it hands everything on."""
    PERSISTENCE = 2
    """Stores copies and counts towards ack quorums."""


BOTH_ROLES: Final = Role.INGESTION | Role.PERSISTENCE


class NodeEntry(NamedTuple):
    """What placement needs to know of a registered node. An empty `machine`: one of its own."""

    node_id: str
    zone: str = "default"
    weight: int = WEIGHT_ORDINARY
    roles: Role = BOTH_ROLES
    incarnation: int = 0
    machine: str = ""


class Placement(NamedTuple):
    """The nodes that shall store an epoch, the preferred first, and how many of them acknowledge."""

    nodes: tuple[str, ...]
    ack_quorum: int


class PlacedPartition(NamedTuple):
    """The active epoch of a partition and what its topic asks for. `topic_ack_quorum` 0: a majority."""

    topic_id: bytes
    partition: int
    owner: str
    placement: tuple[str, ...]
    ack_quorum: int
    replication_factor: int
    topic_ack_quorum: int = 0


class Move(NamedTuple):
    """What the next epoch of a partition should be. `new_copies`: nodes that store nothing of it yet."""

    topic_id: bytes
    partition: int
    owner: str
    placement: Placement
    new_copies: tuple[str, ...]


class NoPersistenceError(Exception):
    """No registered node stores copies, so there is nowhere to put one."""


def partition_key(topic_id: bytes, partition: int) -> bytes:
    """Return what a partition is hashed by: its topic's 16 bytes and its number, u32 little-endian."""
    assert len(topic_id) == 16, "a shorter id would be padded, and two ids could share a key"
    return _KEY.pack(topic_id, partition)


def majority(nodes: int) -> int:
    """Return the smallest number of `nodes` of which any two sets meet."""
    assert nodes >= 1
    return nodes // 2 + 1


def rank(key: bytes, nodes: Iterable[NodeEntry]) -> list[str]:
    """Return the ids of `nodes`, the highest score first; their order as given does not matter."""
    return [node.node_id for node in _ranked(key, nodes)]


def place(
    key: bytes, nodes: Iterable[NodeEntry], *, replication_factor: int, alive: Collection[str], ack_quorum: int = 0
) -> Placement:
    """Return which nodes shall store the next epoch of a partition.

    Args:
        key: from `partition_key`.
        nodes: every registered node; those without the role PERSISTENCE get no copies, and a living one that has
            INGESTION, too, gets one if there is any.
        replication_factor: copies asked for, 1 or more; there are as many as registered nodes allow.
        alive: nodes that can take part now (leave out those that are draining); the others only fill up.
        ack_quorum: the topic's; 0, or one that the number of copies does not allow, gives a majority.

    Raises:
        NoPersistenceError: no registered node stores copies.
    """
    assert replication_factor >= 1
    waiting = [node for node in _ranked(key, nodes) if Role.PERSISTENCE in node.roles]
    if not waiting:
        raise NoPersistenceError("no registered node has the role persistence: there is nowhere to store a copy")
    copies = min(replication_factor, len(waiting))
    chosen = _spread(waiting, copies, alive)
    able = [node for node in waiting if node.node_id in alive and Role.INGESTION in node.roles]
    if able and not any(node in chosen for node in able):
        chosen = _spread(waiting, copies, alive, first=able[0])
    assert len(set(chosen)) == copies
    return Placement(
        tuple(node.node_id for node in chosen), ack_quorum if 1 <= ack_quorum <= copies else majority(copies)
    )


def _spread(
    ranked: Sequence[NodeEntry], copies: int, alive: Collection[str], *, first: NodeEntry | None = None
) -> list[NodeEntry]:
    """Return so many of the nodes, which stand by score, spread over zones and machines, beginning with `first`."""
    waiting = list(ranked)
    in_zone: Counter[str] = Counter()
    on_machine: Counter[tuple[str, str, str]] = Counter()
    chosen: list[NodeEntry] = []
    while len(chosen) < copies:
        # min() takes the first of equals.
        best = min(
            waiting,
            key=lambda node: (node.node_id not in alive, in_zone[node.zone], on_machine[_machine(node)]),
        )
        if first is not None and not chosen:
            best = first
        waiting.remove(best)
        chosen.append(best)
        in_zone[best.zone] += 1
        on_machine[_machine(best)] += 1
    return chosen


def candidates(
    key: bytes, nodes: Iterable[NodeEntry], *, alive: Collection[str], placement: Collection[str]
) -> list[str]:
    """Return the nodes of a placement that may own its next epoch, the preferred first.

    These are the registered, living ones with the role PERSISTENCE, by score. Those with INGESTION, too, go first. Only
    if there are none does a node that merely stores copies own a partition: an owner without a copy of its own would
    have to be kept out of the quorum everywhere, while writes that nobody takes help no one.
    """
    fit = [
        node
        for node in _ranked(key, nodes)
        if node.node_id in placement and node.node_id in alive and Role.PERSISTENCE in node.roles
    ]
    both = [node.node_id for node in fit if Role.INGESTION in node.roles]
    return both + [node.node_id for node in fit if Role.INGESTION not in node.roles]


def successor(
    key: bytes, nodes: Iterable[NodeEntry], *, alive: Collection[str], placement: Collection[str]
) -> str | None:
    """Return who should own the next epoch of a partition stored by `placement`; None when none of them lives."""
    return next(iter(candidates(key, nodes, alive=alive, placement=placement)), None)


def takeover_rank(
    node_id: str, key: bytes, nodes: Iterable[NodeEntry], *, alive: Collection[str], placement: Collection[str]
) -> int | None:
    """Return how many living candidates stand before this node, which waits that many steps before it takes over.

    None when it is no candidate: it stores no copy, or is no longer registered. A node that asks is alive, whatever
    `alive` says. Two nodes may get the same answer from different views; then ballots decide, and nothing else breaks.
    """
    order = candidates(key, nodes, alive={*alive, node_id}, placement=placement)
    return order.index(node_id) if node_id in order else None


def rebalance_plan(
    partitions: Iterable[PlacedPartition], nodes: Sequence[NodeEntry], *, alive: Collection[str]
) -> list[Move]:
    """Return the partitions whose active epoch is not what placement asks for, and what it asks for.

    A partition is in the plan when its nodes (in whatever order), its quorum or its owner differ. Partitions that get
    no new copies come first, because they move at once; then by topic and number. One with no living node in its
    wanted placement is left as it is. The plan is a wish: whoever carries it out moves a few partitions at a time. How
    fast their history follows is up to the nodes that fetch it.

    Raises:
        NoPersistenceError: as `place`.
    """
    moves: list[Move] = []
    for state in partitions:
        key = partition_key(state.topic_id, state.partition)
        wanted = place(
            key,
            nodes,
            replication_factor=state.replication_factor,
            alive=alive,
            ack_quorum=state.topic_ack_quorum,
        )
        owner = successor(key, nodes, alive=alive, placement=wanted.nodes)
        same_copies = set(state.placement) == set(wanted.nodes) and state.ack_quorum == wanted.ack_quorum
        if owner is None or (same_copies and state.owner == owner):
            continue
        new_copies = tuple(node_id for node_id in wanted.nodes if node_id not in state.placement)
        moves.append(Move(state.topic_id, state.partition, owner, wanted, new_copies))
    return sorted(moves, key=lambda move: (bool(move.new_copies), move.topic_id, move.partition))


def _ranked(key: bytes, nodes: Iterable[NodeEntry]) -> list[NodeEntry]:
    ranked = sorted(nodes, key=lambda node: (-_score(key, node), node.node_id))
    assert len({node.node_id for node in ranked}) == len(ranked), "a node is registered once"
    return ranked


def _score(key: bytes, node: NodeEntry) -> float:
    assert 1 <= node.weight <= WEIGHT_MAX
    hashed = mmh3.hash64(key + node.node_id.encode(), 0, signed=False)[0]
    # 52 bits and a half: exact in a float, and never 0 or 1, where the score has no value.
    return -node.weight / math.log(((hashed >> 12) + 0.5) * 2.0**-52)


def _machine(node: NodeEntry) -> tuple[str, str, str]:
    """Return the machine of a node: inside its zone, and a node that names none is alone on its own.

    A machine that claimed to stand in two zones would tie them together, and a node that joins could then move
    copies between others.
    """
    return node.zone, node.machine, "" if node.machine else node.node_id
