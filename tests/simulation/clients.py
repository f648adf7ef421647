"""Clients of the simulated cluster: producers that retry until they know, consumers that read at any node.

A producer with an id numbers its batches and repeats one until it is acknowledged: at most once, whatever
was lost on the way. Where requests have keys each batch has an id of its own. A producer without an id tries a batch
until a node may have taken it: after a no nothing of it is stored, and it tries again or gives up. Where ids are shared
a producer now and then is a copy of another one of its partition.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tests.simulation import forks
from tests.simulation.history import Delivered, Publish, PublishReply, Seen
from tests.simulation.payload import KeyedRecord, batch_of, is_sound, keyed_records, make_batch, payload_of

from tidelog_broker.core.topics import PartitionKey
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.batch.header import Flags, unpack_header
from tidelog_proto.errors import ProtocolError
from tidelog_proto.limits import KEYED_ID_MIN

if TYPE_CHECKING:
    from tests.simulation.copies import Copy
    from tests.simulation.process import Process
    from tests.simulation.truth import Truth
    from tests.simulation.world import World

ASK_US = 10_000
CALM_PUBLISHES = 2
"""How much every producer must get stored once faults have stopped."""


PRODUCERS_MAX = 1 << 16
"""Distance between the ids of a restarted producer."""

DELETED = {pb.UNKNOWN_PRODUCER, pb.DUPLICATE_OUT_OF_WINDOW}
"""Errors after retention has deleted stored records before a copy had them."""

COPIES = 0.15
"""Before how many of its batches a producer becomes a copy of another one, where ids are shared."""

OF_ANOTHER = {pb.PRODUCER_ID_SHARED, pb.DUPLICATE_OUT_OF_WINDOW}
"""Errors for a batch whose sequence another producer has used."""

_DIGESTS = 2654435761
DIGEST_MAX = 2**62 - 1
"""Of a request with a key."""

GIVES_UP = 0.3
"""How often one without an id leaves it at a no, instead of trying the same batch again."""


class Producer:
    """Publishes to one partition, up to `depth` batches at a time; a later one may arrive before an earlier one."""

    def __init__(self, world: World, key: PartitionKey, number: int, *, idempotent: bool, acks: pb.Acks) -> None:
        self._world = world
        self.key = key
        self._random = world.clock.random
        self._producer_id = number if idempotent else 0
        self._number = number
        self._acks = acks
        self._depth = self._random.choice([1, 1, 2, 3]) if idempotent else 1
        self._lives = 0
        self._sequence = 0
        self._count = 0
        self._owner_guess = ""
        self._timeout_us = 1000 * self._random.choice([100, 300, 1000])
        self._open: list[Publish] = []
        self.stopped = False
        self.calm_stored = 0

    @property
    def busy(self) -> bool:
        """Whether a publish is under way."""
        return bool(self._open)

    def start(self) -> None:
        """Begin."""
        self._world.clock.after(self._random.randrange(20_000), self._next)

    def _next(self) -> None:
        if self.stopped or not self._may_go_on():
            return
        if self._world.scenario.shares_ids and self._random.random() < COPIES:
            self._become(self._random.choice([one for one in self._world.producers if one.key == self.key]))
        records = self._random.choice([1, 1, 2, 3])
        payload = self._number << 32 | self._count << 4
        acks = pb.QUORUM if self._world.calm else self._acks
        publish = Publish(self.key, self._producer_id, self._sequence, records, payload, acks)
        if self._world.scenario.deduplicates:
            publish.contents = self._world.drawn[self.key].contents(records)
        if self._world.scenario.keys_requests and self._producer_id:
            publish.producer_id = KEYED_ID_MIN | self._number << 32 | self._count
            publish.base_sequence = payload * _DIGESTS & DIGEST_MAX
        self._count += 1
        if self._producer_id:
            self._sequence += records
        self._world.history.publishes.append(publish)
        self._open.append(publish)
        self._try(publish)
        if self._may_go_on():
            self._world.clock.after(self._random.randrange(5_000), self._next)

    def _may_go_on(self) -> bool:
        """Whether another batch may be sent: never more than `depth` after the oldest that is not acknowledged."""
        return not self._open or self._count - (self._open[0].payload >> 4 & 0xFFFFFFF) < self._depth

    def copied(self) -> tuple[int, int]:
        """Return the id, and the first number that is not known to be stored."""
        return self._producer_id, self._open[0].base_sequence if self._open else self._sequence

    def _become(self, other: Producer) -> None:
        """Continue as a copy of another producer that started a moment ago; open batches are given up."""
        producer_id, sequence = other.copied()
        if other is self or not self._producer_id or not producer_id:
            return
        for publish in list(self._open):
            publish.outcome = "unknown"
            self._ended(publish)
        self._producer_id, self._sequence = producer_id, sequence

    # ----------------------------------------------------------------------------------------- attempts

    def _try(self, publish: Publish) -> None:
        publish.attempts += 1
        attempt = publish.attempts
        target = self._owner_guess or self._random.choice(self._world.registered)
        self._world.ask(target, lambda process: self._arrive(process, publish, attempt))
        self._world.clock.after(self._timeout_us, lambda: self._timed_out(publish, attempt))

    def _arrive(self, process: Process, publish: Publish, attempt: int) -> None:
        if publish.contents:
            header, data = batch_of(
                publish.contents, producer_id=publish.producer_id, base_sequence=publish.base_sequence
            )
        else:
            header, data = make_batch(
                publish.payload,
                publish.records,
                producer_id=publish.producer_id,
                base_sequence=publish.base_sequence,
                keyed=self._world.scenario.is_keyed,
                tombstones=self._world.scenario.compacts,
            )
        copy = process.partitions.get(self.key)
        if copy is None:
            return  # it is being opened
        # Not every replica may be there to the end, so that "all" would wait for ever.
        acks = publish.acks = pb.QUORUM if self._world.calm else publish.acks

        def reply(said: PublishReply) -> None:
            checks = self._world.checks
            checks.answered(copy, publish, said, acks=acks, depth=self._depth)
            begin_anew = checks.is_forgotten(copy, publish, said)
            self._world.answer(process.node_id, lambda: self._told(publish, attempt, said, begin_anew=begin_anew))

        self._world.checks.tried(publish)
        copy.publish(header, data, acks, reply)

    def _told(self, publish: Publish, attempt: int, said: PublishReply, *, begin_anew: bool) -> None:
        if publish.outcome != "pending" or (attempt != publish.attempts and said.kind != "stored"):
            return
        if said.kind == "stored":
            publish.outcome, publish.base_offset, publish.epoch = "stored", said.base_offset, said.epoch
            self._ended(publish)
        elif said.error == pb.STORED_ON_QUORUM and self._producer_id:
            publish.acks = pb.QUORUM  # the strongest possible ack of a retry, which finds the stored batch
            self._retry(publish)
        elif said.error in OF_ANOTHER and self._world.scenario.shares_ids:
            self._begin_anew(publish if publish.attempts == 1 else None)
        elif begin_anew or (said.error in DELETED and self._world.scenario.deletes):
            self._begin_anew()
        elif said.kind == "unknown" and not self._producer_id:
            publish.outcome = "unknown"
            self._ended(publish)
        elif not self._producer_id and self._random.random() < GIVES_UP:
            publish.outcome = "not written"
            self._ended(publish)
        else:
            self._owner_guess = said.owner_hint if self._random.random() < 0.8 else ""
            self._retry(publish)

    def _timed_out(self, publish: Publish, attempt: int) -> None:
        if publish.outcome != "pending" or attempt != publish.attempts:
            return
        self._owner_guess = ""
        if self._producer_id:
            self._retry(publish)
        else:
            publish.outcome = "unknown"
            self._ended(publish)

    def _begin_anew(self, refused: Publish | None = None) -> None:
        """Continue as another producer, as `tidelog.produce.partition_queue` does: the outcome of open batches is
        unknown.

        A recovery has cut off what precedes it, or retention has deleted that before a copy could have it, or the id is
        shared: then `refused` has not been stored.
        """
        self._lives += 1
        self._producer_id = self._number + self._lives * PRODUCERS_MAX
        self._sequence = 0
        for publish in list(self._open):
            publish.outcome = "not written" if publish is refused else "unknown"
            self._ended(publish)

    def _retry(self, publish: Publish) -> None:
        attempt = publish.attempts
        publish.attempts += 1
        pause_us = self._random.randrange(1_000, 40_000)

        def again() -> None:
            if publish.outcome == "pending" and publish.attempts == attempt + 1:
                self._try(publish)

        self._world.clock.after(pause_us, again)

    def _ended(self, publish: Publish) -> None:
        self._open.remove(publish)
        if self._world.calm and publish.outcome == "stored":
            self.calm_stored += 1
            self.stopped = self.calm_stored >= CALM_PUBLISHES
        gap_us = 30_000 if self._world.calm else self._world.publish_gap_us
        self._world.clock.after(self._random.randrange(gap_us), self._next)


class Asker:
    """Asks for the end of a partition, where a node believes that it owns it: rightly for the most part."""

    def __init__(self, world: World, key: PartitionKey) -> None:
        self._world = world
        self._key = key

    def start(self) -> None:
        """Begin."""
        self._world.clock.after(self._world.clock.random.randrange(2 * ASK_US), self._ask)

    def _ask(self) -> None:
        processes = [machine.process for machine in self._world.machines if machine.process is not None]
        copies = [process.partitions.get(self._key) for process in processes]
        owners = [copy for copy in copies if copy is not None and copy.replica.can_append]
        if owners:
            copy = self._world.clock.random.choice(owners)
            committed, answered = self._world.checks.locates(copy)
            copy.process.run(lambda: copy.process.spawn(copy.latest(committed), answered))  # when its pause is over
        self.start()


class Consumer:
    """Reads one partition from its beginning, at one node or another, and remembers all that it was given."""

    def __init__(self, world: World, key: PartitionKey) -> None:
        self._world = world
        self.key = key
        self._random = world.clock.random
        self._node = ""
        self._asked = 0
        self.position = 0
        self._may_be_inside = False
        """Whether its position may lie inside a batch, which is given as a whole: it is where the log begins."""
        self.truth = world.checks.truths[key]
        """The truth it follows: after a recovery without a quorum it reads again from the truncation point."""
        self.table: dict[bytes, KeyedRecord] = {}
        """The newest record of each key, where records have keys."""
        self.seen = Delivered(key)
        world.history.consumers.append(self.seen)

    def start(self) -> None:
        """Begin."""
        self._world.clock.after(self._random.randrange(50_000), self._ask)

    def _ask(self) -> None:
        self._asked += 1
        asked = self._asked
        if not self._node or self._random.random() < 0.15:
            self._node = self._random.choice(self._world.registered)
        self._world.ask(self._node, lambda process: self._arrive(process, asked))
        self._world.clock.after(300_000, lambda: self._lost(asked))

    def _arrive(self, process: Process, asked: int) -> None:
        copy = process.partitions.get(self.key)
        if copy is None:
            return
        truth, position = self._world.checks.truth_of(copy), self.position

        def read(found: Sequence[memoryview] | None, error: BaseException | None) -> None:
            self._read(copy, truth, asked, found or (), error, position=position)

        process.spawn(copy.read(position), read)

    def _read(
        self,
        copy: Copy,
        truth: Truth,
        asked: int,
        found: Sequence[memoryview],
        error: BaseException | None,
        *,
        position: int,
    ) -> None:
        """A node has read, or returns an error; its content may differ from the decided one."""
        log_start = 0
        if isinstance(error, ProtocolError) and error.code == pb.OFFSET_OUT_OF_RANGE:
            log_start = error.log_start_offset
            if self._world.scenario.in_memory:
                self._world.checks.says_lost(copy, position, log_start)
            else:
                self._world.checks.says_deleted(copy, log_start)
        batches: list[bytes] = []
        for data in map(bytes, found):
            if not is_sound(data):
                break  # it has rotted there; another node has it
            self._world.checks.delivered(copy, truth, data)
            batches.append(data)
        self._world.answer(copy.process.node_id, lambda: self._told(asked, truth, batches, log_start))

    def _lost(self, asked: int) -> None:
        if asked == self._asked:
            self._node = ""
            self._ask()

    def _goes_by(self, truth: Truth) -> bool:
        """Whether an answer continues the read records: not if a recovery has truncated its log since.

        Like an application that learns of the loss, it forgets the truncated records and continues from there.
        """
        parted = forks.between(truth, self.truth)
        if parted:
            self.truth, seen = truth, self.seen.batches
            lost = [one for one in seen if any(fork.cuts(one.epoch, one.base_offset) for fork in parted)]
            if lost:
                self.position = lost[0].base_offset
                del seen[seen.index(lost[0]) :]
        return truth is self.truth and not parted

    def _told(self, asked: int, truth: Truth, batches: list[bytes], log_start: int) -> None:
        if asked != self._asked:
            return
        if not self._goes_by(truth):
            batches = []
        if log_start > self.position:
            self.position, self._may_be_inside = log_start, True
        for data in batches:
            header = unpack_header(data)
            derived = bool(header.flags & Flags.DERIVED)  # such a batch may begin earlier than its source
            inside = self._may_be_inside and header.base_offset < self.position < header.end_offset
            is_next = inside or header.base_offset == self.position or (derived and header.base_offset < self.position)
            self._world.checks.require(is_next, "I10", "a consumer got other records than the next ones")
            self._may_be_inside = False
            if self._world.scenario.compacts:
                self.table.update((each.key, each) for each in keyed_records(data) if each.offset >= self.position)
            if not derived:
                payload = payload_of(data, header.record_count)
                self.seen.batches.append(Seen(header.epoch, header.base_offset, header.digest, payload))
            self.position = max(self.position, header.end_offset)
        if not batches:
            self._node = ""
        self._asked += 1
        self._world.clock.after(5_000 + self._random.randrange(self._world.read_gap_us), self._ask)
