"""The acceptor: answers only after durable writes, and no append after a promise."""

from __future__ import annotations

import pytest
from tests.broker.core.bench import INCARNATION, Bench, ballot, decision, descriptor, end_of, run_of

from tidelog_broker.core.replication.acceptor import Acceptor, Opening
from tidelog_broker.core.replication.chain import EpochChain
from tidelog_broker.core.replication.effects import Effect, Send, SyncLog, Write, WriteFences
from tidelog_broker.core.replication.ports import Batch, Position
from tidelog_broker.core.replication.replica_state import Doubt, LogTail
from tidelog_proto import broker_pb2 as pb

HELD = run_of(descriptor(), 2, 3)
OTHERS = run_of(descriptor(), 2, 3, fill=b"other")
RESERVED = ballot(0, "a")


class Trial(Bench):
    """Replica `b` with its acceptor; callbacks are recorded."""

    def __init__(self, held: list[Batch] | None = None, *, chain: EpochChain | None = None, doubt: Doubt = "") -> None:
        super().__init__(chain, held=HELD if held is None else held, doubt=doubt)
        self.misses = False
        self.promises = 0
        self.fetches: list[tuple[Opening, Position]] = []
        self.acceptor = Acceptor(
            self,
            agrees=lambda _sender, _now_ms: self.misses,
            on_promise=lambda _now_ms: self.count_promise(),
            fetch=lambda opening, end, _now_ms: self.fetches.append((opening, end)),
        )

    def count_promise(self) -> None:
        self.promises += 1

    def seal(self, one: pb.Ballot, *, epoch: int = 0, sender: str | None = None) -> None:
        self.acceptor.on_seal(sender or one.node_id, pb.Seal(epoch=epoch, ballot=one), 0)

    def open(self, one: pb.Ballot, value: bytes, *, epoch: int = 0, sender: str | None = None) -> None:
        ask = pb.OpenEpoch(epoch=epoch, ballot=one, value=value, holders=["c"])
        self.acceptor.on_open(sender or one.node_id, ask, 0)

    def value(self, end: Position | None = None, *, owner: str = "b") -> bytes:
        return decision(self.chain, end or end_of(HELD), owner=owner)

    def fences(self) -> list[pb.FenceEntry]:
        return [entry for write in self.take(WriteFences) for entry in write.entries]

    def replies(self) -> list[Effect]:
        return [effect for effect in self.peek() if isinstance(effect, Send)]


# --- SEAL ----------------------------------------------------------------------------------------------


def test_promise_is_durable_before_it_is_answered_and_binds_immediately() -> None:
    trial = Trial()
    trial.seal(ballot(1))
    assert trial.replies() == [], "no reply is sent before the promise is on disk"
    assert trial.promised, "but nothing is appended or acknowledged against it from now on"
    assert trial.promises == 1
    [entry] = trial.fences()
    assert entry.promised == ballot(1)
    trial.wrote()
    [(to, reply)] = trial.sent(pb.SealReply)
    assert (to, reply.status, reply.ballot, reply.promised) == ("c", pb.HELD, ballot(1), ballot(1))
    assert Position(reply.end_offset, reply.end_digest) == end_of(HELD)
    assert not reply.HasField("accepted")


def test_reported_end_is_that_when_the_fence_is_durable() -> None:
    trial = Trial([])
    trial.queue(HELD[:1])
    trial.queue(HELD[1:])
    trial.seal(ballot(1))
    trial.wrote()
    assert trial.replies() == [], "appends in flight come first"
    trial.wrote()
    trial.wrote()
    reply = trial.answer(pb.SealReply)
    assert Position(reply.end_offset, reply.end_digest) == end_of(HELD)


def test_pending_append_without_disk_space_is_not_reported() -> None:
    trial = Trial([])
    trial.queue(HELD[:1])
    trial.queue(HELD[1:])
    trial.seal(ballot(1))
    trial.wrote()
    trial.wrote(ok=False)
    trial.wrote()
    assert trial.answer(pb.SealReply).end_offset == 2


def test_append_queued_after_the_promise_is_not_reported() -> None:
    """An OPEN_EPOCH of the same ballot may start a fetch meanwhile, which is not durable in the same step."""
    trial = Trial(HELD[:1])
    trial.seal(ballot(1))
    trial.queue(HELD[1:])
    trial.wrote()
    assert trial.answer(pb.SealReply).end_offset == 2


def test_lower_ballot_is_refused_with_the_higher_one() -> None:
    trial = Trial()
    trial.seal(ballot(3))
    trial.wrote()
    trial.take()
    trial.seal(ballot(2))
    assert trial.writes == 0
    reply = trial.answer(pb.SealReply)
    assert (reply.status, reply.ballot, reply.promised) == (pb.FENCED, ballot(2), ballot(3))
    assert trial.promises == 1


def test_promise_outbid_before_it_is_durable_is_not_answered() -> None:
    trial = Trial()
    trial.seal(ballot(1))
    trial.seal(ballot(2, "a"))
    trial.wrote()
    assert trial.sent(pb.SealReply) == []
    trial.wrote()
    [(to, reply)] = trial.sent(pb.SealReply)
    assert (to, reply.ballot) == ("a", ballot(2, "a"))


def test_repeated_seal_with_the_same_ballot_is_answered() -> None:
    trial = Trial()
    for _ in range(2):
        trial.seal(ballot(1))
        trial.wrote()
    assert [reply.status for _, reply in trial.sent(pb.SealReply)] == [pb.HELD, pb.HELD]


def test_promise_contains_the_accepted_value() -> None:
    trial, value = Trial(), Trial().value()
    trial.open(ballot(1), value)
    trial.wrote()
    trial.take()
    trial.seal(ballot(2))
    trial.wrote()
    reply = trial.answer(pb.SealReply)
    assert (reply.accepted, reply.accepted_value, reply.promised) == (ballot(1), value, ballot(2))


def test_promise_contains_a_pending_accepted_value() -> None:
    """Its entry precedes the promise's in the journal, so it is durable when the promise is."""
    trial, value = Trial(), Trial().value()
    trial.open(ballot(1), value)
    trial.seal(ballot(2))
    trial.wrote()
    trial.wrote()
    [(_, reply)] = trial.sent(pb.SealReply)
    assert reply.accepted_value == value


def test_promise_after_the_epoch_ended_is_not_answered_with_the_next_epochs_log() -> None:
    trial = Trial()
    trial.seal(ballot(1))
    trial.tail = LogTail(1, 5, Position(5, 0))
    trial.take()
    trial.wrote()
    assert trial.peek() == []


@pytest.mark.parametrize(
    ("one", "sender"),
    [(ballot(0, "a"), "a"), (ballot(1, "c"), "a"), (ballot(1, "b"), "c")],
    ids=["the reserved round", "in another's name", "in this node's name"],
)
def test_invalid_seal_is_ignored(one: pb.Ballot, sender: str) -> None:
    trial = Trial()
    trial.seal(one, sender=sender)
    assert (trial.peek(), trial.promised, trial.writes) == ([], False, 0)


@pytest.mark.parametrize(("epoch", "answer"), [(0, pb.MetadataUpdate), (2, pb.EpochStatus)])
@pytest.mark.parametrize("step", ["seal", "open"])
def test_message_about_another_epoch_only_exchanges_chains(step: str, epoch: int, answer: type) -> None:
    chain = EpochChain(descriptor())
    chain.extend(decision(chain, end_of(HELD)))
    trial = Trial([], chain=chain)
    if step == "seal":
        trial.seal(ballot(1), epoch=epoch)
    else:
        trial.open(ballot(1), trial.value(), epoch=epoch)
    assert not trial.promised
    assert [type(send.message) for send in trial.take(Send)] == [answer]


@pytest.mark.parametrize("damage", ["halted", "damaged"])
def test_damaged_copy_neither_promises_nor_accepts_nor_agrees(damage: str) -> None:
    trial = Trial(doubt="damaged" if damage == "damaged" else "")
    if damage == "halted":
        trial.halt("rot")
    trial.misses = True
    trial.take()
    trial.seal(ballot(1))
    trial.open(ballot(1), trial.value())
    trial.acceptor.on_pre_vote("c", pb.PreVote(), 0)
    messages = [send.message for send in trial.take(Send)]
    assert all(
        isinstance(message, pb.SealReply | pb.OpenEpochReply | pb.PreVoteReply) and message.status == pb.IN_LIMBO
        for message in messages
    )
    assert len(messages) == 3
    assert not [message for message in messages if isinstance(message, pb.PreVoteReply) and message.agrees]
    assert (trial.promised, trial.writes) == (False, 0)


def test_node_outside_the_epoch_answers_not_held() -> None:
    trial = Trial([], chain=EpochChain(descriptor(placement=("a", "c"))))
    trial.seal(ballot(1))
    trial.open(ballot(1), trial.value(Position(0, 0)))
    assert [send.message.status for send in trial.take(Send)] == [pb.NOT_HELD] * 2  # type: ignore[union-attr]
    assert trial.writes == 0


def test_possibly_short_log_is_reported() -> None:
    trial = Trial(doubt="short")
    trial.seal(ballot(1))
    trial.wrote()
    reply = trial.answer(pb.SealReply)
    assert (reply.status, reply.short_log) == (pb.HELD, True)
    trial = Trial()
    trial.seal(ballot(1))
    trial.wrote()
    assert not trial.answer(pb.SealReply).short_log


# --- OPEN_EPOCH ----------------------------------------------------------------------------------------


def test_accept_is_durable_before_it_is_answered() -> None:
    trial = Trial()
    value = trial.value()
    trial.open(ballot(1), value)
    assert trial.replies() == []
    assert (trial.promised, trial.promises) == (True, 1)
    [entry] = trial.fences()
    assert (entry.promised, entry.accepted, entry.accepted_value) == (ballot(1), ballot(1), value)
    trial.wrote()
    [(to, reply)] = trial.sent(pb.OpenEpochReply)
    assert (to, reply.ballot, reply.status) == ("c", ballot(1), pb.HELD)


@pytest.mark.parametrize("flush", [pb.INTERVAL, pb.NEVER])
def test_log_with_unsynced_appends_is_synced_before_an_accept(flush: pb.Flush) -> None:
    trial = Trial([], chain=EpochChain(descriptor(flush=flush)))
    trial.queue(HELD)
    trial.take()
    trial.open(ballot(1), trial.value())
    assert [type(effect) for effect in trial.peek()] == [SyncLog, Send]
    assert trial.answer(pb.OpenEpochReply).status == pb.FETCHING, "syncing may take long: the candidate is to wait"
    trial.wrote()
    assert trial.peek() == []
    trial.wrote()
    assert [type(effect) for effect in trial.peek()] == [WriteFences], "the append and the sync are done before"
    trial.wrote()
    assert trial.answer(pb.OpenEpochReply).status == pb.HELD


def test_log_with_synced_or_no_appends_is_not_synced_again() -> None:
    for flush, held in ((pb.ALWAYS, HELD), (pb.NEVER, [])):
        trial = Trial(held, chain=EpochChain(descriptor(flush=flush)))
        trial.open(ballot(1), trial.value(end_of(held) if held else Position(0, 0)))
        assert [type(effect) for effect in trial.peek() if isinstance(effect, Write)] == [WriteFences]


def test_open_below_the_promise_is_refused_without_effect() -> None:
    trial = Trial()
    trial.seal(ballot(3))
    trial.wrote()
    trial.take()
    trial.open(ballot(2), trial.value())
    reply = trial.answer(pb.OpenEpochReply)
    assert (reply.status, reply.promised) == (pb.FENCED, ballot(3))
    assert trial.fence is not None
    assert (trial.fence.accepted, trial.writes, trial.fetches) == (None, 0, [])


def test_second_value_under_the_same_ballot_is_refused() -> None:
    trial = Trial()
    trial.open(ballot(1), trial.value())
    trial.wrote()
    trial.take()
    trial.open(ballot(1), trial.value(owner="c"))
    assert trial.answer(pb.OpenEpochReply).status == pb.FENCED
    trial.open(ballot(1), trial.value())
    trial.wrote()
    assert trial.answer(pb.OpenEpochReply).status == pb.HELD


@pytest.mark.parametrize("promised", [False, True])
def test_reserved_ballot_is_accepted_only_without_a_promise(*, promised: bool) -> None:
    trial = Trial()
    if promised:
        trial.seal(ballot(1))
        trial.wrote()
        trial.take()
    trial.open(RESERVED, trial.value())
    if not promised:
        trial.wrote()
    assert trial.answer(pb.OpenEpochReply).status == (pb.FENCED if promised else pb.HELD)


def test_reserved_ballot_of_another_node_is_refused() -> None:
    trial = Trial()
    for other in (ballot(0, "c"), ballot(0, "a", INCARNATION + 1)):
        trial.open(other, trial.value())
        assert trial.answer(pb.OpenEpochReply).status == pb.FENCED
    assert not trial.promised


def test_missing_log_is_fetched_under_a_promise_before_an_accept() -> None:
    trial = Trial(HELD[:1])
    trial.open(ballot(1), trial.value())
    reply = trial.answer(pb.OpenEpochReply)
    assert reply.status == pb.FETCHING
    assert trial.fence is not None
    assert (trial.fence.promised, trial.fence.accepted, trial.promises) == (ballot(1), None, 1)
    [(opening, end)] = trial.fetches
    assert (opening.sender, opening.message.ballot, end) == ("c", ballot(1), end_of(HELD))
    trial.open(ballot(1), trial.value())
    assert trial.writes == 1, "a repeated request writes no second promise"


def test_queued_appends_count_as_held_and_are_durable_before_an_accept() -> None:
    trial = Trial([])
    trial.queue(HELD)
    trial.take()
    trial.open(ballot(1), trial.value())
    assert trial.fetches == []
    assert [type(effect) for effect in trial.peek()] == [SyncLog, Send]
    assert trial.answer(pb.OpenEpochReply).status == pb.FETCHING
    trial.wrote()
    assert trial.peek() == []
    trial.wrote()
    assert trial.fences()[0].accepted == ballot(1)
    trial.wrote()
    assert trial.answer(pb.OpenEpochReply).status == pb.HELD


def test_end_after_an_append_without_disk_space_is_not_accepted() -> None:
    """It would bind the other replicas to an end that no replica may hold."""
    trial = Trial(HELD[:1])
    trial.queue(HELD[1:])
    trial.open(ballot(1), trial.value())
    trial.take()
    trial.wrote(ok=False)
    trial.wrote()
    assert trial.peek() == []
    assert trial.fence is not None
    assert trial.fence.accepted is None
    trial.open(ballot(1), trial.value())
    assert len(trial.fetches) == 1, "it is fetched when there is space"


@pytest.mark.parametrize("other", ["ballot", "value"])
def test_promises_and_accepts_during_a_sync_count(other: str) -> None:
    trial = Trial([], chain=EpochChain(descriptor(flush=pb.NEVER)))
    trial.queue(HELD)
    trial.open(ballot(1), trial.value())
    if other == "ballot":
        trial.seal(ballot(2))
    else:
        trial.open(ballot(1), trial.value(owner="c"))
    trial.take()
    for _ in range(3):
        trial.wrote()
    accepted = [entry.accepted_value for entry in trial.fences()]
    assert accepted == ([] if other == "ballot" else [trial.value()])


def test_different_content_below_the_end_halts_the_copy() -> None:
    trial = Trial(OTHERS)
    trial.open(ballot(1), trial.value())
    reply = trial.answer(pb.OpenEpochReply)
    assert reply.status == pb.DIVERGED
    assert trial.halted is not None
    assert (trial.promised, trial.writes) == (False, 0)


def test_end_inside_a_batch_is_different_content() -> None:
    trial = Trial()
    trial.open(ballot(1), trial.value(Position(3, end_of(HELD).digest)))
    assert trial.answer(pb.OpenEpochReply).status == pb.DIVERGED


def test_longer_copy_accepts_a_shorter_end() -> None:
    trial = Trial()
    trial.open(ballot(1), trial.value(end_of(HELD[:1])))
    trial.wrote()
    assert trial.answer(pb.OpenEpochReply).status == pb.HELD


def test_accept_after_the_epoch_ended_is_not_answered() -> None:
    trial = Trial()
    trial.open(ballot(1), trial.value())
    trial.tail = LogTail(1, 5, Position(5, 0))
    trial.take()
    trial.wrote()
    assert trial.peek() == []


def changed(**changes: object) -> bytes:
    value = pb.EpochDecision.FromString(Trial().value())
    after = changes.pop("next", None)
    for name, new in changes.items():
        setattr(value, name, new)
    if isinstance(after, pb.EpochDescriptor):
        value.next.MergeFrom(after)
    return value.SerializeToString()


@pytest.mark.parametrize(
    "value",
    [
        changed(epoch=1),
        changed(previous_hash=b"x" * 32),
        changed(next=pb.EpochDescriptor(epoch=2)),
        changed(next=pb.EpochDescriptor(start_offset=6)),
        changed(next=pb.EpochDescriptor(owner="z")),
        changed(next=pb.EpochDescriptor(ack_quorum=4)),
    ],
    ids=["another epoch", "another past", "skips an epoch", "a hole", "an owner without a copy", "no such quorum"],
)
def test_malformed_value_is_ignored(value: bytes) -> None:
    trial = Trial()
    trial.open(ballot(1), value)
    assert (trial.peek(), trial.promised) == ([], False)


def test_value_that_ends_before_the_epoch_is_ignored() -> None:
    chain = EpochChain(descriptor())
    chain.extend(decision(chain, end_of(HELD)))
    trial = Trial([], chain=chain)
    value = pb.EpochDecision.FromString(decision(chain, Position(5, 0)))
    value.end_offset = value.next.start_offset = 4
    trial.open(ballot(1), value.SerializeToString(), epoch=1)
    assert (trial.peek(), trial.promised) == ([], False)


def test_proposal_in_another_nodes_name_is_ignored() -> None:
    trial = Trial()
    trial.open(ballot(1, "c"), trial.value(), sender="a")
    assert (trial.peek(), trial.promised) == ([], False)


# --- PRE_VOTE ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("misses", [False, True])
def test_pre_vote_answers_whether_the_owner_is_missed_without_a_promise(*, misses: bool) -> None:
    trial = Trial()
    trial.misses = misses
    trial.acceptor.on_pre_vote("c", pb.PreVote(attempt=9), 0)
    [(to, reply)] = trial.sent(pb.PreVoteReply)
    assert (to, reply.attempt, reply.agrees, reply.status) == ("c", 9, misses, pb.HELD)
    assert not reply.HasField("promised")
    assert (trial.promised, trial.writes, trial.promises) == (False, 0, 0)


def test_probe_is_answered_by_any_node_without_agreement() -> None:
    trial = Trial([], chain=EpochChain(descriptor(placement=("a", "c"))))
    trial.misses = True
    trial.acceptor.on_pre_vote("c", pb.PreVote(attempt=9, probe=True, epoch=5), 0)
    reply = trial.answer(pb.PreVoteReply)
    assert (reply.attempt, reply.status, reply.agrees, reply.epoch) == (9, pb.HELD, False, 5)


def test_pre_vote_reply_contains_the_promised_ballot() -> None:
    trial = Trial()
    trial.seal(ballot(4))
    trial.take()
    trial.acceptor.on_pre_vote("a", pb.PreVote(), 0)
    assert trial.answer(pb.PreVoteReply).promised == ballot(4)


def test_pre_vote_about_a_decided_epoch_is_answered_with_the_chain() -> None:
    chain = EpochChain(descriptor())
    chain.extend(decision(chain, end_of(HELD)))
    trial = Trial([], chain=chain)
    trial.misses = True
    trial.acceptor.on_pre_vote("c", pb.PreVote(), 0)
    assert [type(send.message) for send in trial.take(Send)] == [pb.MetadataUpdate]


def test_own_candidate_gets_the_same_answer() -> None:
    trial = Trial()
    trial.seal(ballot(1, "b"))
    trial.wrote()
    assert trial.sent(pb.SealReply) == []
    [reply] = trial.to_self
    assert isinstance(reply, pb.SealReply)
    assert (reply.status, reply.end_offset) == (pb.HELD, 5)


@pytest.mark.parametrize(("doubt", "ceiling"), [("short", 500), ("", 0)])
def test_lost_copy_is_reported_with_its_ceiling_and_a_whole_one_without(doubt: Doubt, ceiling: int) -> None:
    trial = Trial(doubt=doubt)
    assert trial.fence is not None
    trial.fence.entry.ceiling = 500
    trial.seal(ballot(1))
    trial.wrote()
    reply = trial.answer(pb.SealReply)
    assert (reply.short_log, reply.ceiling) == (bool(doubt), ceiling)
