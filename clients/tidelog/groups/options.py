"""What a member of a consumer group was asked for."""

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
"""Is told of partitions; what it returns is awaited if it can be."""

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
    """A group that a consumer is a member of, and how; `client.consumer(..., group="g")` takes what stands here.

    Args:
        name: the group's.
        commit: "auto": every `commit_interval_s`, when partitions go to others and at the end, what you have asked
            past; "processed": before each batch (or `poll`) all that came before it, and as partitions go; "manual":
            only by `commit()`.
        commit_interval_s: see there.
        assignor: how the group shares partitions: "sticky" (even, and few move), "range", "round_robin" or "load" (even
            by the bytes per second that members measure; partitions also move when those change); the last member that
            says it decides for all. None: as the group has it.
        instance_id: the same at every start of this process: its partitions wait for it for a session.
        session_timeout_s: 0.5 to 1800; others get your partitions when the cluster has not heard of you for so long.
        poll_timeout_s: and when you have asked for nothing for so long.
        on_assigned: called (and awaited, if that can be) with partitions before anything of them is handed out.
        on_revoked: the same with partitions that are given up, when nothing more of them is handed out; `commit()`
            still takes their positions.
        on_lost: the same with partitions that others may have already.
        takeover: when this process gets the partitions of an earlier one with the same `instance_id` that has not said
            that it stopped. "wait": when that one has given them up, or its session is over, so that both never read
            a partition at a time; "at_once": immediately, and until that one's session is over both may hand out the
            same records.

    Raises:
        InvalidRequestError: one of them has no such value.
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
            raise InvalidRequestError(f"commit is one of {get_args(CommitWhen)}, not {self.commit!r}")
        if self.assignor not in ASSIGNORS:
            raise InvalidRequestError(f"assignor is one of {get_args(Assignor)}, not {self.assignor!r}")
        if self.takeover not in get_args(Takeover):
            raise InvalidRequestError(f"takeover is one of {get_args(Takeover)}, not {self.takeover!r}")
        if not GROUP_SESSION_MS_MIN <= self.session_timeout_s * 1000 <= GROUP_SESSION_MS_MAX:
            raise InvalidRequestError(
                f"session_timeout_s is {GROUP_SESSION_MS_MIN / 1000:g} to {GROUP_SESSION_MS_MAX / 1000:g}, "
                f"not {self.session_timeout_s:g}"
            )
        if not (self.poll_timeout_s > 0 and self.commit_interval_s > 0):  # NaN is neither
            raise InvalidRequestError("poll_timeout_s and commit_interval_s are above zero")
        if self.instance_id is not None and not _is_name(self.instance_id):
            raise InvalidRequestError(f"an instance_id is a text of 1 to {INSTANCE_ID_BYTES_MAX} bytes")
        for what, callback in (
            ("on_assigned", self.on_assigned),
            ("on_revoked", self.on_revoked),
            ("on_lost", self.on_lost),
        ):
            if callback is not None and not callable(callback):
                raise InvalidRequestError(f"{what} is a function of partitions or None, not {callback!r}")


def _is_name(instance_id: object) -> bool:
    try:
        return isinstance(instance_id, str) and 1 <= len(instance_id.encode()) <= INSTANCE_ID_BYTES_MAX
    except UnicodeEncodeError:  # half of a surrogate pair
        return False


def group_of(given: str | Group | None) -> Group | None:
    """Return a group that was given by its name, or as it is.

    Raises:
        InvalidRequestError: it is neither.
    """
    if given is None or isinstance(given, Group):
        return given
    if not isinstance(given, str):
        raise InvalidRequestError(f"group is a name, a Group(...) or None, not {given!r}")
    return Group(given)


def member_options(group: Group | None, *, is_shared: bool) -> Group | None:
    """Return what a consumer is asked for as a member; None for one that is none.

    Raises:
        InvalidRequestError: it chooses its partitions itself, so that what was asked for has no effect.
    """
    if is_shared or group is None:
        return group
    if group != Group(group.name):
        raise InvalidRequestError(
            "who chooses partitions himself is no member of a group, so a Group(...) has no effect: give its name"
        )
    return None
