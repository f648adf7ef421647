"""The coordinator of the simulated group: the shipped group and sessions, and the behavior of the shipped shell."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar
from unittest.mock import patch

from tests.simulation.groups.log import Node, Positions

from tidelog.groups.membership import PartitionId
from tidelog_broker.core.groups import assignors, consumer_group, rebalancing
from tidelog_broker.core.groups.consumer_group import ConsumerGroup, fenced
from tidelog_broker.core.groups.member_access import UNRESTRICTED
from tidelog_broker.core.groups.partition_lists import keys_of, partitions_of
from tidelog_broker.core.groups.positions import OffsetKey
from tidelog_broker.core.groups.steps import Steps
from tidelog_broker.groups.sessions import MemberKey, Sessions
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import NATURE, ProtocolError

if TYPE_CHECKING:
    from tests.simulation.groups.world import World

T = TypeVar("T")

GROUP: Final = "g"
SESSION_S: Final = 2.0
TICK_US: Final = 50_000
QUESTION_TIMEOUT_US: Final = 1_000_000
STEPS_MAX = 40
"""The largest number of steps of a computation of a group before other events happen."""
PAUSE_US = 3_000
"""The longest time of other events between steps."""
DECIDING_US = 500
"""How long a join or leave waits before it looks again whether the target is still computed."""


@contextmanager
def short_steps() -> Iterator[None]:
    """Let each step of a computation handle a single partition: the groups are small."""
    with ExitStack() as patches:
        for module in (assignors, consumer_group, rebalancing):
            patches.enter_context(patch.object(module, "STEP", 1))
        yield


@dataclass
class Waiting:
    """A heartbeat whose answer is delayed."""

    asked: pb.GroupHeartbeat
    answer: Callable[[pb.GroupHeartbeatReply | ProtocolError], None]
    until_us: int


class Coordinator:
    """The shipped shell's behavior without an event loop."""

    def __init__(self, world: World, number: int, node: Node | None = None) -> None:
        self.world = world
        self.number = number
        self.node = world.log.takes_over(node)
        self.positions = Positions(self.node, partial(world.log.write, number))
        self.group = ConsumerGroup(GROUP, lambda _wish, _reader: dict(world.topics), lambda _: UNRESTRICTED)
        self.sessions = Sessions()
        self.waiting: dict[str, Waiting] = {}
        self.writing = False
        self.paused = False
        self.group.restart(self.node.records.get(GROUP))
        for member_id in self.group.member_ids:
            self._hear(member_id)
        self._tick()

    @property
    def stands(self) -> bool:
        return self.world.log.owner == self.number and not self.paused

    def ask(self, asked: pb.GroupHeartbeat, answer: Callable[[pb.GroupHeartbeatReply | ProtocolError], None]) -> None:
        if not self.stands:
            return
        if self.group.is_deciding and (asked.leave or asked.stopped or asked.HasField("join")):
            self.world.clock.after(DECIDING_US, lambda: self.ask(asked, answer))
            return
        if asked.leave or asked.stopped:
            if (self.group.stop if asked.stopped else self.group.remove)(asked.member_id):
                self.settle()
            if self.group.member(asked.member_id) is not None:
                self._hear(asked.member_id)
            return
        if asked.HasField("join"):
            try:
                replaced = self.group.join(asked.member_id, asked.join, ended=asked.ended_member_id)
            except ProtocolError as error:
                answer(error)
                return
            self.sessions.forget(MemberKey(GROUP, other) for other in replaced)
        if self.group.member(asked.member_id) is None:
            answer(fenced(GROUP))
            return
        self._hear(asked.member_id)
        if not asked.HasField("join"):
            self.group.note_loads(
                asked.member_id, {(load.topic_id, load.partition): load.bytes_per_s for load in asked.loads}
            )
            self.group.report(asked.member_id, seen_revision=asked.seen_revision, held=keys_of(asked.held))
        wait_us = asked.wait_ms * 1000 if not asked.HasField("join") else QUESTION_TIMEOUT_US
        self.waiting[asked.member_id] = Waiting(asked, answer, self.world.clock.now_us + wait_us)
        self.settle()
        self.look()

    def commit(self, sent: Sent, answer: Callable[[int | None], None]) -> None:
        """Take a commit; `answer` is called with the resulting position, or None."""
        if not self.stands:
            return
        try:
            may_commit = self.group.may_commit(sent.member_id, sent.generation)(sent.place)
        except ProtocolError:
            may_commit = False
        if not may_commit:
            answer(None)
            return
        self.world.committing(sent)
        key = OffsetKey(GROUP, *sent.place)
        self.positions.commit(key, sent.offset, now_us=self.world.clock.now_us, answer=answer)

    def position(self, place: PartitionId) -> int:
        """Return where the group is in a partition."""
        stored = self.node.positions.get(OffsetKey(GROUP, *place))
        return 0 if stored is None else stored.next_offset

    def settle(self) -> None:
        """Write the decisions, one record after the other."""
        if not self.writing:
            self.writing = True
            self._compute(
                self.group.decide_steps(), lambda _: self._compute(self.group.record_steps(), self._write_next)
            )

    def _compute(self, steps: Steps[T], then: Callable[[T], None]) -> None:
        """Run a computation, with other events between some of its steps, and give its result to `then`."""
        for _ in range(self.world.clock.random.randrange(1, STEPS_MAX)):
            try:
                next(steps)
            except StopIteration as end:
                then(end.value)
                return

        def resume() -> None:
            if self.world.log.owner == self.number:
                self._compute(steps, then)

        self.world.clock.after(self.world.clock.random.randrange(PAUSE_US), resume)

    def _write_next(self, record: pb.GroupRecord | None) -> None:
        if record is None:
            self.writing = False
            return

        def settled(error: ProtocolError | None) -> None:
            if error is None:
                self._compute(self.group.written_steps(record), go_on)
                return
            self.group.restart(self.node.records.get(GROUP), in_doubt=not NATURE[error.code].definite)
            for member_id in self.group.member_ids:
                if MemberKey(GROUP, member_id) not in self.sessions:
                    self._hear(member_id)
            go_on([])

        def go_on(_: list[str]) -> None:
            self.writing = False
            self.look()
            self.settle()

        self.world.log.write(self.number, [record], settled)

    def look(self) -> None:
        """Answer members with news, and members that have waited for long enough."""
        if not self.stands or self.group.in_doubt:
            return
        for member_id, waiting in list(self.waiting.items()):
            told = self.group.assignment_of(member_id)
            if self.group.member(member_id) is None:
                waiting.answer(fenced(GROUP))
            elif told is not None and told.revision > waiting.asked.seen_revision:
                reply = pb.GroupHeartbeatReply(revision=told.revision, generation=told.generation)
                reply.wants_loads = self.group.wants_loads
                reply.assigned.extend(partitions_of(told.assigned))
                waiting.answer(reply)
            elif told is not None and self.world.clock.now_us >= waiting.until_us:
                seen = waiting.asked.seen_revision
                waiting.answer(
                    pb.GroupHeartbeatReply(
                        revision=seen,
                        generation=told.generation,
                        unchanged=True,
                        wants_loads=self.group.wants_loads,
                    )
                )
            else:
                continue
            del self.waiting[member_id]

    def _hear(self, member_id: str) -> None:
        self.sessions.heard(MemberKey(GROUP, member_id), until=self.world.now_s + SESSION_S)

    def _tick(self) -> None:
        if self.world.log.owner != self.number:
            return
        if not self.paused:
            for who in self.sessions.expired(self.world.now_s) if not self.group.is_deciding else ():
                self.group.remove(who.member_id)
            self.group.check_topics()
            self.group.check_loads(self.world.now_s)
            self.settle()
            self.look()
        self.world.clock.after(TICK_US, self._tick)


@dataclass(frozen=True)
class Sent:
    """A sent commit. `tenure`: number of times that the partition has moved to another member."""

    member_id: str
    generation: int
    place: PartitionId
    offset: int
    tenure: int
