"""A group's coordinators, its members, and a log in between: everything late, lost, repeated, paused or killed.

The shipped `ConsumerGroup` and `Sessions` run at whoever coordinates, the shipped `GroupRecords` and `GroupOffsets` at
every node (see `log`), the shipped `Membership` in every member. A target, a record and its answers are computed in
steps, between which heartbeats arrive; joins and leaves wait for a target, as in the shipped shell. A write to the log
comes about late, or not, or the log reports a failure and it comes about all the same. Coordinators change at any time,
and one that was paused answers nothing, as it confirms with a quorum that it is the owner before it does.

Invariants:
    G1  two members never read one partition at a time, those that are over by their own clocks excepted
    G2  a commit is taken from the member that has the partition, and was sent since it has it, and no other
    G3  a member begins where the partition's newest commit that was acknowledged is, or further on; a commit is
        acknowledged when it stands, or a later one does, and what stands never goes back
    G4  when all is calm every partition is read by one member, and each member has as many as any other, or one less
    G5  a member hands out nothing of a partition after another one has begun with it, whatever their instance ids are,
        unless that one's process, or an earlier successor, took over at once from the first
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from tests.simulation.clock import Clock
from tests.simulation.groups.coordinator import GROUP, QUESTION_TIMEOUT_US, SESSION_S, Coordinator, Sent, short_steps
from tests.simulation.groups.log import Log, Node
from tests.simulation.truth import ViolationError

from tidelog.groups.membership import Membership, PartitionId
from tidelog_broker.core.groups.positions import OffsetKey
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.errors import ProtocolError

TOPICS = (b"a" * 16, b"b" * 16, b"c" * 16)
WAIT_S = 0.6
LATE = 0.03
LATE_COMMITS = 0.2
"""So that some come when their partition has been with another member, and is back."""
LATE_ANSWERS = 0.1
"""So that some come when a later one has been carried out."""
LATE_US = 900_000
COUNT = 10_000
FAULTS_US = 20_000_000
REFUSED_US = 500_000
SUCCESSORS_MAX = 3
CALM_US = 30_000_000
CALM_BY_LOAD_US = 120_000_000
"""Loads are reported, and cause a new target about ten seconds after the last one, or a few such periods later."""
HEAVY = 1e6
"""Bytes per second of every second partition; of the others a thousandth."""
BY_LOAD_SEEDS = 3
"""Of four seeds this one shares by load."""
HAND_BACK_SEEDS = 1
"""In this one of four seeds the log goes to another node and back, while writes are pending."""


def load_of(place: PartitionId) -> float:
    """Return the read rate of a partition, in bytes per second."""
    return HEAVY if place[1] % 2 == 0 else HEAVY / 1000


@dataclass
class Reader:
    """A member's process, or several processes one after the other.

    Attributes:
        reading: where it is in each partition that it reads.
        at_once: whether it takes over at once from earlier processes of its instance.
        is_retired: whether no process of it is started any more.
        is_outrun: whether another process has taken over its instance, so that others may read its partitions.
    """

    world: World
    name: str
    instance_id: str = ""
    at_once: bool = False
    is_outrun: bool = False
    is_retired: bool = False
    born_us: int = 0
    ended_id: str = ""
    lives: int = 0
    membership: Membership | None = None
    reading: dict[PartitionId, int] = field(default_factory=dict[PartitionId, int])
    tenures: dict[PartitionId, int] = field(default_factory=dict[PartitionId, int])
    paused: bool = False
    asked_at: int = 0
    is_asking: bool = False
    ending: set[PartitionId] = field(default_factory=set[PartitionId])

    def begin(self) -> None:
        if self.is_retired:
            return
        self.lives += 1
        if self.membership is None:  # a process begins
            self.born_us, self.ended_id, self.is_outrun = self.world.clock.now_us, "", False
            for other in self.world.readers:
                if self.at_once and other is not self and other.instance_id == self.instance_id:
                    other.is_outrun = True
        elif self.membership.is_joined:
            self.ended_id = self.membership.member_id
        wish = pb.GroupWish(
            topics=["t"],
            assignor=pb.BY_LOAD if self.world.is_by_load else pb.ASSIGNOR_UNSPECIFIED,
            instance_id=self.instance_id,
            session_timeout_ms=int(SESSION_S * 1000),
            born_us=self.born_us,
            takes_over_at_once=self.at_once,
        )
        member_id = f"{self.name}x{self.lives}".ljust(16, "0")
        self.membership = Membership(GROUP, member_id, wish, SESSION_S, self.ended_id)
        self.reading, self.ending = {}, set()
        self.is_asking = False
        self.ask()

    def end(self, *, says_so: bool) -> None:
        """The process ends: after a commit and a last word, or just so."""
        membership, self.membership = self.membership, None
        self.reading = {}
        if membership is not None and says_so:
            last = membership.stopping() if self.instance_id else membership.leaving()
            self.world.send(lambda: self.world.coordinator.ask(last, lambda _: None))

    def ask(self) -> None:
        membership = self.membership
        if membership is None or self.is_asking:
            return
        if self.paused:
            self.world.clock.after(100_000, self.ask)
            return
        self.check_session()
        if membership is not self.membership:
            return
        self.is_asking = True
        sent_at, number = self.world.now_s, self.world.clock.now_us
        self.asked_at = number
        loads = {place: load_of(place) for place in self.reading} if membership.wants_loads else {}
        said = membership.heartbeat(wait_ms=int(WAIT_S * 1000), loads=loads)

        def answered(reply: pb.GroupHeartbeatReply | ProtocolError) -> None:
            self.world.send(
                lambda: self.when_awake(lambda: self.take(membership, reply, sent_at, number)), late=LATE_ANSWERS
            )

        self.world.send(lambda: self.world.coordinator.ask(said, answered))
        self.world.clock.after(
            QUESTION_TIMEOUT_US + int(WAIT_S * 1e6), lambda: self.when_awake(lambda: self.give_up(number))
        )

    def give_up(self, number: int) -> None:
        if self.is_asking and self.asked_at == number:
            self.is_asking = False
            self.ask()

    def take(
        self, membership: Membership, reply: pb.GroupHeartbeatReply | ProtocolError, sent_at: float, number: int
    ) -> None:
        if membership is not self.membership:
            return
        if self.asked_at == number:
            self.is_asking = False
        if isinstance(reply, ProtocolError):
            if membership.is_joined:
                self.begin()
            else:  # another process has its instance, or the id has left
                self.reading = {}
                self.world.clock.after(REFUSED_US, lambda: self.begin_again(membership))
            return
        self.check_session()
        if membership is not self.membership:
            return
        change = membership.answered(reply, sent_at=sent_at, now=self.world.now_s)
        for place in sorted(change.revoked - self.ending):
            self.give_up_place(membership, place)
        for place in sorted(change.assigned):
            self.world.clock.after(
                self.world.clock.random.randrange(20_000),
                partial(self.when_awake, partial(self.read, membership, place)),
            )
        self.ask()

    def begin_again(self, membership: Membership) -> None:
        """Ask to join under another id, if the process still lives."""
        if membership is self.membership:
            self.begin()

    def give_up_place(self, membership: Membership, place: PartitionId) -> None:
        """Commit, then read no longer; the commit may take a while."""
        self.ending.add(place)

        def ended() -> None:
            if membership is self.membership and place in self.ending:
                self.ending.discard(place)
                if place not in membership.assigned:
                    self.reading.pop(place, None)
                    membership.released([place])
                    self.ask()

        self.commit(place, lambda _: self.when_awake(ended))
        self.world.clock.after(self.world.clock.random.randrange(400_000), lambda: self.when_awake(ended))

    def read(self, membership: Membership, place: PartitionId) -> None:
        """Begin with a partition, where the group is: that is asked of the coordinator, which answers exactly."""
        if membership is not self.membership:
            return
        if not self.world.coordinator.stands:  # asked again and again until it answers
            self.world.clock.after(50_000, partial(self.when_awake, partial(self.read, membership, place)))
            return
        if not membership.begin([place], now=self.world.now_s):
            return
        offset = self.reading[place] = self.world.coordinator.position(place)
        self.tenures[place] = self.world.begins(self, place, offset)

    def work(self) -> None:
        """Read on, and commit now and then."""
        if self.membership is None or self.paused:
            return
        self.check_session()
        for place in list(self.reading):
            self.world.hands_out(self, place)
            self.reading[place] += self.world.clock.random.randrange(3)
        if self.reading:
            self.commit(self.world.clock.random.choice(sorted(self.reading)), lambda _: None)

    def commit(self, place: PartitionId, done: Callable[[bool], None]) -> None:
        membership = self.membership
        if membership is None or place not in self.reading:
            return
        sent = Sent(membership.member_id, membership.generation, place, self.reading[place], self.tenures[place])

        def answered(stands: int | None) -> None:
            if stands is not None:
                self.world.committed(sent, stands)
            self.world.send(lambda: done(stands is not None))

        self.world.send(lambda: self.world.coordinator.commit(sent, answered), late=LATE_COMMITS)

    def check_session(self) -> None:
        membership = self.membership
        if membership is not None and membership.is_over(self.world.now_s):
            self.begin()

    def when_awake(self, action: Callable[[], None]) -> None:
        if self.paused:
            self.world.clock.after(100_000, lambda: self.when_awake(action))
        else:
            action()


class World:
    """See the module."""

    def __init__(self, seed: int) -> None:
        self.clock = Clock(seed)
        random = self.clock.random
        self.calm = False
        self.is_by_load = seed % 4 == BY_LOAD_SEEDS
        self.hands_back = seed % 4 == HAND_BACK_SEEDS
        self.topics = {topic: random.choice([1, 3, 8]) for topic in TOPICS[: random.choice([1, 2])]}
        self.loss = random.choice([0.0, 0.05, 0.2])
        self.acknowledged: dict[PartitionId, int] = {}
        self.tenures: dict[PartitionId, tuple[int, str]] = {}
        self.successors = 0
        self.log = Log(self)
        self.coordinator = Coordinator(self, 0)
        self.readers = [
            Reader(self, f"r{number}", instance_id=f"i{number}" if random.random() < 0.3 else "")
            for number in range(random.choice([1, 2, 4, 6]))
        ]

    @property
    def now_s(self) -> float:
        return self.clock.now_us / 1e6

    def send(self, arrive: Callable[[], None], *, late: float = LATE) -> None:
        """Let something arrive late, twice or not at all; `late`: how often very late."""
        random = self.clock.random
        times = 1 if self.calm else 0 if random.random() < self.loss else 2 if random.random() < 0.05 else 1
        for _ in range(times):
            mean_us = 2_000 if random.random() >= late or self.calm else LATE_US
            self.clock.after(int(random.expovariate(1.0) * mean_us), arrive)

    # ------------------------------------------------------------------------------------------- invariants

    def begins(self, reader: Reader, place: PartitionId, offset: int) -> int:
        """A member begins to read a partition; return its tenure, see `Sent`."""
        for other in self.readers:
            membership = other.membership
            if other is reader or membership is None or place not in other.reading:
                continue
            if not (reader.is_outrun or other.is_outrun) and not membership.is_over(self.now_s):
                raise ViolationError("G1", f"{reader.name} and {other.name} read {place} at {self.clock.now_us}")
        if offset < self.acknowledged.get(place, 0):
            raise ViolationError(
                "G3", f"{reader.name} begins {place} at {offset}, committed {self.acknowledged[place]}"
            )
        assert reader.membership is not None, "it lives"
        tenure, last = self.tenures.get(place, (0, ""))
        if reader.is_outrun:  # its partitions may already have another owner
            return tenure
        if last != reader.membership.member_id:  # giving up and taking back in between does not end a tenure
            tenure += 1
        self.tenures[place] = tenure, reader.membership.member_id
        return tenure

    def hands_out(self, reader: Reader, place: PartitionId) -> None:
        """A member hands out a record."""
        assert reader.membership is not None, "it lives"
        _, last = self.tenures.get(place, (0, ""))
        if last != reader.membership.member_id and not reader.is_outrun:
            raise ViolationError("G5", f"{reader.name} hands out of {place} at {self.clock.now_us}, which {last} reads")

    def committing(self, sent: Sent) -> None:
        """A commit is taken in."""
        tenure, last = self.tenures.get(sent.place, (0, ""))
        if sent.tenure < tenure:
            raise ViolationError("G2", f"{sent} is taken, and {last} has begun since, tenure {tenure}")
        for other in self.readers:
            membership = other.membership
            if membership is None or sent.place not in other.reading or membership.is_over(self.now_s):
                continue
            if membership.member_id != sent.member_id and other.is_outrun:
                continue
            if membership.member_id != sent.member_id:
                raise ViolationError("G2", f"{sent} is taken, and {membership.member_id} reads there")

    def committed(self, sent: Sent, stands: int) -> None:
        """A commit is acknowledged."""
        if stands < sent.offset:
            raise ViolationError("G3", f"{sent} is acknowledged, and {stands} stands")
        self.acknowledged[sent.place] = max(self.acknowledged.get(sent.place, 0), sent.offset)

    def stands(self, key: OffsetKey, before: pb.OffsetRecord | None, now: pb.OffsetRecord | None) -> None:
        """A position has come about, as some node reads the log."""
        if now is None or (before is not None and now.next_offset < before.next_offset):
            raise ViolationError("G3", f"the position in {key} goes back: {before}, {now}")

    # ---------------------------------------------------------------------------------------------- the run

    def run(self) -> None:
        """Let things go wrong, then let all be well, and see that all is read.

        Raises:
            ViolationError: an invariant broke.
        """
        with short_steps():
            self._run()

    def _run(self) -> None:
        for reader in self.readers:
            self.clock.after(self.clock.random.randrange(2_000_000), reader.begin)
        self._later(self._next_fault)
        self._work()
        self.clock.run_until(self.clock.now_us + FAULTS_US)
        self.calm = True
        newest = {each.instance_id: each for each in sorted(self.readers, key=lambda each: each.born_us)}
        for reader in list(self.readers):
            if reader.instance_id and newest[reader.instance_id] is not reader:
                reader.end(says_so=False)
                reader.is_retired = True
                self.readers.remove(reader)
        for reader in self.readers:
            reader.paused = False
            if reader.membership is None:
                reader.begin()
        self.coordinator.paused = False
        end_us = self.clock.now_us + (CALM_BY_LOAD_US if self.is_by_load else CALM_US)
        while fault := self._unsettled():
            if self.clock.now_us > end_us:
                raise ViolationError("G4", fault)
            self.clock.run_until(self.clock.now_us + 200_000)

    def _fail_over(self, node: Node | None = None) -> None:
        """Begin another epoch of the log, of a node or of any."""
        self.log.owner += 1
        self.coordinator = Coordinator(self, self.log.owner, node)

    def _unsettled(self) -> str:
        wanted = {(topic, number) for topic, count in self.topics.items() for number in range(count)}
        counts = [len(reader.reading) for reader in self.readers]
        read = [place for reader in self.readers for place in reader.reading]
        if sorted(read) != sorted(wanted):
            return f"{sorted(read)} are read, not {sorted(wanted)}"
        if self.is_by_load:
            loads = [sum(map(load_of, reader.reading)) for reader in self.readers]
            too_much = max(loads) > 1.3 * sum(loads) / len(loads)  # a moment more than a member is let have
            return f"uneven: {loads}" if too_much and max(loads) - min(loads) > 1.5 * HEAVY else ""
        return f"uneven: {counts}" if max(counts) - min(counts) > 1 else ""

    def _start_successor(self, reader: Reader) -> None:
        """Start another process of a static member, while the previous one runs, is paused or is unreachable."""
        if not reader.instance_id or reader.membership is None or self.successors == SUCCESSORS_MAX:
            return
        self.successors += 1
        name = f"s{self.successors}"
        successor = Reader(self, name, reader.instance_id, at_once=self.clock.random.random() < 0.25)
        self.readers.append(successor)
        successor.begin()

    def _work(self) -> None:
        for reader in self.readers:
            reader.work()
        self.clock.after(self.clock.random.randrange(200_000) + 1000, self._work)

    def _later(self, action: Callable[[], None]) -> None:
        self.clock.after(int(self.clock.random.expovariate(1.0) * 500_000), action)

    def _next_fault(self) -> None:
        if self.calm:
            return
        random = self.clock.random
        reader = random.choice(self.readers)
        kinds = ["kill", "leave", "pause", "pause", "failover", "failover", "stall", "grow", "delete", "snapshot"]
        kinds += ["successor", "hand back"] if self.hands_back else ["successor"]
        kind = random.choice(kinds)
        if kind == "successor":
            self._start_successor(reader)
        elif kind in {"kill", "leave"}:
            reader.end(says_so=kind == "leave")
            self._later(lambda: reader.begin() if reader.membership is None else None)
        elif kind == "pause":
            reader.paused = True
            self.clock.after(random.choice([300_000, 1_500_000, 4_000_000]), lambda: setattr(reader, "paused", False))
        elif kind == "failover":
            self._fail_over()
        elif kind == "hand back":
            first = self.log.node
            self.log.hold()
            self.clock.after(random.randrange(300_000), self._fail_over)
            self.clock.after(random.randrange(300_000, 900_000), lambda: self._fail_over(first))
        elif kind == "stall":
            coordinator = self.coordinator
            coordinator.paused = True
            self.clock.after(random.choice([300_000, 3_000_000]), lambda: setattr(coordinator, "paused", False))
        elif kind == "snapshot":
            self.log.snapshot()
        elif kind == "grow":
            topic = random.choice(list(self.topics) or list(TOPICS))
            self.topics[topic] = min(self.topics.get(topic, 0) + random.choice([1, 2]), 12)
        elif len(self.topics) > 1:
            del self.topics[random.choice(list(self.topics))]
        self._later(self._next_fault)
