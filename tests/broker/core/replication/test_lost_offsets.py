"""Batches that fill the offsets of lost records: they are contiguous, and compaction does not make them."""

from __future__ import annotations

from tests.broker.core.bench import ballot, descriptor
from tests.broker.core.ownership_bench import Trial

from tidelog_broker.core.replication.effects import Append, Send
from tidelog_broker.core.replication.lost_offsets import filling, is_filling
from tidelog_broker.core.replication.ports import Batch, Position
from tidelog_broker.core.replication.producers import ProducerTable
from tidelog_broker.core.replication.replica_state import check_run
from tidelog_proto.batch.derived_batch import SPAN_MAX, Deriver
from tidelog_proto.batch.header import unpack_header
from tidelog_proto.batch.verification import verify_stored


def test_filling_covers_the_offsets_and_is_a_valid_run() -> None:
    active, base = descriptor(), Position(7, 99)
    filled = filling(active, base, 2 * SPAN_MAX, 5)
    headers = [verify_stored(batch) for batch in filled.batches]
    assert [(header.base_offset, header.end_offset) for header in headers] == [
        (7, 7 + SPAN_MAX),
        (7 + SPAN_MAX, 2 * SPAN_MAX),
    ]
    run = [Batch(header, batch) for header, batch in zip(headers, filled.batches, strict=True)]
    found = check_run(run, epoch=active.epoch, owner_incarnation=active.owner_incarnation, base=base)
    assert found == filled.ends
    assert all(map(is_filling, headers))
    assert filling(active, base, 7, 5).batches == []


def test_batch_left_by_compaction_is_not_a_filling() -> None:
    deriver = Deriver(3, epoch=1)
    deriver.skip_to(9)
    [left] = deriver.finish()
    assert not is_filling(unpack_header(left))


def test_owner_fills_the_offsets_of_lost_records_before_anything_else() -> None:
    trial = Trial(lost_until=90)
    trial.ownership.rebuilt(trial.begin(), ProducerTable(), 7, 0)
    assert (trial.role, trial.owner) == ("opening", None), "nothing is assigned before the batch is durable"
    [append] = trial.take(Append)
    assert (append.base_offset, append.end_offset) == (5, 90)
    trial.wrote()
    assert trial.role == "owner"
    [sent] = [send for send in trial.take(Send) if send.batches]
    assert (sent.to, sent.batches) == (["a", "c"], append.batches)
    trial.publish(2)
    [append] = trial.take(Append)
    assert (append.base_offset, append.end_offset) == (90, 92)


def test_filling_is_repeated_while_there_is_no_space_and_not_after_a_promise() -> None:
    trial = Trial(lost_until=90)
    trial.ownership.rebuilt(trial.begin(), ProducerTable(), 7, 0)
    trial.take()
    trial.wrote(ok=False)
    assert trial.role == "opening"
    assert trial.ownership.deadline_ms() == trial.timing.peer_fetch_ms
    trial.ownership.tick(trial.timing.peer_fetch_ms)
    assert len(trial.take(Append)) == 1
    trial.wrote(ok=False)
    assert trial.fence is not None
    trial.fence.promise(ballot(1))
    trial.ownership.tick(9 * trial.timing.peer_fetch_ms)
    assert not trial.take(Append)
