"""A consumer group whose members use any node of the world of whole nodes, and its invariants.

Invariants, as in `tests/simulation/groups/world.py`, of shipped nodes under the faults of this world:
    G1  two members never read one partition at a time, those that are over by their own clocks excepted
    G2  no commit is stored in the log of a member after another one has begun with the partition
    G3  a member begins where the newest commit is that was acknowledged by then, or further on; and a commit is
        answered with the requested position, or a later one
    G4  when all is calm every partition is read by one member, and each member has as many as any other, or one less
    G5  of a revision of the group one record exists, at whichever node
    G6  of a revision of a position one record is written, and a higher revision never has a lower position
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, cast

from tests.simulation.whole.members import AGAIN_US, GROUP, SESSION_S, Reader
from tests.simulation.whole.network import Incoming

from tidelog.groups.membership import PartitionId
from tidelog_broker.wire.connection import Connection, Request
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.wire.frames import Frame

if TYPE_CHECKING:
    from tests.simulation.whole.node_process import NodeProcess
    from tests.simulation.whole.world import World

TOPIC = "grouped"
FAULT_MS = 700
WORK_US = 150_000
LOSS = 0.05
LATE = 0.03
_LEGAL = frozenset({pb.SHUTTING_DOWN, pb.TIMED_OUT, pb.STORAGE_FAILED, pb.QUORUM_LOST, pb.LIMBO, pb.DISK_FULL})
"""Allowed answers besides retriable ones: of failing nodes."""


class Groups:
    """See the module."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._random = world.clock.random
        self._partitions = self._random.choice([1, 3, 8])
        self._acknowledged: dict[PartitionId, int] = {}
        self._last: dict[PartitionId, str] = {}
        """Which member began with a partition last."""
        self._applied: set[tuple[PartitionId, int]] = set()
        self._stood: dict[int, bytes] = {}
        self._written: dict[PartitionId, dict[int, pb.OffsetRecord]] = {}
        """Position by revision, as any node has applied it."""
        self._is_made = False
        self.commits = 0
        pattern = self._random.choice(["", "t[0-9]+"])
        self.readers = [self._reader(number, pattern) for number in range(self._random.choice([2, 3, 5]))]

    def _reader(self, number: int, pattern: str) -> Reader:
        wish = pb.GroupWish(topics=[TOPIC], pattern=pattern, session_timeout_ms=int(SESSION_S * 1000))
        if self._random.random() < 0.3:
            wish.instance_id = f"i{number}"
        return Reader(self, f"r{number}", wish)

    def start(self) -> None:
        """Begin."""
        self._make()
        for reader in self.readers:
            self.world.clock.after(self._random.randrange(3_000_000), reader.begin)
        self._later()
        self._work()

    # ------------------------------------------------------------------------------------------ questions

    def ask(self, envelope: pb.Envelope, answered: Callable[[pb.Envelope], None], *, late: float = LATE) -> None:
        """Ask any node; question and answer come late, or not at all. `late`: how often the question is very late."""
        raw = envelope.SerializeToString()

        def arrives() -> None:
            processes = [process for process in self.world.processes() if process.is_up]
            if processes:
                self._dispatch(self._random.choice(processes), raw, answered)

        self._travel(arrives, late=late)

    def _dispatch(self, process: NodeProcess, raw: bytes, answered: Callable[[pb.Envelope], None]) -> None:
        def answer(envelope: pb.Envelope, _: bytes) -> None:
            said = envelope.SerializeToString()
            self._travel(lambda: answered(pb.Envelope.FromString(said)))

        connection = Incoming(process, answer, lambda _: None)
        connection.greeted = True
        request = Request(cast("Connection", connection), Frame(pb.Envelope.FromString(raw), memoryview(b"")), 0)
        process.run(lambda: process.node.server.dispatch(request))

    def _travel(self, arrive: Callable[[], None], *, late: float = LATE) -> None:
        if not self.world.calm and self._random.random() < LOSS:
            return
        mean_us = 1_000 if self.world.calm or self._random.random() >= late else 700_000
        self.world.clock.after(20 + int(self._random.expovariate(1.0) * mean_us), arrive)

    def check_retriable(self, error: pb.Error) -> None:
        """Check that a member gets an answer that it can act on."""
        if not error.retriable and error.code not in _LEGAL:
            self.world.checks.fail("G4", f"a member got {pb.ErrorCode.Name(error.code)}: {error.message}")

    def _make(self) -> None:
        """Create the topic, repeatedly until a node confirms that it exists."""
        config = pb.TopicConfig(partitions=self._partitions)

        def answered(answer: pb.Envelope) -> None:
            self._is_made |= answer.HasField("topic_reply") or answer.error.code == pb.TOPIC_EXISTS

        if not self._is_made:
            self.ask(pb.Envelope(topic_create=pb.TopicCreate(name=TOPIC, config=config)), answered)
            self.world.clock.after(1_000_000, self._make)

    # ------------------------------------------------------------------------------------------ events

    def _work(self) -> None:
        for reader in self.readers:
            reader.work()
        self.world.clock.after(self._random.randrange(WORK_US) + 1000, self._work)

    def _later(self) -> None:
        self.world.clock.after(1000 + int(self._random.expovariate(1.0) * FAULT_MS * 1000), self._next)

    def _next(self) -> None:
        if self.world.calm:
            return
        reader = self._random.choice(self.readers)
        kind = self._random.choice(["kill", "leave", "pause"])
        if kind == "pause":
            reader.paused = True
            pause_us = self._random.choice([300_000, 1_500_000, 4_000_000])
            self.world.clock.after(pause_us, lambda: setattr(reader, "paused", False))
        else:
            reader.end(says_so=kind == "leave")
            self.world.clock.after(self._random.randrange(1_500_000), partial(self._begin, reader))
        self._later()

    def calm_down(self) -> None:
        """All processes run from now on."""
        for reader in self.readers:
            reader.paused = False
            self.world.clock.after(AGAIN_US, partial(self._begin, reader))

    def _begin(self, reader: Reader) -> None:
        if reader.membership is None:
            reader.begin()

    # ------------------------------------------------------------------------------------------ invariants

    def begins(self, reader: Reader, place: PartitionId, offset: int) -> None:
        """A member begins with a partition."""
        for other in self.readers:
            if other is not reader and place in other.reading and not other.is_over():
                self.world.checks.fail("G1", f"{reader.name} and {other.name} read partition {place[1]}")
        if offset < self._acknowledged.get(place, 0) and not self._is_deleted(place[0]):
            self.world.checks.fail(
                "G3", f"{reader.name} begins {place[1]} at {offset}, committed {self._acknowledged[place]}"
            )
        assert reader.membership is not None, "it runs"
        self._last[place] = reader.membership.member_id

    def _is_deleted(self, topic_id: bytes) -> bool:
        """Whether a node knows that a topic is deleted: its positions are gone, and a member may not know yet."""
        records = [process.node.broker.topics.get(topic_id) for process in self.world.processes() if process.is_up]
        return any(record is not None and record.deleted for record in records)

    def committed(self, reader: Reader, place: PartitionId, offset: int, *, stands: int) -> None:
        """A commit is acknowledged."""
        self.commits += 1
        if stands < offset:
            self.world.checks.fail("G3", f"{reader.name} commits {offset} in {place[1]} and got the answer {stands}")
        self._acknowledged[place] = max(self._acknowledged.get(place, 0), offset)

    def position_stands(self, record: pb.OffsetRecord) -> None:
        """A node applies a position: before every grant after it in the log, so before a member begins there."""
        place = (record.topic_id, record.partition)
        if record.group == GROUP:
            self._check_order(place, record)
        if record.group != GROUP or (place, record.revision) in self._applied:
            return
        self._applied.add((place, record.revision))
        if (last := self._last.get(place, record.note)) != record.note:
            self.world.checks.fail("G2", f"{record.note} commits for {place[1]}, and {last} has begun there since")

    def _check_order(self, place: PartitionId, record: pb.OffsetRecord) -> None:
        """Check that positions grow with their revisions, of which none is written twice."""
        written = self._written.setdefault(place, {})
        if record.revision in written:
            self.world.checks.require(
                written[record.revision] == record,
                "G6",
                f"two positions in {place[1]} have revision {record.revision}: {written[record.revision]}, {record}",
            )
            return
        written[record.revision] = record
        order = sorted(written)
        at = order.index(record.revision)
        offsets = [written[revision].next_offset for revision in order[max(at - 1, 0) : at + 2]]
        self.world.checks.require(
            offsets == sorted(offsets), "G6", f"the position in {place[1]} goes back with its revision: {offsets}"
        )

    def stands(self, record: pb.GroupRecord) -> None:
        """A record has become the newest at some node."""
        raw = record.SerializeToString(deterministic=True)
        if record.group == GROUP and self._stood.setdefault(record.revision, raw) != raw:
            self.world.checks.fail("G5", f"two records of the group stand with revision {record.revision}")

    def unsettled(self) -> str:
        """Say what keeps the group from being whole; empty when nothing does."""
        pattern = re.compile(f"{TOPIC}|{self.readers[0].pattern}")
        topics = next(iter(self.world.processes())).node.broker.topics.live()
        counted = [(topic.topic_id, topic.config.partitions) for topic in topics if pattern.fullmatch(topic.name)]
        places = sorted((topic_id, number) for topic_id, count in counted for number in range(count))
        if not self._is_made:
            return "the topic of the group does not exist"
        read = sorted(place for reader in self.readers for place in reader.reading)
        counts = [len(reader.reading) for reader in self.readers]
        if read != places:
            return f"{len(read)} partitions of {len(places)} are read: {counts}"
        return f"members have {counts} partitions" if max(counts) - min(counts) > 1 else ""
