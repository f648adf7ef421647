"""Placement of partitions: weighted rendezvous hashing, spread over zones and machines.

Every node computes the same result from the same registry, so placements need no coordinator and no state. Each
(partition, node) pair has a score, and the highest scores win. A new node can only win copies for itself, and a removed
node loses only its own, so that with n nodes about one in n copies moves, and only to or from that node.

    score = -weight / ln(u),   u = murmur3_x64_128(topic id | partition | node id) as a number in (0, 1)

Rendezvous hashing is by Thaler and Ravishankar (1998), this weighting by Schindelhauer and Schomaker ("Weighted
distributed hash tables", 2005): a node comes first with probability weight / sum of weights, and a changed weight moves
copies only to or from that node. Logarithms of different C libraries may differ in the last of 53 bits, which can only
swap scores that are equal to one part in 10^15. That is harmless, because a placement is effective once it is decided
and is then read from the epoch descriptor.

Spreading is greedy: the next copy goes to the zone with the fewest copies so far, in it to the machine with the fewest,
on it to the node with the highest score. Live nodes come before others. A dead node gets a copy if there are too few
live ones, because the number of copies depends on the registered nodes and never on the live ones: a quorum that shrank
with every failure would guarantee nothing.

At least one copy goes to a node that may own the partition, if one is alive; otherwise only a node that merely stores
copies could own it (see `candidates`). If the greedy choice has no such node, it is repeated starting with the best
one. With such a mix of roles and zones, a node that joins or leaves may move a second copy.

Rejected: a consistent-hash ring (uneven without many virtual nodes, and unaware of zones), round-robin over sorted
nodes (a new node moves nearly everything), and an assignment maintained by a leader (more state).
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
    """Roles of a node."""

    INGESTION = 1
    """Accepts records: owns partitions that it stores. Without PERSISTENCE it only forwards requests."""
    PERSISTENCE = 2
    """Stores copies and counts in ack quorums."""


BOTH_ROLES: Final = Role.INGESTION | Role.PERSISTENCE


class NodeEntry(NamedTuple):
    """Properties of a registered node used by placement.

    Attributes:
        machine: the machine on which the node runs; empty if it shares none with another node.
    """

    node_id: str
    zone: str = "default"
    weight: int = WEIGHT_ORDINARY
    roles: Role = BOTH_ROLES
    incarnation: int = 0
    machine: str = ""


class Placement(NamedTuple):
    """The nodes that store an epoch, by preference, and the ack quorum."""

    nodes: tuple[str, ...]
    ack_quorum: int


class PlacedPartition(NamedTuple):
    """The active epoch of a partition and the settings of its topic.

    Attributes:
        topic_ack_quorum: the ack quorum that the topic configures; 0: a majority of the copies.
    """

    topic_id: bytes
    partition: int
    owner: str
    placement: tuple[str, ...]
    ack_quorum: int
    replication_factor: int
    topic_ack_quorum: int = 0


class Move(NamedTuple):
    """The intended next epoch of a partition.

    Attributes:
        new_copies: nodes of the placement that do not store the partition yet.
    """

    topic_id: bytes
    partition: int
    owner: str
    placement: Placement
    new_copies: tuple[str, ...]


class NoPersistenceError(Exception):
    """No registered node has the role PERSISTENCE."""


def partition_key(topic_id: bytes, partition: int) -> bytes:
    """Return the hash key of a partition: the topic's 16 bytes and the partition number, u32 little-endian."""
    assert len(topic_id) == 16, "a shorter id would be padded, so that two ids could have the same key"
    return _KEY.pack(topic_id, partition)


def majority(nodes: int) -> int:
    """Return the size of a majority of `nodes`."""
    assert nodes >= 1
    return nodes // 2 + 1


def rank(key: bytes, nodes: Iterable[NodeEntry]) -> list[str]:
    """Return the ids of `nodes` by descending score, independent of their given order."""
    return [node.node_id for node in _ranked(key, nodes)]


def place(
    key: bytes, nodes: Iterable[NodeEntry], *, replication_factor: int, alive: Collection[str], ack_quorum: int = 0
) -> Placement:
    """Return the nodes that should store the next epoch of a partition.

    Args:
        key: from `partition_key`.
        nodes: every registered node; only nodes with PERSISTENCE get copies, at least one of them a live one with
            INGESTION if possible.
        replication_factor: requested copies, 1 or more; limited by the registered nodes.
        alive: nodes that can participate, without draining ones; others are only used if these are too few.
        ack_quorum: ack quorum of the topic; 0, or more than the number of copies, selects a majority.

    Raises:
        NoPersistenceError: no registered node stores copies.
    """
    return _placed(_ranked(key, nodes), replication_factor, alive, ack_quorum)


def place_with_owner(
    key: bytes, nodes: Iterable[NodeEntry], *, replication_factor: int, alive: Collection[str], ack_quorum: int = 0
) -> tuple[Placement, str | None]:
    """Return the results of `place` and of `successor` for that placement, with one ranking of the nodes.

    For the arguments and the exception see `place`.
    """
    ranked = _ranked(key, nodes)
    placed = _placed(ranked, replication_factor, alive, ack_quorum)
    return placed, next(iter(_able(ranked, alive, placed.nodes)), None)


def _placed(ranked: Sequence[NodeEntry], replication_factor: int, alive: Collection[str], ack_quorum: int) -> Placement:
    assert replication_factor >= 1
    waiting = [node for node in ranked if Role.PERSISTENCE in node.roles]
    if not waiting:
        raise NoPersistenceError(
            "no registered node has the role persistence, so no copy can be stored; start a node with that role"
        )
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
    """Return `copies` of the ranked nodes, spread over zones and machines, starting with `first` if given."""
    waiting = list(ranked)
    in_zone: Counter[str] = Counter()
    on_machine: Counter[tuple[str, str, str]] = Counter()
    chosen: list[NodeEntry] = []
    while len(chosen) < copies:
        # min() returns the first of equals, which has the highest score.
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
    """Return the nodes of a placement that may own its next epoch, by preference.

    These are the registered, live nodes with PERSISTENCE, by score; those that also have INGESTION come first. The
    others are used only as a last resort: an owner without a copy would need an exception in every quorum, and without
    an owner the partition cannot be written.
    """
    return _able(_ranked(key, nodes), alive, placement)


def _able(ranked: Iterable[NodeEntry], alive: Collection[str], placement: Collection[str]) -> list[str]:
    fit = [
        node
        for node in ranked
        if node.node_id in placement and node.node_id in alive and Role.PERSISTENCE in node.roles
    ]
    both = [node.node_id for node in fit if Role.INGESTION in node.roles]
    return both + [node.node_id for node in fit if Role.INGESTION not in node.roles]


def successor(
    key: bytes, nodes: Iterable[NodeEntry], *, alive: Collection[str], placement: Collection[str]
) -> str | None:
    """Return the preferred owner of the next epoch of a partition; None if no node of `placement` can own it."""
    return next(iter(candidates(key, nodes, alive=alive, placement=placement)), None)


def takeover_rank(
    node_id: str, key: bytes, nodes: Iterable[NodeEntry], *, alive: Collection[str], placement: Collection[str]
) -> int | None:
    """Return the number of live candidates before this node, which delays its takeover by that many steps.

    None if the node is not a candidate: it is not in `placement`, or not registered with PERSISTENCE. The node itself
    counts as alive. Two nodes with different views may get the same rank; ballots then decide between them.
    """
    order = candidates(key, nodes, alive={*alive, node_id}, placement=placement)
    return order.index(node_id) if node_id in order else None


def rebalance_plan(
    partitions: Iterable[PlacedPartition], nodes: Sequence[NodeEntry], *, alive: Collection[str]
) -> list[Move]:
    """Return the partitions whose active epoch differs from their placement, with the intended next epoch.

    Differences are the set of nodes, the ack quorum, or the owner. Moves without new copies come first, because they
    finish immediately; then by topic and number. A partition without a live node in its intended placement is left
    unchanged. The caller executes a few moves at a time; the nodes limit the rate at which they fetch history.

    Raises:
        NoPersistenceError: no registered node stores copies.
    """
    moves: list[Move] = []
    for state in partitions:
        key = partition_key(state.topic_id, state.partition)
        placed = place(
            key,
            nodes,
            replication_factor=state.replication_factor,
            alive=alive,
            ack_quorum=state.topic_ack_quorum,
        )
        owner = successor(key, nodes, alive=alive, placement=placed.nodes)
        same_copies = set(state.placement) == set(placed.nodes) and state.ack_quorum == placed.ack_quorum
        if owner is None or (same_copies and state.owner == owner):
            continue
        new_copies = tuple(node_id for node_id in placed.nodes if node_id not in state.placement)
        moves.append(Move(state.topic_id, state.partition, owner, placed, new_copies))
    return sorted(moves, key=lambda move: (bool(move.new_copies), move.topic_id, move.partition))


def _ranked(key: bytes, nodes: Iterable[NodeEntry]) -> list[NodeEntry]:
    ranked = sorted(nodes, key=lambda node: (-score(key, node), node.node_id))
    assert len({node.node_id for node in ranked}) == len(ranked), "duplicate node id"
    return ranked


def score(key: bytes, node: NodeEntry) -> float:
    """Return the rank of a node for a key by rendezvous hashing; the highest ones store the key's copies."""
    assert 1 <= node.weight <= WEIGHT_MAX
    hashed = mmh3.hash64(key + node.node_id.encode(), 0, signed=False)[0]
    # The upper 52 bits plus one half: exact in a float, and never 0 or 1, for which the score is undefined.
    return -node.weight / math.log(((hashed >> 12) + 0.5) * 2.0**-52)


def _machine(node: NodeEntry) -> tuple[str, str, str]:
    """Return the machine of a node, qualified by its zone; a node without one gets a machine of its own.

    If one machine were shared by two zones, a new node could move copies between other nodes.
    """
    return node.zone, node.machine, "" if node.machine else node.node_id
