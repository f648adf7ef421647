"""Producer state of compacted copies is fetched from other nodes and stored."""

from __future__ import annotations

from tests.broker.core.bench import decision, end_of
from tests.broker.core.fetching_bench import FetchingBench, Past
from tests.broker.core.replication.test_backfill_versions import CompactedPast

from tidelog_broker.core.replication.effects import KeepProducers, Send
from tidelog_broker.core.replication.ports import Position
from tidelog_broker.core.replication.producers import ProducerTable
from tidelog_proto import broker_pb2 as pb

SENT = ProducerTable().snapshot()


def whole() -> FetchingBench:
    past = CompactedPast()
    return past.holding(past.newer[0], past.newer[1], past.batches[2])


def answer(trial: FetchingBench, sender: str, *, knows: bool) -> None:
    reply = pb.BackfillReply(epoch=1, status=pb.HELD if knows else pb.NOT_HELD, base_offset=8)
    if knows:
        reply.producers = SENT
    trial.backfill.on_reply(sender, reply, (), 0)


def test_state_at_the_epochs_end_is_requested_and_stored() -> None:
    trial = whole()
    producers = trial.backfill.producers
    producers.want(1, 0)
    to, ask = trial.asked()
    assert (to, ask.epoch, ask.from_offset, ask.producers) == ("a", 1, 8, True)
    answer(trial, "a", knows=True)
    decision = trial.decision(1)
    assert trial.peek() == [KeepProducers(1, 1, 8, decision.end_digest, SENT)]
    assert (producers.is_asking, producers.deadline_ms) == (True, None), "it is not on the disk yet"
    trial.wrote()
    assert (producers.is_asking, producers.deadline_ms) == (False, None)


def test_later_state_is_accepted() -> None:
    trial = whole()
    producers = trial.backfill.producers
    producers.want(1, 0)
    assert trial.asked()[1].producers_or_later
    reply = pb.BackfillReply(epoch=1, status=pb.HELD, base_offset=8, producers=SENT, end_offset=12, end_digest=7)
    reply.producers_epoch = 2
    trial.backfill.on_reply("a", reply, (), 0)
    assert trial.peek() == [KeepProducers(1, 2, 12, 7, SENT)]
    trial.wrote(ok=False)
    assert producers.is_asking, "the local log is too short, so the request is repeated"


def test_request_for_an_earlier_end_is_skipped() -> None:
    trial = whole()
    producers = trial.backfill.producers
    producers.want(1, 0)
    trial.take()
    producers.want(0, 0)
    producers.want(1, 0)
    assert trial.peek() == []


def test_state_unknown_to_all_nodes_is_dropped() -> None:
    trial = whole()
    producers = trial.backfill.producers
    producers.want(1, 0)
    for sender in ("a", "c"):
        assert (trial.asked()[0], producers.is_asking) == (sender, True)
        answer(trial, sender, knows=False)
        producers.tick(producers.deadline_ms or 0)
    assert not producers.is_asking


def test_failed_store_is_requested_again() -> None:
    trial = whole()
    producers = trial.backfill.producers
    producers.want(1, 0)
    trial.take()
    answer(trial, "a", knows=True)
    trial.wrote(ok=False)
    assert producers.is_asking
    assert producers.deadline_ms is not None
    producers.tick(producers.deadline_ms)
    assert trial.asked()[1].producers


def test_node_outside_the_placement_stops_asking() -> None:
    trial = whole()
    producers = trial.backfill.producers
    producers.want(1, 0)
    trial.take()
    trial.extend_chain(decision(trial.chain, Position(12, 0), owner="a", placement=("a", "c")))
    trial.fence = None
    producers.tick(producers.deadline_ms or 0)
    assert (producers.is_asking, trial.take(Send)) == (False, [])
    trial.extend_chain(decision(trial.chain, Position(12, 0), owner="a"))
    producers.want(1, 0)
    assert producers.is_asking


def test_state_is_requested_after_a_compacted_copy() -> None:
    past = CompactedPast()
    trial = past.holding(past.newer[0], past.batches[2], lacking=(1,))
    trial.take()
    reply = pb.BackfillReply(epoch=1, status=pb.HELD, base_offset=4, source_end_offset=8)
    reply.epoch_digest = past.newer[1][-1].header.digest
    trial.backfill.on_reply("a", reply, past.newer[1], 0)
    trial.wrote()
    trial.wrote()
    asks = [effect.message for effect in trial.take(Send) if isinstance(effect.message, pb.Backfill)]
    assert [(ask.epoch, ask.from_offset) for ask in asks if ask.producers] == [(1, 8)]
    assert Position(8, reply.epoch_digest) == trial.ends_of(1)[-1]


def test_source_with_incomplete_state_is_skipped() -> None:
    trial = whole()
    producers = trial.backfill.producers
    producers.want(1, 0)
    assert trial.asked()[0] == "a"
    partly = ProducerTable(known_from=4).snapshot()
    trial.backfill.on_reply("a", pb.BackfillReply(epoch=1, status=pb.HELD, base_offset=8, producers=partly), (), 0)
    assert (trial.peek(), producers.is_asking) == ([], True)
    producers.tick(producers.deadline_ms or 0)
    assert trial.asked()[0] == "c"


def test_state_is_requested_after_a_copy_with_a_deleted_front() -> None:
    past = Past()
    trial = past.lacking(2)
    trial.take()
    trial.backfill.raise_log_start(9, 0)
    trial.take()
    trial.reply(past.batches[2][1:], epoch=2, base=end_of(past.batches[2][:1]))
    trial.wrote()
    trial.wrote()
    asks = [effect.message for effect in trial.take(Send) if isinstance(effect.message, pb.Backfill)]
    assert [(ask.epoch, ask.from_offset) for ask in asks if ask.producers] == [(2, 12)]


def test_state_is_not_requested_for_a_copy_with_its_front() -> None:
    past = Past()
    trial = past.lacking(2)
    trial.take()
    trial.reply(past.batches[2], epoch=2)
    trial.wrote()
    trial.wrote()
    asks = [effect.message for effect in trial.take(Send) if isinstance(effect.message, pb.Backfill)]
    assert [ask for ask in asks if ask.producers] == []


def test_state_is_requested_for_a_missing_epoch_deleted_meanwhile() -> None:
    """The log continues after it, and no node has its headers any more."""
    past = Past()
    trial = past.lacking(1, held=(2,))
    trial.take()
    trial.backfill.raise_log_start(8, 0)
    asks = [effect.message for effect in trial.take(Send) if isinstance(effect.message, pb.Backfill)]
    assert [(ask.epoch, ask.from_offset) for ask in asks if ask.producers] == [(1, 8)]


def test_state_is_not_requested_without_a_log() -> None:
    trial = Past().lacking(1)
    trial.take()
    trial.backfill.raise_log_start(8, 0)
    assert not trial.backfill.producers.is_asking
