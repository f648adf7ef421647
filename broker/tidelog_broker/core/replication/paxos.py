"""Single-decree Paxos on the end of an epoch and its successor: the choice of the value, and quorum sizes.

SEAL is prepare, OPEN_EPOCH is accept, METADATA_UPDATE is learn. The proposer collects promises from a seal quorum. If
any of them contains an accepted value, the one with the highest ballot is proposed unchanged; otherwise the epoch ends
at the greatest durable offset among them. These functions have no network and no time; `candidate` passes them the
answers of the replicas.

In a recovery without a seal quorum, requested by an operator, it is unknown whether an accepted value was decided;
unreachable replicas may have decided another one. The accepted value is therefore not proposed unchanged: the new value
keeps the accepted end, because nothing after that was ever acknowledged in this epoch, and is marked as unsafe.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from tidelog_broker.core.replication.ports import Plan, Position
from tidelog_proto import broker_pb2 as pb


class BallotKey(NamedTuple):
    """A comparable ballot: the round first, then node and incarnation to break ties."""

    round: int
    node_id: str
    incarnation: int


@dataclass(frozen=True, slots=True)
class Promise:
    """A replica's answer to SEAL: the durable end of its log, and the value that it has accepted."""

    node_id: str
    end_offset: int
    end_digest: int
    accepted: pb.Ballot | None = None
    accepted_value: bytes = b""
    deleting_below: int = 0
    ceiling: int = 0
    """If a restart has lost the replica's copy: an offset at or above which it has acknowledged no record; else 0."""


def ballot_key(ballot: pb.Ballot) -> BallotKey:
    """Return `ballot` as a comparable key; an unset ballot is lower than any other."""
    return BallotKey(ballot.round, ballot.node_id, ballot.incarnation)


def seal_quorum(replicas: int, ack_quorum: int) -> int:
    """Return the number of promises that seal an epoch: such a set intersects every ack quorum."""
    assert 1 <= ack_quorum <= replicas
    return replicas - ack_quorum + 1


def without_undecided(promises: Sequence[Promise], ack_quorum: int) -> list[Promise]:
    """Return the promises of all replicas, and omit the accepted values in them that cannot be decided.

    An accept is durable although the log that it relied on may be lost. A decided value was accepted by an ack quorum,
    and all later proposals are that value, so a value that fewer than a quorum of all replicas have is not decided.
    """
    values = [promise.accepted_value for promise in promises if promise.accepted is not None]
    return [
        promise
        if promise.accepted is None or values.count(promise.accepted_value) >= ack_quorum
        else replace(promise, accepted=None, accepted_value=b"")
        for promise in promises
    ]


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
    lost_until: int = 0,
) -> bytes:
    """Return a serialized decision: the epoch of `descriptor` ends at `end`, and `plan` follows.

    Args:
        deleted_below: the delete offset; limited to `end`, which may be lower if `unsafe` or `short_logs` is set.
        unsafe: marks a decision without a quorum.
        short_logs: marks a decision whose end comes from too few complete logs.
        lost_until: records from `end` up to this offset are lost; ignored if it is not after `end`.
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
        lost_until=lost_until if lost_until > end.offset else 0,
        next=pb.EpochDescriptor(
            epoch=descriptor.epoch + 1,
            owner=plan.owner,
            owner_incarnation=owner_incarnation,
            placement=plan.placement,
            ack_quorum=plan.ack_quorum,
            start_offset=end.offset,
            flush=plan.flush,
            engine=plan.engine,
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
    lost_until: int = 0,
) -> bytes:
    """Return the value to propose for the epoch of `descriptor`: an accepted one, or one from promises and `plan`.

    Args:
        plan: the next epoch; None if a value was accepted.
        deleted_below: the delete offset in the previous decision; promises may contain a higher one.
        unsafe: whether an operator has confirmed that no more promises will come: fewer than a quorum are sufficient,
            and the value is marked. A value already marked by another such recovery is kept unchanged, because two
            unsafe decisions about one epoch would halt the replicas that learn both.
        short_logs: whether fewer than a seal quorum of the logs are certainly complete: the longest one determines the
            end, and the value is marked. Records after the end are lost, up to the highest ceiling of a lost copy.
        lost_until: that of the previous decision; the owner of this epoch may not have filled all offsets below it.

    Raises:
        AssertionError: fewer promises than the seal quorum, or no plan where one is needed.
    """
    promised = len({promise.node_id for promise in promises})
    assert promised >= (1 if unsafe else seal_quorum(len(descriptor.placement), descriptor.ack_quorum)), (
        "the end of an epoch is unknown before a seal quorum has promised"
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
        lost_until = max(lost_until, value.lost_until)
    else:
        longest = max(promises, key=lambda promise: promise.end_offset)
        end = Position(longest.end_offset, longest.end_digest)
    if short_logs or unsafe:
        lost_until = max(lost_until, *(promise.ceiling for promise in promises))
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
        lost_until=lost_until,
    )
