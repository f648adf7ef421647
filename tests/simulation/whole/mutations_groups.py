"""Ways to get the coordinator of groups wrong, and the log that it writes to: in the worlds with a group."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tests.simulation.mutants import Replacement

from tidelog_broker.core.groups.consumer_group import ConsumerGroup
from tidelog_broker.core.topics import PartitionKey
from tidelog_broker.groups.coordinated_group import CoordinatedGroup
from tidelog_broker.groups.coordinator import Coordinator
from tidelog_broker.metadata.state_log import OffsetsLog
from tidelog_proto import broker_pb2 as pb

Replacements = Sequence[Replacement]


def begins_without_members() -> Replacements:
    """A coordinator begins as if its groups had no members."""
    restart = ConsumerGroup.restart

    def forgets(self: ConsumerGroup, record: pb.GroupRecord | None, *, in_doubt: bool = False) -> None:
        empty = None if record is None else pb.GroupRecord(group=record.group, revision=record.revision)
        restart(self, empty, in_doubt=in_doubt)

    return [(ConsumerGroup, "restart", forgets)]


def commits_unchecked() -> Replacements:
    """Commits of any generation are accepted."""

    def may_commit(self: Coordinator, group: str, member_id: str, generation: int) -> Callable[[PartitionKey], bool]:
        del self, group, member_id, generation
        return lambda _: True

    return [(Coordinator, "may_commit", may_commit)]


def positions_not_loaded() -> Replacements:
    """A coordinator that takes over knows the members of its groups, and no positions."""
    ready = Coordinator.ready

    async def forgets(self: Coordinator, *, confirmed: bool = False) -> int:
        before = self._epoch
        epoch = await ready(self, confirmed=confirmed)
        if epoch != before:
            self._positions.forget_all()
        return epoch

    return [(Coordinator, "ready", forgets)]


def log_not_read() -> Replacements:
    """An owner answers with an incomplete read of its log."""

    async def ready(self: OffsetsLog, *, confirmed: bool = False) -> int:
        access = self._partition.access
        await (access.confirm_owner() if confirmed else access.ensure_active())
        return self._partition.state.epoch

    return [(OffsetsLog, "ready", ready)]


def members_found_have_no_session() -> Replacements:
    """A coordinator that takes over waits for its members without a limit."""

    def begin(self: Coordinator, epoch: int) -> None:
        self._end()
        self._epoch = epoch
        self._topics_seen = self._topics.changes
        for record in self._records.records():
            if record.members:
                self._groups[record.group] = self._coordinated_group(record.group)

    return [(Coordinator, "begin", begin)]


def told_before_it_is_durable() -> Replacements:
    """Members get decisions that are on their way to the quorum."""

    async def make_durable(self: CoordinatedGroup, record: pb.GroupRecord) -> None:
        self._tasks.spawn(self._write(record), "a record without waiting callers")  # type: ignore[arg-type]

    return [(CoordinatedGroup, "_make_durable", make_durable)]
