"""The tail: queued batches become durable in order or are discarded; others are refused."""

from __future__ import annotations

import pytest
from tests.broker.core.bench import INCARNATION, Log, descriptor, end_of, ends_of, run_of

from tidelog_broker.core.replication.ports import Batch, Position
from tidelog_broker.core.replication.replica_state import RECENT_BATCHES, BrokenRunError, LogTail, check_run
from tidelog_proto import broker_pb2 as pb

EPOCH = descriptor(4, start=10)
START = Position(10, 0)


def tail() -> LogTail:
    return LogTail(4, 10, START)


def positions(*offsets: int) -> list[Position]:
    return [Position(offset, offset * 1000) for offset in offsets]


class DigestLog(Log):
    """A log that knows every digest, and records the requests."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[tuple[int, int]] = []

    def digest_at(self, epoch: int, offset: int) -> int | None:
        self.asked.append((epoch, offset))
        return 77


def test_queued_batches_are_durable_only_when_written() -> None:
    subject = tail()
    subject.extend(positions(12, 15))
    assert (subject.queued.offset, subject.durable.offset) == (15, 10)
    subject.wrote(Position(12, 12000))
    assert (subject.queued.offset, subject.durable.offset) == (15, 12)
    subject.wrote(Position(15, 15000))
    assert subject.durable == subject.queued


def test_neither_end_decreases_and_only_queued_batches_become_durable() -> None:
    subject = tail()
    subject.extend(positions(12))
    subject.wrote(Position(12, 12000))
    for end in (Position(11, 0), Position(13, 0)):
        with pytest.raises(AssertionError):
            subject.wrote(end)
    with pytest.raises(AssertionError):
        subject.extend(positions(12))
    with pytest.raises(AssertionError):
        LogTail(4, 10, Position(9, 0))


def test_digests_are_known_only_at_batch_boundaries() -> None:
    subject, log = tail(), DigestLog()
    subject.extend(positions(12, 15))
    assert [subject.digest_at(offset, log) for offset in (10, 12, 15)] == [0, 12000, 15000]
    assert [subject.digest_at(offset, log) for offset in (11, 13, 16)] == [None, None, None]
    assert log.asked == [], "batches in memory are not read from the log"


def test_digests_of_old_boundaries_are_read_from_the_log() -> None:
    subject, log = tail(), DigestLog()
    subject.extend(positions(*range(11, 12 + RECENT_BATCHES)))
    oldest = subject.queued.offset - RECENT_BATCHES + 1
    assert subject.digest_at(oldest, log) == oldest * 1000
    assert log.asked == []
    assert subject.digest_at(oldest - 1, log) == 77
    assert log.asked == [(4, oldest - 1)]
    assert subject.digest_at(10, log) == 0, "an epoch begins with the digest 0, whatever is kept"


def test_digests_before_the_initial_end_are_read_from_the_log() -> None:
    subject, log = LogTail(4, 10, Position(15, 15000)), DigestLog()
    assert subject.digest_at(15, log) == 15000
    assert subject.digest_at(12, log) == 77


def test_batches_without_disk_space_are_discarded_and_replaced() -> None:
    subject, log = tail(), Log()
    subject.extend(positions(12, 15, 18))
    subject.wrote(Position(12, 12000))
    subject.rewind()
    assert (subject.queued, subject.durable) == (Position(12, 12000), Position(12, 12000))
    assert subject.rewinds == 1
    assert subject.digest_at(15, log) is None
    subject.extend([Position(15, 1), Position(19, 2)])
    assert [subject.digest_at(offset, log) for offset in (12, 15, 18, 19)] == [12000, 1, None, 2]


def test_rewind_past_all_remembered_digests_knows_the_durable_end() -> None:
    subject, log = tail(), Log()
    subject.extend(positions(12))
    subject.wrote(Position(12, 12000))
    subject.extend(positions(*range(13, 14 + RECENT_BATCHES)))
    subject.rewind()
    assert subject.digest_at(12, log) == 12000
    subject.extend(positions(13))
    assert subject.digest_at(13, log) == 13000


# --- check_run -----------------------------------------------------------------------------------------


def check(batches: list[Batch], *, base: Position = START) -> list[Position]:
    return check_run(batches, epoch=4, owner_incarnation=INCARNATION, base=base)


def test_contiguous_batches_return_their_end_positions() -> None:
    batches = run_of(EPOCH, 2, 1, 5)
    ends = check(batches)
    assert ends == ends_of(batches)
    assert [end.offset for end in ends] == [12, 13, 18]
    assert check(batches[1:], base=ends[0]) == ends[1:]
    assert check([]) == []


@pytest.mark.parametrize(
    "other",
    [descriptor(5, start=10), descriptor(3, start=10), descriptor(4, start=10, incarnation=INCARNATION + 1)],
    ids=["later epoch", "earlier epoch", "another start of the owner"],
)
def test_batches_of_another_epoch_or_owner_are_refused(other: pb.EpochDescriptor) -> None:
    with pytest.raises(BrokenRunError):
        check(run_of(other, 2))


def test_gaps_and_repetitions_are_refused() -> None:
    batches = run_of(EPOCH, 2, 1, 5)
    for wrong in ([batches[1]], [batches[0], batches[2]], [batches[0], batches[0]], batches[::-1]):
        with pytest.raises(BrokenRunError):
            check(wrong)
    with pytest.raises(BrokenRunError):
        check(batches[:1], base=Position(12, batches[0].header.digest))
    with pytest.raises(BrokenRunError):
        check(run_of(descriptor(4, start=12), 2))  # the digest follows: only the offset tells


def test_different_history_before_the_batches_is_refused() -> None:
    batches, others = run_of(EPOCH, 2, 1), run_of(EPOCH, 2, 1, fill=b"other")
    assert end_of(batches[:1]).offset == end_of(others[:1]).offset
    with pytest.raises(BrokenRunError):
        check(batches[1:], base=end_of(others[:1]))
    with pytest.raises(BrokenRunError):
        check([others[0], batches[1]])


def test_wrong_digest_is_refused() -> None:
    [batch] = run_of(EPOCH, 2)
    changed = bytearray(batch.data)
    changed[24] ^= 1  # the body's CRC, which the digest covers
    with pytest.raises(BrokenRunError):
        check([Batch(batch.header, memoryview(changed))])
    with pytest.raises(BrokenRunError):
        check([Batch(batch.header._replace(digest=batch.header.digest ^ 1), batch.data)])
