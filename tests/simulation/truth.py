"""An omniscient observer's state of one partition, and the invariants that every step must keep."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import NamedTuple

from tests.simulation.contents import LoggedContents
from tests.simulation.forks import Fork, part
from tests.simulation.history import Publish, PublishReply
from tests.simulation.losses import Losses
from tests.simulation.payload import keyed_records, payload_of

from tidelog_broker.core.replication import effects as fx
from tidelog_broker.core.replication.paxos import BallotKey, ballot_key, seal_quorum
from tidelog_broker.core.replication.replica import Replica
from tidelog_proto import broker_pb2 as pb
from tidelog_proto.batch.header import BatchHeader, Flags, unpack_header
from tidelog_proto.limits import KEYED_ID_MIN


class ViolationError(Exception):
    """An invariant is broken."""

    def __init__(self, invariant: str, what: str) -> None:
        super().__init__(f"{invariant}: {what}")
        self.invariant = invariant


class Chosen(NamedTuple):
    """A decision that a quorum has accepted."""

    value: pb.EpochDecision
    raw: bytes


class Truth:
    """See the module. Epochs are numbers, nodes ids; `bad` are the nodes that may lose their records."""

    def __init__(self, genesis: pb.EpochDescriptor, bad: Callable[[str], bool]) -> None:
        self.bad = bad
        self.genesis = genesis
        self.descriptors: dict[int, pb.EpochDescriptor] = {genesis.epoch: genesis}
        self.chosen: dict[int, Chosen] = {}
        self.newest_decided = genesis.epoch - 1
        self.batches: dict[int, dict[int, BatchHeader]] = defaultdict(dict)
        """Epoch -> base offset -> the one batch there."""
        self.by_digest: dict[tuple[int, int], int] = {}
        """Batch (epoch, base offset) -> payload."""
        self.durable: dict[tuple[str, int], int] = {}
        self.since_start: dict[tuple[str, int], int] = {}
        """The same, unless the node has started since and may have lost some."""
        self.ever: dict[tuple[str, int], int] = {}
        self.promised: dict[tuple[str, int], BallotKey] = {}
        self.persisted: dict[tuple[str, int], BallotKey] = {}
        self.accepted: dict[tuple[str, int], set[BallotKey]] = defaultdict(set)
        self.acceptors: dict[tuple[int, BallotKey], set[str]] = defaultdict(set)
        self.deciders: dict[int, set[str]] = {}
        """Epoch -> nodes that had accepted its end, with the log through it, when that made it the decision."""
        self.proposals: dict[tuple[int, BallotKey], bytes] = {}
        self._owners: dict[int, tuple[str, int]] = {}
        self.committed: dict[int, int] = {}
        self.watermarks: dict[str, int] = {}
        self.position = (genesis.epoch, genesis.start_offset)
        self._sequences: dict[int, int] = {}
        self._ends: dict[int, int] = {}
        self.places: dict[tuple[int, int], tuple[int, int]] = {}
        """Producer and sequence -> epoch and offset, for everything that is committed."""
        self.denials: dict[int, int] = {}
        """Payload -> the epoch that was open when it was denied."""
        self.acks: set[tuple[int, int, int]] = set()
        """Payload, epoch and base offset of each acknowledged publish."""
        self.compacted: dict[int, set[int]] = defaultdict(set)
        """Epoch -> possible ends of a copy, by the decisions about its compaction."""
        self.named: dict[str, Sequence[str]] = {}
        """Node that an operator told to continue without a quorum -> the other replicas that it reaches."""
        self.forks: dict[bytes, Fork] = {}
        """State of the partition after an operator's decision, by that decision; see `forks`."""
        self.fork: Fork | None = None
        """Where this truth begins, if it comes of one."""
        self.losses: Losses | None = None
        """Set if records are in memory."""
        self.contents: LoggedContents | None = None
        """Contents of records, if the topic drops duplicates."""
        self.deleted: dict[int, int] = {}
        """Below which offset records are deleted for readers, as some node of an epoch has had it."""
        self.lacked_by: Callable[[str], int] = lambda node: 0
        """Below which offset a node may never have had what retention has deleted, see `deletions`."""

    # ------------------------------------------------------------------------------------------ epochs

    def first_open(self, first_epoch: int) -> int:
        """Return how many decisions lie before this truth begins, in a chain that begins with an epoch."""
        return self.fork.epoch + 1 - first_epoch if self.fork is not None else 0

    def epochs(self) -> list[int]:
        """Return every epoch that there is."""
        return sorted(self.descriptors)

    def start_of(self, epoch: int) -> int:
        """Return where an epoch begins."""
        return self.descriptors[epoch].start_offset

    def flush_of(self, epoch: int) -> pb.Flush:
        """Return what durable means in an epoch."""
        return self.descriptors[epoch].flush or pb.ALWAYS

    def require(self, condition: bool, invariant: str, what: str) -> None:
        """Report a broken invariant unless `condition` holds."""
        if not condition:
            raise ViolationError(invariant, what)

    def owned(self, epoch: int, node: str, incarnation: int) -> None:
        """A node acts as the owner of an epoch (I9)."""
        descriptor = self.descriptors.get(epoch)
        self.require(descriptor is not None, "I9", f"{node} owns epoch {epoch}, which was not decided")
        assert descriptor is not None
        named = (descriptor.owner, descriptor.owner_incarnation)
        self.require(named == (node, incarnation), "I9", f"{(node, incarnation)} owns epoch {epoch} of {named}")

    def shows_from(self, epoch: int, below: int, who: str) -> None:
        """A node that knows an epoch shows readers no records before its log start, and all after it (I26).

        Records deleted in an earlier epoch stay deleted, unless an end of short logs has removed even more.
        """
        earlier = max((count for at, count in self.deleted.items() if at < epoch), default=0)
        kept = min(earlier, self.start_of(epoch))
        self.require(below >= kept, "I26", f"{who} shows from {below} on in epoch {epoch}, {kept} was deleted before")
        if below > self.deleted.get(epoch, 0):
            self.require(below <= self.settled_end, "I26", f"{who} deletes uncommitted records: below {below}")
            self.deleted[epoch] = below

    # ------------------------------------------------------------------------------------------ logs

    def performed(self, node: str, effect: fx.Write, end: tuple[int, int] | None) -> None:
        """A write to a log is on the disk; the epoch's copy ends at `end` after it."""
        if isinstance(effect, fx.Append):
            self.wrote(node, effect.epoch, effect.base_offset, [unpack_header(batch) for batch in effect.batches])
            self.payloads(effect.batches)
            self.made_durable(node, effect.epoch, effect.end_offset)
        elif isinstance(effect, fx.Truncate):
            self.truncated(node, effect.epoch, effect.end_offset)
        elif isinstance(effect, fx.FinishPartialCopy):
            self.filled(node, effect.epoch, end)

    def sent(self, node: str, message: fx.PeerMessage) -> None:
        """A message leaves a node: its statements must be true."""
        if isinstance(message, pb.ReplicationAck):
            if message.status == pb.HELD:
                self.acknowledges(node, message)
        elif isinstance(message, pb.SealReply):
            if message.status == pb.HELD:
                self.promises(node, message)
        elif isinstance(message, pb.OpenEpochReply):
            if message.status == pb.HELD:
                self.accepts(node, message)
        elif isinstance(message, pb.OpenEpoch):
            self.proposes(message)
        elif isinstance(message, pb.AppendBatch):
            self.owned(message.epoch, message.owner, message.owner_incarnation)
            self.claim_committed(message.epoch, message.commit_offset, f"an append of {node}")
        elif isinstance(message, pb.MetadataUpdate):
            for decision in message.decisions:
                self.learned(decision, node)

    def wrote(self, node: str, epoch: int, base_offset: int, headers: Sequence[BatchHeader]) -> None:
        """A node has written batches after `base_offset` (I1, I2)."""
        known = self.batches[epoch]
        at = base_offset
        for header in headers:
            self.require(header.epoch == epoch, "I1", f"{node} has a batch of epoch {header.epoch} in {epoch}")
            self.require(header.base_offset == at, "I2", f"{node} leaves a hole at {at} of epoch {epoch}")
            at = header.end_offset
            first = known.setdefault(header.base_offset, header)
            same = first.digest == header.digest and first.end_offset == header.end_offset
            self.require(same, "I1", f"{node} holds another batch at {header.base_offset} of epoch {epoch}")

    def payloads(self, batches: Sequence[memoryview]) -> None:
        """Remember what batches carry."""
        for batch in batches:
            header = unpack_header(batch)
            if not header.record_count:
                continue
            self.by_digest[header.epoch, header.base_offset] = payload_of(batch, header.record_count)
            if self.contents is not None:
                self.contents.wrote(header, batch)

    def made_durable(self, node: str, epoch: int, end_offset: int) -> None:
        """A node holds an epoch durably up to `end_offset`."""
        self.durable[node, epoch] = max(self.durable.get((node, epoch), 0), end_offset)
        self.ever[node, epoch] = max(self.ever.get((node, epoch), 0), end_offset)
        self.since_start[node, epoch] = max(self.since_start.get((node, epoch), 0), end_offset)

    def truncated(self, node: str, epoch: int, end_offset: int) -> None:
        """A node has cut an epoch's log: right only to where it was decided to end (I6, I10)."""
        chosen = self.chosen.get(epoch)
        self.require(
            chosen is not None and chosen.value.end_offset == end_offset,
            "I10",
            f"{node} cuts epoch {epoch} to {end_offset}, decided is {chosen and chosen.value.end_offset}",
        )
        self.durable[node, epoch] = end_offset

    def filled(self, node: str, epoch: int, end: tuple[int, int] | None) -> None:
        """A node has made a fetched copy part of its log (I15), unless retention has taken it meanwhile (see I16)."""
        if end is None:
            return
        chosen = self.chosen.get(epoch)
        self.require(chosen is not None, "I15", f"{node} has filled epoch {epoch}, which has not ended")
        assert chosen is not None
        decided = (chosen.value.end_offset, chosen.value.end_digest)
        is_right = end == decided or (end[0] == decided[0] and end[1] in self.compacted[epoch])
        self.require(is_right, "I15", f"{node} has filled epoch {epoch} to {end}, decided is {decided}")
        self.made_durable(node, epoch, chosen.value.end_offset)

    def reopened(self, node: str, ends: dict[int, int]) -> None:
        """A node that may lose data holds so much after a start."""
        for epoch in self.epochs():
            if (node, epoch) in self.durable:
                self.durable[node, epoch] = min(self.durable[node, epoch], ends.get(epoch, self.start_of(epoch)))
                self.since_start.pop((node, epoch), None)

    def holders(self, epoch: int, offset: int) -> int:
        """Count the replicas of an epoch that held it through `offset` at some time."""
        if offset <= self.start_of(epoch):
            return len(self.descriptors[epoch].placement)
        return sum(self.ever.get((node, epoch), -1) >= offset for node in self.descriptors[epoch].placement)

    # ------------------------------------------------------------------------------------------ promises

    def fenced(self, node: str, entry: pb.FenceEntry) -> None:
        """A fence is durable; enough accepts of one value decide it (I5, I7)."""
        if entry.dropped:
            return
        if entry.HasField("promised"):
            self.persisted[node, entry.epoch] = ballot_key(entry.promised)
        if not entry.HasField("accepted"):
            return
        ballot = ballot_key(entry.accepted)
        self.accepted[node, entry.epoch].add(ballot)
        self._propose(entry.epoch, ballot, entry.accepted_value)
        value = pb.EpochDecision.FromString(entry.accepted_value)
        descriptor = self.descriptors[entry.epoch]
        acceptors = self.acceptors[entry.epoch, ballot]
        if node not in descriptor.placement:
            return
        held = self.durable.get((node, entry.epoch), self.start_of(entry.epoch))
        if held >= value.end_offset or self.losses is not None:  # The log of a decided value may be lost everywhere.
            acceptors.add(node)
        if value.unsafe:
            if ballot.node_id in acceptors.intersection(self.named) or len(acceptors) >= descriptor.ack_quorum:
                self._overrule(value, entry.accepted_value, ballot)
        elif len(acceptors) >= descriptor.ack_quorum:
            self._decide(entry.accepted_value)
            self.deciders.setdefault(entry.epoch, set(acceptors))

    def _overrule(self, value: pb.EpochDecision, raw: bytes, ballot: BallotKey) -> None:
        """An operator's recovery has decided an epoch's end, for the nodes that learn of it (I21)."""
        known = self.chosen.get(value.epoch)
        if known is not None and known.value.unsafe:
            self.require(known.raw == raw, "I5", f"two recoveries of epoch {value.epoch}: {known.value} and {value}")
        elif raw not in self.forks:
            self.forks[raw] = part(self, Chosen(value, raw), ballot)

    def _propose(self, epoch: int, ballot: BallotKey, raw: bytes) -> None:
        known = self.proposals.setdefault((epoch, ballot), raw)
        self.require(known == raw, "I5", f"two values for epoch {epoch} under ballot {ballot}")

    def proposes(self, message: pb.OpenEpoch) -> None:
        """A candidate proposes a value: one a ballot."""
        self._propose(message.epoch, ballot_key(message.ballot), message.value)

    def _decide(self, raw: bytes) -> None:
        value = pb.EpochDecision.FromString(raw)
        epoch = value.epoch
        known = self.chosen.get(epoch)
        if known is not None:
            self.require(known.raw == raw, "I5", f"two decisions about epoch {epoch}: {known.value} and {value}")
            return
        committed = self.committed.get(epoch, 0)
        if self.losses is not None:
            self.losses.decided(value)
        else:
            self.require(
                value.end_offset >= committed,
                "I6",
                f"epoch {epoch} ends at {value.end_offset}, {committed} was committed",
            )
        self.chosen[epoch] = Chosen(value, raw)
        for compaction in value.compactions:
            self.compacted[compaction.epoch].add(compaction.end_digest)
        self.newest_decided = max(self.newest_decided, epoch)
        self.descriptors[epoch + 1] = value.next
        self.require(
            value.end_offset == self.start_of(epoch) or self._digest_at(epoch, value.end_offset) == value.end_digest,
            "I7",
            f"epoch {epoch} ends at {value.end_offset} in a digest that no log has",
        )
        holders = self.holders(epoch, value.end_offset)
        quorum = self.descriptors[epoch].ack_quorum
        self.require(holders >= quorum, "I7", f"epoch {epoch} was decided with {holders} holders of {quorum}")
        self.walk()

    def _digest_at(self, epoch: int, offset: int) -> int | None:
        return next((one.digest for one in self.batches[epoch].values() if one.end_offset == offset), None)

    def learned(self, raw: bytes, node: str) -> None:
        """A node takes a decision for granted (I5, I8, I13)."""
        value = pb.EpochDecision.FromString(raw)
        chosen = self.chosen.get(value.epoch)
        self.require(
            chosen is not None, "I5", f"{node} believes a decision about epoch {value.epoch} that was not taken"
        )
        assert chosen is not None
        self.require(chosen.raw == raw, "I13", f"{node} believes another decision about epoch {value.epoch}")

    def promises(self, node: str, reply: pb.SealReply) -> None:
        """A promise is given, with a report of the log's end (I4)."""
        where = (node, reply.epoch)
        ballot = ballot_key(reply.ballot)
        self.require(
            self.persisted.get(where, BallotKey(0, "", 0)) >= ballot, "I4", f"{node} promises without a record"
        )
        self._not_lower(where, ballot)
        durable = self.durable.get(where, self.start_of(reply.epoch))
        self.require(reply.end_offset <= durable, "I4", f"{node} reports {reply.end_offset}, durable is {durable}")
        self.require(
            reply.end_offset == durable or self.bad(node) or reply.epoch in self.chosen,
            "I4",
            f"{node} reports {reply.end_offset}, it holds {durable}",
        )

    def remembers(self, node: str, epoch: int, held: pb.Ballot | None) -> None:
        """A node has started again, and has that promise for an epoch (I4)."""
        promised = self.promised.get((node, epoch))
        kept = ballot_key(held) if held is not None else None
        self.require(
            promised is None or (kept is not None and kept >= promised), "I4", f"{node} forgot its promise {promised}"
        )

    def accepts(self, node: str, reply: pb.OpenEpochReply) -> None:
        """A value is reported as accepted: it is on the disk, and so is the log (I4, I7)."""
        where = (node, reply.epoch)
        ballot = ballot_key(reply.ballot)
        self.require(ballot in self.accepted[where], "I4", f"{node} accepts without a record")
        self._not_lower(where, ballot)
        value = pb.EpochDecision.FromString(self.proposals[reply.epoch, ballot])
        held = self.ever.get(where, self.start_of(reply.epoch))
        is_held = held >= value.end_offset or self.losses is not None
        self.require(is_held, "I7", f"{node} accepts an end at {value.end_offset}, it holds {held}")

    def keeps_what_it_accepted(self, node: str, copy: Callable[[int], tuple[int, int] | None], *, deleted: int) -> None:
        """A node has started again: where its accept decided an end, it has the epoch through that (I7).

        Unless retention has deleted all of it.
        """
        for epoch, chosen in self.chosen.items():
            end_offset = chosen.value.end_offset
            if end_offset <= max(self.start_of(epoch), deleted) or node not in self.deciders[epoch]:
                continue
            if self.compacted[epoch]:
                continue  # the node may be fetching another version of the epoch
            end = copy(epoch)
            held = end[0] if end is not None else None
            self.require(
                held is not None and held >= end_offset,
                "I7",
                f"{node} accepted the end of epoch {epoch} at {end_offset}, it holds {held}",
            )

    def _not_lower(self, where: tuple[str, int], ballot: BallotKey) -> None:
        before = self.promised.get(where)
        self.require(before is None or ballot >= before, "I4", f"{where} goes back from {before} to {ballot}")
        self.promised[where] = ballot

    def acknowledges(self, node: str, ack: pb.ReplicationAck) -> None:
        """A replica reports its end in an epoch: durable, and not after a promise (I3)."""
        where = (node, ack.epoch)
        self.require(where not in self.promised, "I4", f"{node} acknowledges epoch {ack.epoch} after a promise")
        durable = self.durable.get(where, self.start_of(ack.epoch))
        self.require(
            ack.end_offset <= durable,
            "I3",
            f"{node} acknowledges {ack.end_offset} of {ack.epoch}, durable is {durable}",
        )

    # ------------------------------------------------------------------------------------------ commits

    def start_watermark(self, replica: Replica, watermark: int) -> None:
        """A replica has started with a watermark."""
        self.watermarks[replica.state.node_id] = watermark

    def watermark_moved(self, replica: Replica, watermark: int) -> bool:
        """Whether a watermark has changed; it must not go back (I11)."""
        before = self.watermarks[replica.state.node_id]
        if watermark == before:
            return False
        self.require(
            watermark > before, "I11", f"{replica.state.node_id}: the watermark went from {before} to {watermark}"
        )
        self.watermarks[replica.state.node_id] = watermark
        return True

    def claim_committed(self, epoch: int, end_offset: int, who: str) -> None:
        """A node relies on an epoch being committed up to `end_offset` (I3, I6, I11)."""
        if end_offset <= self.committed.get(epoch, self.start_of(epoch)):
            return
        chosen = self.chosen.get(epoch)
        if chosen is not None:
            self.require(
                end_offset <= chosen.value.end_offset,
                "I6",
                f"{who}: {end_offset} of epoch {epoch}, which ended at {chosen.value.end_offset}",
            )
        else:
            holders, quorum = self.holders(epoch, end_offset), self.descriptors[epoch].ack_quorum
            self.require(holders >= quorum, "I3", f"{who}: {end_offset} of epoch {epoch} on {holders} of {quorum}")
        self.committed[epoch] = end_offset
        self.walk()

    @property
    def committed_end(self) -> int:
        """The highest committed end that was reported for this partition."""
        return max(self.committed.values(), default=0)

    @property
    def settled_end(self) -> int:
        """How far this partition is committed, told or not: to the end of the newest decided epoch, or further."""
        newest = self.chosen.get(self.newest_decided)
        return max(self.committed_end, newest.value.end_offset if newest is not None else 0)

    def walk(self) -> None:
        """Check newly committed batches, in order: each sequence once, without gaps (I12)."""
        epoch, offset = self.position
        while True:
            chosen = self.chosen.get(epoch)
            end = chosen.value.end_offset if chosen is not None else self.committed.get(epoch, 0)
            while offset < end:
                header = self.batches[epoch].get(offset)
                if header is None:
                    raise ViolationError("I7", f"offset {offset} of epoch {epoch} is committed and was never written")
                self._committed(header)
                offset = header.end_offset
            if chosen is None:
                break
            if self.losses is not None:
                offset = min(offset, end)  # The records from there on are lost.
            self.require(offset == end, "I2", f"epoch {epoch} ends at {end}, inside a batch")
            epoch += 1
        self.position = (epoch, offset)

    def _committed(self, header: BatchHeader) -> None:
        if self.contents is not None:
            self.contents.committed(header)
        if self.losses is not None:
            self.losses.committed(header)
        producer = header.producer_id
        if producer == 0:
            return
        if producer >= KEYED_ID_MIN:
            place = self.places.get((producer, header.base_sequence))
            self.require(place is None, "I12", f"request {producer} is at {header.base_offset}, and at {place}")
            self.places[producer, header.base_sequence] = (header.epoch, header.base_offset)
            return
        expected = self._sequences.get(producer, 0)
        if header.base_sequence == 0 and self.may_forget(producer, self.descriptors[header.epoch].owner):
            expected = 0
        self.require(
            header.base_sequence == expected,
            "I12",
            f"producer {producer} has {header.base_sequence} at {header.base_offset} where {expected} is next",
        )
        self._sequences[producer] = expected + header.sequences
        self._ends[producer] = header.end_offset
        self.places[producer, header.base_sequence] = (header.epoch, header.base_offset)

    def may_forget(self, producer: int, node: str) -> bool:
        """Whether everything of a producer was deleted before a node could have it."""
        return producer in self._ends and self._ends[producer] <= self.lacked_by(node)

    def may_forget_place(self, publish: Publish, node: str) -> bool:
        """Whether a batch is stored, and was deleted before a node could have it."""
        place = self.places.get((publish.producer_id, publish.base_sequence))
        return place is not None and place[1] < self.lacked_by(node)

    def acknowledged(self, publish: Publish, said: PublishReply) -> None:
        """A publish was acknowledged with a position: it is stored there and at no other position (I12)."""
        if self.contents is not None:
            self.contents.acknowledged(publish, said, self.batches[said.epoch][said.base_offset])
        else:
            payload = self.by_digest.get((said.epoch, said.base_offset))
            self.require(
                payload == publish.payload, "I12", f"{publish} was acknowledged at {said}, which has {payload}"
            )
        self.acks.add((publish.payload, said.epoch, said.base_offset))
        if publish.producer_id:
            place = self.places.get((publish.producer_id, publish.base_sequence))
            self.require(
                place == (said.epoch, said.base_offset),
                "I12",
                f"{publish} is at {place}, but was acknowledged at {said}",
            )

    def held_by_all(self, epoch: int, end_offset: int) -> None:
        """A publish was acknowledged as stored on every replica of its epoch, and is (I18)."""
        holders, replicas = self.holders(epoch, end_offset), len(self.descriptors[epoch].placement)
        self.require(holders == replicas, "I18", f"{end_offset} of epoch {epoch} is on {holders} of {replicas}")

    def denied(self, publish: Publish, epoch: int) -> None:
        """A publish was denied, and will never be stored unless it is tried again; `epoch` is open there."""
        if not publish.producer_id:
            self.denials[publish.payload] = epoch

    def tried(self, publish: Publish) -> None:
        """A publish is tried, perhaps again."""
        self.denials.pop(publish.payload, None)
        for fork in self.forks.values():
            fork.truth.tried(publish)

    def payload_at(self, epoch: int, offset: int) -> int | None:
        """Return the payload of the batch that was written with a record at this offset."""
        for base in range(offset, offset - 3, -1):
            header = self.batches[epoch].get(base)
            if header is not None and offset < header.end_offset:
                return self.by_digest[epoch, base]
        return None

    def delivered(self, header: BatchHeader, data: bytes) -> None:
        """A consumer was given a batch (I10); of one that was cut down, each record must be where it was written."""
        if self.losses is not None:
            self.require(header.record_count > 0, "M3", f"a reader skips lost records at {header.base_offset} silently")
        if header.flags & Flags.DERIVED:
            for record in keyed_records(data):
                written = self.payload_at(header.epoch, record.offset)
                self.require(record.payload == written, "I10", f"{record} was delivered, written was {written}")
            return
        known = self.batches[header.epoch].get(header.base_offset)
        same = known is not None and known.digest == header.digest
        self.require(same, "I10", f"offset {header.base_offset} of epoch {header.epoch} was never written like that")

    def seal_quorum(self, epoch: int) -> int:
        """Return how many replicas can end an epoch."""
        descriptor = self.descriptors[epoch]
        return seal_quorum(len(descriptor.placement), descriptor.ack_quorum)
