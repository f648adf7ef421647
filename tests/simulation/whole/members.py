"""A member of a group in the world of whole nodes: a client's process, which any node may be asked by.

It runs the shipped `Membership`, asks for the group's position before it begins with a partition, reads, commits, and
commits once more before it gives a partition up. It may be paused, die and come back as another process.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from tidelog.groups.membership import Membership, PartitionId
from tidelog_proto import broker_pb2 as pb

if TYPE_CHECKING:
    from tests.simulation.whole.groups import Groups

GROUP = "g"
SESSION_S = 2.5
WAIT_MS = 800
AGAIN_US = 60_000
PAUSED_US = 100_000
LATE_COMMITS = 0.15
"""So that some come when their partition is another member's."""
ANSWER_US = 1_000_000
"""Timeout of an answer, in addition to the time for which the coordinator may hold it."""


class Reader:
    """See the module. `reading`: where it is in each partition. Its commits have its id for a note."""

    def __init__(self, groups: Groups, name: str, wish: pb.GroupWish) -> None:
        self.name = name
        self._groups = groups
        self._clock = groups.world.clock
        self._wish = wish
        self._starts = 0
        self.membership: Membership | None = None
        self.reading: dict[PartitionId, int] = {}
        self.paused = False
        self._asked_us = -1
        """Time of the pending question; -1 without one."""
        self._ending: set[PartitionId] = set()
        self._found: dict[PartitionId, int] = {}
        """Partition to begin with -> number of the newest question about the group's position."""
        self._questions = 0

    @property
    def pattern(self) -> str:
        """Options besides the group's topic."""
        return self._wish.pattern

    @property
    def _now_s(self) -> float:
        return self._clock.now_us / 1e6

    # ------------------------------------------------------------------------------------------ processes

    def begin(self) -> None:
        """Start another process."""
        self._starts += 1
        wish = pb.GroupWish(born_us=self._clock.now_us)
        wish.MergeFrom(self._wish)
        member_id = f"{self.name}x{self._starts}x".ljust(16, "0")
        before = self.membership  # of this process, which reads nothing under that id any more
        ended_id = before.member_id if before is not None and before.is_joined else ""
        self.membership = Membership(GROUP, member_id, wish, SESSION_S, ended_id)
        self.reading, self._ending, self._found = {}, set(), {}
        self._asked_us = -1
        self._ask(self.membership)

    def end(self, *, says_so: bool) -> None:
        """The process ends: with a last word, or just so."""
        membership, self.membership = self.membership, None
        self.reading = {}
        if membership is not None and says_so:
            last = membership.stopping() if self._wish.instance_id else membership.leaving()
            self._groups.ask(pb.Envelope(group_heartbeat=last), lambda _: None)

    def is_over(self) -> bool:
        """Whether it has stopped by its own clock, even if it has not detected it yet."""
        return self.membership is None or self.membership.is_over(self._now_s)

    def _check_session(self) -> None:
        if self.membership is not None and self.membership.is_over(self._now_s):
            self.begin()

    def _when_awake(self, membership: Membership, action: Callable[[], None]) -> None:
        """Execute something in this process, when the process runs, unless its session has ended by then."""
        if membership is not self.membership:
            return
        if self.paused:
            self._clock.after(PAUSED_US, partial(self._when_awake, membership, action))
            return
        self._check_session()
        if membership is self.membership:
            action()

    # ------------------------------------------------------------------------------------------ questions

    def _ask(self, membership: Membership) -> None:
        self._when_awake(membership, partial(self._ask_now, membership))

    def _ask_now(self, membership: Membership) -> None:
        if self._asked_us >= 0:
            return
        sent_us = self._asked_us = self._clock.now_us

        def answered(answer: pb.Envelope) -> None:
            self._when_awake(membership, lambda: self._take(membership, answer, sent_us))

        self._groups.ask(pb.Envelope(group_heartbeat=membership.heartbeat(wait_ms=WAIT_MS)), answered)

        def give_up() -> None:
            if self._asked_us == sent_us:
                self._asked_us = -1
                self._ask(membership)

        late_us = ANSWER_US + WAIT_MS * 1000
        self._clock.after(late_us, lambda: self._when_awake(membership, give_up))

    def _take(self, membership: Membership, answer: pb.Envelope, sent_us: int) -> None:
        is_awaited = self._asked_us == sent_us
        if is_awaited:
            self._asked_us = -1
        if answer.HasField("error"):
            if answer.error.code == pb.MEMBER_FENCED:
                self.begin()
                return
            self._groups.check_retriable(answer.error)
            if is_awaited:
                self._clock.after(AGAIN_US, lambda: self._ask(membership))
            return
        change = membership.answered(answer.group_heartbeat_reply, sent_at=sent_us / 1e6, now=self._now_s)
        for place in sorted(self._found.keys() - membership.assigned):
            del self._found[place]  # an answer may be outdated when the partition returns
        for place in sorted(change.revoked - self._ending):
            self._give_up(membership, place)
        for place in sorted(change.assigned - self._found.keys()):
            self._find(membership, place)
        self._ask(membership)

    # ------------------------------------------------------------------------------------------ partitions

    def _find(self, membership: Membership, place: PartitionId) -> None:
        """Ask for the group's position in a partition until a node knows it, then begin there."""
        if place not in membership.assigned or place in membership.held:
            self._found.pop(place, None)
            return
        self._questions += 1
        number = self._found[place] = self._questions
        entry = pb.CommittedEntry(topic_id=place[0], partition=place[1])

        def answered(answer: pb.Envelope) -> None:
            if answer.HasField("committed_reply"):
                (result,) = answer.committed_reply.results
                self._when_awake(membership, lambda: self._read(membership, place, number, result.next_offset))

        def again() -> None:
            if self._found.get(place) == number:
                self._find(membership, place)

        self._groups.ask(pb.Envelope(committed=pb.Committed(group=GROUP, entries=[entry])), answered)
        self._clock.after(ANSWER_US, lambda: self._when_awake(membership, again))

    def _read(self, membership: Membership, place: PartitionId, number: int, offset: int) -> None:
        if self._found.get(place) != number:
            return
        del self._found[place]
        if membership.begin([place], now=self._now_s):
            self.reading[place] = offset
            self._groups.begins(self, place, offset)

    def _give_up(self, membership: Membership, place: PartitionId) -> None:
        """Commit, then read no longer; that may take a while."""
        self._ending.add(place)

        def ended() -> None:
            if place in self._ending:
                self._ending.discard(place)
                if place not in membership.assigned:
                    self.reading.pop(place, None)
                    membership.released([place])
                    self._ask(membership)

        self._commit(membership, place, lambda: self._when_awake(membership, ended))
        self._clock.after(self._clock.random.randrange(400_000), lambda: self._when_awake(membership, ended))

    def work(self) -> None:
        """Read on, and commit now and then."""
        if self.membership is None or self.paused:
            return
        self._check_session()
        for place in self.reading:
            self.reading[place] += self._clock.random.randrange(3)
        if self.reading:
            self._commit(self.membership, self._clock.random.choice(sorted(self.reading)), lambda: None)

    def _commit(self, membership: Membership, place: PartitionId, done: Callable[[], None]) -> None:
        if place not in self.reading:
            done()
            return
        offset = self.reading[place]
        asked = pb.Commit(
            group=GROUP,
            member_id=membership.member_id,
            generation=membership.generation,
            entries=[
                pb.CommitEntry(topic_id=place[0], partition=place[1], next_offset=offset, note=membership.member_id)
            ],
        )

        def answered(answer: pb.Envelope) -> None:
            if answer.HasField("commit_reply"):
                (result,) = answer.commit_reply.results
                if not result.HasField("error"):
                    self._groups.committed(self, place, offset, stands=result.next_offset)
            done()

        self._groups.ask(pb.Envelope(commit=asked), answered, late=LATE_COMMITS)
