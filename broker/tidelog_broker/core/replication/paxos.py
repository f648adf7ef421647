"""Deciding an epoch's end and its successor: single-decree Paxos, here with its proposer's part.

SEAL is prepare, OPEN_EPOCH is accept, METADATA_UPDATE is learn. The proposer gathers promises from a seal
quorum; if any of them has accepted a value, the one with the highest ballot is proposed again unchanged;
otherwise the epoch ends at the greatest durable offset among them. These functions know no network and no time:
`candidate` feeds them what the replicas answer.

Without a seal quorum, on an operator's word, nobody can know whether a value that was accepted has been decided:
others may have decided another one, and gone on. So it is not handed on as it is. Its end is kept, since nothing behind
that was ever acknowledged in this epoch, and what is proposed says that no quorum stands behind it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tidelog_broker.core.replication.ports import Plan, Position
from tidelog_proto import broker_pb2 as pb


class BallotKey(NamedTuple):
    """A ballot as something to compare: rounds first, then node and incarnation to break ties."""

    round: int
    node_id: str
    incarnation: int


@dataclass(frozen=True, slots=True)
class Promise:
    """A replica's answer to SEAL: how far its durable log goes, and what it has accepted before."""

    node_id: str
    end_offset: int
    end_digest: int
    accepted: pb.Ballot | None = None
    accepted_value: bytes = b""
    deleting_below: int = 0


def ballot_key(ballot: pb.Ballot) -> BallotKey:
    """Return `ballot` as a comparable key; an unset one is below every real one."""
    return BallotKey(ballot.round, ballot.node_id, ballot.incarnation)


def seal_quorum(replicas: int, ack_quorum: int) -> int:
    """How many promises seal an epoch: every such set meets every ack quorum."""
    assert 1 <= ack_quorum <= replicas
    return replicas - ack_quorum + 1


def decision_value(
    descriptor: pb.EpochDescriptor,
    end: Position,
    previous_hash: bytes,
    plan: Plan,
    owner_incarnation: int,
    *,
    deleted_below: int = 0,
    unsafe: bool = False,
    short_logs: bool = False,
) -> bytes:
    """Return the bytes of a decision: the epoch of `descriptor` ends at `end`, and `plan` follows.

    `unsafe` marks one that no quorum stands behind, `short_logs` one whose end too few whole logs have given. Such an
    end may lie below what is deleted: what comes behind it is not.
    """
    assert end.offset >= descriptor.start_offset
    return pb.EpochDecision(
        epoch=descriptor.epoch,
        end_offset=end.offset,
        end_digest=end.digest,
        previous_hash=previous_hash,
        unsafe=unsafe,
        short_logs=short_logs,
        compactions=map(pb.Compaction.FromString, plan.compactions),
        deleted_below=min(deleted_below, end.offset),
        next=pb.EpochDescriptor(
            epoch=descriptor.epoch + 1,
            owner=plan.owner,
            owner_incarnation=owner_incarnation,
            placement=plan.placement,
            ack_quorum=plan.ack_quorum,
            start_offset=end.offset,
            flush=plan.flush,
        ),
    ).SerializeToString()


def choose_value(
    promises: Sequence[Promise],
    *,
    descriptor: pb.EpochDescriptor,
    previous_hash: bytes,
    plan: Plan | None,
    owner_incarnation: int,
    deleted_below: int = 0,
    unsafe: bool = False,
    short_logs: bool = False,
) -> bytes:
    """Return the value to propose for the epoch of `descriptor`: adopted, or made from the promises and `plan`.

    `unsafe` is an operator's word that more promises will not come: those that there are must do, and the value is
    marked. One that another such recovery had marked is kept as it is: two of them about one epoch would stop both.
    `deleted_below` is what the decision before says; the promises may tell of more.
    `short_logs` says that fewer than a seal quorum of the logs are surely whole: the longest wins, and that is marked.

    Raises:
        AssertionError: fewer promises than the seal quorum, or no plan where one is needed; the caller must not
            ask before it has them.
    """
    promised = len({promise.node_id for promise in promises})
    assert promised >= (1 if unsafe else seal_quorum(len(descriptor.placement), descriptor.ack_quorum)), (
        "an epoch's end is not known before a seal quorum has promised"
    )
    accepted = [promise for promise in promises if promise.accepted is not None]
    deleted_below = max(deleted_below, *(promise.deleting_below for promise in promises))
    if accepted:
        newest = max(accepted, key=lambda promise: ballot_key(promise.accepted or pb.Ballot()))
        value = pb.EpochDecision.FromString(newest.accepted_value) if unsafe else None
        if value is None or value.unsafe:
            return newest.accepted_value
        end = Position(value.end_offset, value.end_digest)
        deleted_below = max(deleted_below, value.deleted_below)
    else:
        longest = max(promises, key=lambda promise: promise.end_offset)
        end = Position(longest.end_offset, longest.end_digest)
    assert plan is not None
    return decision_value(
        descriptor,
        end,
        previous_hash,
        plan,
        owner_incarnation,
        deleted_below=deleted_below,
        unsafe=unsafe,
        short_logs=short_logs and not accepted,
    )
