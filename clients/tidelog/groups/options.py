"""Options of a group membership."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, Literal, get_args

from tidelog.errors import InvalidRequestError
from tidelog.model import TopicPartition
from tidelog.requests.conversions import checked_group
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.limits import GROUP_SESSION_MS_MAX, GROUP_SESSION_MS_MIN, INSTANCE_ID_BYTES_MAX

Assignor = Literal["sticky", "range", "round_robin", "load"]

CommitWhen = Literal["auto", "processed", "manual"]

Takeover = Literal["wait", "at_once"]

OnPartitions = Callable[[frozenset[TopicPartition]], Awaitable[None] | None]
"""Function called with partitions; an awaitable result is awaited."""

SESSION_TIMEOUT_S_DEFAULT: Final = 10.0
POLL_TIMEOUT_S_DEFAULT: Final = 300.0
COMMIT_INTERVAL_S_DEFAULT: Final = 5.0

ASSIGNORS: Final[dict[Assignor | None, pb.Assignor]] = {
    None: pb.ASSIGNOR_UNSPECIFIED,
    "sticky": pb.STICKY,
    "range": pb.RANGE,
    "round_robin": pb.ROUND_ROBIN,
    "load": pb.BY_LOAD,
}


@dataclass(frozen=True, slots=True)
class Group:
    """A consumer group and the options of the membership, for `client.consumer(..., group=Group("g", ...))`.

    Args:
        name: name of the group.
        commit: when positions are committed. "auto": those of processed records, every `commit_interval_s`, at
            revocation and on close; "processed": those of processed records, before each batch or `poll`, at revocation
            and on close; "manual": only by `commit()`, except positions after skipped records, which the member commits
            once every record delivered before them is committed.
        commit_interval_s: interval of commits with "auto".
        assignor: how the group distributes partitions: "sticky" (even, with few moves), "range", "round_robin" or
            "load" (even by the bytes per second that members measure; partitions also move when those change). The last
            member that sets an assignor decides for the group. None: keep the group's assignor.
        instance_id: id of a static member, constant across restarts of the process; its partitions are reserved for a
            session while it restarts. None: each start of the process is a new member.
        session_timeout_s: 0.5 to 1800; partitions are reassigned after the coordinator has received no heartbeat for
            this time.
        poll_timeout_s: partitions are reassigned after the application has not asked for records for this time.
        on_assigned: called (and awaited, if possible) with partitions before any of their records are delivered.
        on_revoked: called with revoked partitions after their last record was delivered; `commit()` still accepts their
            positions.
        on_lost: called with partitions that other members may already read.
        takeover: when this process gets the partitions of an earlier one with the same `instance_id` that has not
            stopped cleanly. "wait": after the earlier one has released them or its session has expired, so that two
            processes never read a partition at a time; "at_once": immediately; until the earlier session expires, both
            may deliver the same records.

    Raises:
        InvalidRequestError: an option has an invalid value.
    """

    name: str
    commit: CommitWhen = "auto"
    commit_interval_s: float = COMMIT_INTERVAL_S_DEFAULT
    assignor: Assignor | None = None
    instance_id: str | None = None
    session_timeout_s: float = SESSION_TIMEOUT_S_DEFAULT
    poll_timeout_s: float = POLL_TIMEOUT_S_DEFAULT
    on_assigned: OnPartitions | None = None
    on_revoked: OnPartitions | None = None
    on_lost: OnPartitions | None = None
    takeover: Takeover = "wait"

    def __post_init__(self) -> None:
        checked_group(self.name)
        if self.commit not in get_args(CommitWhen):
            raise InvalidRequestError(f"commit must be one of {get_args(CommitWhen)}, got {self.commit!r}")
        if self.assignor not in ASSIGNORS:
            raise InvalidRequestError(f"assignor must be one of {get_args(Assignor)} or None, got {self.assignor!r}")
        if self.takeover not in get_args(Takeover):
            raise InvalidRequestError(f"takeover must be one of {get_args(Takeover)}, got {self.takeover!r}")
        if not GROUP_SESSION_MS_MIN <= self.session_timeout_s * 1000 <= GROUP_SESSION_MS_MAX:
            raise InvalidRequestError(
                f"session_timeout_s must be {GROUP_SESSION_MS_MIN / 1000:g} to {GROUP_SESSION_MS_MAX / 1000:g}, "
                f"got {self.session_timeout_s:g}"
            )
        if not (self.poll_timeout_s > 0 and self.commit_interval_s > 0):  # `not > 0` also refuses NaN
            raise InvalidRequestError(
                f"poll_timeout_s and commit_interval_s must be > 0, got {self.poll_timeout_s:g} and "
                f"{self.commit_interval_s:g}"
            )
        if self.instance_id is not None and not _is_name(self.instance_id):
            raise InvalidRequestError(
                f"instance_id must be text of 1 to {INSTANCE_ID_BYTES_MAX} bytes, got {self.instance_id!r:.100}"
            )
        for what, callback in (
            ("on_assigned", self.on_assigned),
            ("on_revoked", self.on_revoked),
            ("on_lost", self.on_lost),
        ):
            if callback is not None and not callable(callback):
                raise InvalidRequestError(f"{what} must be a function of partitions or None, got {callback!r}")


def _is_name(instance_id: object) -> bool:
    try:
        return isinstance(instance_id, str) and 1 <= len(instance_id.encode()) <= INSTANCE_ID_BYTES_MAX
    except UnicodeEncodeError:  # the text has an unpaired surrogate
        return False


def group_of(group: str | Group | None) -> Group | None:
    """Return the group options for a name or a `Group`; None for None.

    Raises:
        InvalidRequestError: the argument has another type.
    """
    if group is None or isinstance(group, Group):
        return group
    if not isinstance(group, str):
        raise InvalidRequestError(f"group must be a name, a Group(...) or None, got {group!r}")
    return Group(group)


def member_options(group: Group | None, *, is_shared: bool) -> Group | None:
    """Return the options of the membership; None if the consumer is not a member.

    Raises:
        InvalidRequestError: options are set although the application chooses the partitions.
    """
    if is_shared or group is None:
        return group
    if group != Group(group.name):
        raise InvalidRequestError(
            "a consumer with explicit partitions, a `start` by partition, or neither topics nor a pattern does not "
            f"join a group, so the options of Group(...) have no effect; pass group={group.name!r} instead"
        )
    return None
