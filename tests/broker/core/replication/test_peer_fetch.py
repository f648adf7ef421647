"""A fetch: one outstanding request, only its own answer counts, and unhelpful sources are skipped."""

from __future__ import annotations

from collections import defaultdict

import pytest
from tests.broker.core.bench import KEY

from tidelog_broker.core.replication.peer_fetch import ROUNDS_FOR_THE_DEAD, PeerFetch
from tidelog_broker.core.replication.ports import Position, Timing
from tidelog_proto import broker_pb2 as pb

TIMING = Timing(peer_fetch_ms=1000, resend_ms=100, peer_fetch_bytes=4096)
AT = Position(20, 99)


def fetch(*sources: str, end: Position | None = None, producers: bool = False) -> PeerFetch:
    return PeerFetch(KEY, 4, sources or ("a", "b"), TIMING, end=end, producers=producers)


def reply(
    *, epoch: int = 4, base: int = 20, status: pb.ReplicaStatus = pb.HELD, producers: bytes = b"", source_end: int = 50
) -> pb.BackfillReply:
    return pb.BackfillReply(
        epoch=epoch, status=status, base_offset=base, producers=producers, source_end_offset=source_end
    )


def test_request_starts_at_the_position() -> None:
    ask = fetch(end=Position(80, 7)).ask(AT, 0)
    assert (ask.topic_id, ask.partition, ask.epoch) == (*KEY, 4)
    assert (ask.from_offset, ask.from_digest, ask.end_offset, ask.max_bytes) == (20, 99, 80, 4096)
    assert not ask.producers
    assert fetch().ask(AT, 0).end_offset == 0, "without an end: as far as there is"
    assert fetch(producers=True).ask(AT, 0).producers


def test_ranges_grow_to_the_usual_size() -> None:
    subject = PeerFetch(KEY, 4, ["a"], TIMING, first_bytes=1500)
    asked: list[int] = []
    for _ in range(4):
        asked.append(subject.ask(AT, 0).max_bytes)
        subject.answered()
    assert asked == [1500, 3000, 4096, 4096]
    assert PeerFetch(KEY, 4, ["a"], TIMING, first_bytes=9999).ask(AT, 0).max_bytes == 4096


def test_pause_delays_the_request_without_blaming_a_source() -> None:
    subject = fetch()
    subject.pause(500)
    assert not subject.overdue(499)
    assert subject.overdue(500)
    assert (subject.source, subject.is_exhausted) == ("a", False)


def test_requested_answer_is_expected() -> None:
    subject = fetch()
    assert not subject.expects("a", reply(), AT), "nothing was asked yet"
    subject.ask(AT, 0)
    assert subject.expects("a", reply(), AT)


@pytest.mark.parametrize(
    ("sender", "wrong"),
    [("b", reply()), ("c", reply()), ("a", reply(epoch=3)), ("a", reply(epoch=5)), ("a", reply(base=10))],
    ids=["the next source", "a stranger", "an older epoch", "a newer epoch", "another position"],
)
def test_other_answers_are_not_expected(sender: str, wrong: pb.BackfillReply) -> None:
    subject = fetch()
    subject.ask(AT, 0)
    assert not subject.expects(sender, wrong, AT)
    assert subject.expects("a", reply(), AT), "and the right one still is"


def test_refusal_is_expected_at_any_offset() -> None:
    subject = fetch()
    subject.ask(AT, 0)
    assert subject.expects("a", reply(base=0, status=pb.NOT_HELD), AT)
    assert not subject.expects("b", reply(base=0, status=pb.NOT_HELD), AT)


def test_repeated_answer_is_not_expected() -> None:
    subject = fetch()
    subject.ask(AT, 0)
    subject.answered()
    assert not subject.expects("a", reply(), AT)
    assert subject.deadline_ms is None, "the received batches are being written"
    assert not subject.overdue(10**9)
    assert subject.source == "a", "the next range is requested from the same node"


def test_batches_do_not_answer_a_producer_request() -> None:
    subject = fetch(producers=True)
    subject.ask(AT, 0)
    assert not subject.expects("a", reply(), AT)
    assert subject.expects("a", reply(producers=b"state", source_end=0), AT)
    assert subject.expects("a", reply(source_end=0), AT), "without producers the state is empty"
    assert subject.expects("a", reply(status=pb.NOT_HELD), AT)
    assert not subject.expects("a", reply(base=10, producers=b"state", source_end=0), AT), "of another position"


def test_silent_source_is_skipped_after_its_timeout() -> None:
    subject = fetch("a", "b", "c")
    subject.ask(AT, 500)
    assert subject.deadline_ms == 1500
    assert not subject.overdue(1499)
    assert (subject.overdue(1500), subject.source) == (True, "b")
    for node in ("a", "b"):
        assert not subject.expects(node, reply(), AT), "the one is too late, the other has not been asked yet"
    subject.ask(AT, 1500)
    assert subject.expects("b", reply(), AT)
    assert not subject.expects("a", reply(), AT)


def test_refusing_source_is_skipped_and_a_whole_round_waits() -> None:
    subject = fetch("a", "b")
    subject.ask(AT, 0)
    subject.declined(10)
    assert (subject.source, subject.deadline_ms) == ("b", 10)
    assert subject.overdue(10)
    assert subject.source == "b", "the one that is next has not been asked yet, so it is not given up"
    subject.ask(AT, 10)
    subject.declined(20)
    assert (subject.source, subject.deadline_ms) == ("a", 120)
    assert not subject.overdue(119)
    assert subject.overdue(120)


def alive(_node: str) -> bool:
    return True


def test_peer_fetch_is_refused_once_all_sources_answered() -> None:
    subject = fetch("a", "b", producers=True)
    subject.ask(AT, 0)
    assert subject.overdue(TIMING.peer_fetch_ms), "a is silent"
    subject.ask(AT, 1000)
    subject.declined(1001)
    assert (subject.is_exhausted, subject.refused(alive)) == (True, False)
    subject.ask(AT, 1200)
    subject.declined(1201)
    assert subject.refused(alive)
    subject.ask(AT, 1300)
    subject.answered()
    assert not subject.refused(alive), "something has come"


def test_failed_store_is_repeated_with_small_ranges_and_delays() -> None:
    subject = PeerFetch(KEY, 4, ["a", "b"], TIMING, first_bytes=1024)
    subject.answered()
    subject.answered()
    assert subject.ask(AT, 0).max_bytes == 4096
    subject.answered()
    subject.store_failed(10)
    assert (subject.source, subject.deadline_ms) == ("b", 10), "another one may have it otherwise"
    assert subject.ask(AT, 10).max_bytes == 1024
    subject.answered()
    subject.store_failed(20)
    assert (subject.source, subject.deadline_ms, subject.is_exhausted) == ("a", 20 + TIMING.peer_fetch_ms, False)
    subject.pause(500)
    assert subject.deadline_ms == 20 + TIMING.peer_fetch_ms, "the turn comes earlier, but is still too early"


def test_late_refusal_is_not_counted_again() -> None:
    subject = fetch("a", "b")
    subject.ask(AT, 0)
    subject.declined(10)
    assert not subject.expects("a", reply(status=pb.NOT_HELD), AT)
    assert not subject.expects("b", reply(status=pb.NOT_HELD), AT)


def test_unanswered_ranges_shrink_and_timeouts_grow() -> None:
    subject = PeerFetch(KEY, 4, ["a", "b"], TIMING, first_bytes=1024)
    subject.answered()
    subject.answered()
    asked: list[tuple[int, int]] = []
    now_ms = 0
    for _ in range(10):
        range_bytes = subject.ask(AT, now_ms).max_bytes
        assert subject.deadline_ms is not None
        asked.append((range_bytes, subject.deadline_ms - now_ms))
        now_ms = subject.deadline_ms
        assert subject.overdue(now_ms)
    assert [size for size, _ in asked[:4]] == [4096, 2048, 1024, 1024]
    assert [ms for _, ms in asked] == [1000, 1000, 2000, 2000, 4000, 4000, 8000, 8000, 8000, 8000]
    subject.answered()
    assert (subject.ask(AT, now_ms).max_bytes, subject.deadline_ms) == (2048, now_ms + 1000)
    subject.answered()
    assert subject.ask(AT, now_ms).max_bytes == 3072, "it grows by little from then on"


def test_ranges_of_the_open_epoch_grow_with_prompt_answers() -> None:
    timing = Timing(peer_fetch_bytes=1000, tail_bytes=6000, prompt_ms=100)
    subject = PeerFetch(KEY, 4, ["a"], timing)
    asked: list[int] = []
    for answer_ms in (0, 100, 100, 100, 101, 2000, 100):
        asked.append(subject.ask(AT, 50_000).max_bytes)
        subject.answered_tail(50_000 + answer_ms)
    assert asked == [1000, 2000, 4000, 6000, 6000, 3000, 1500]
    for _ in range(3):
        subject.answered_tail(10**9)
    assert subject.ask(AT, 0).max_bytes == 1000


def test_urgent_range_is_repeated_immediately_in_full() -> None:
    subject = fetch("a")
    for at_ms in (0, 1000, 2000, 3000):
        assert subject.ask(AT, at_ms).max_bytes == 4096
        assert subject.overdue(at_ms + 1000)


@pytest.mark.parametrize("bytes_per_ms", [2, 20])
def test_slow_links_make_progress(bytes_per_ms: int) -> None:
    """Sources answer in order, and late answers of a source that was given up are ignored."""
    timing = Timing(peer_fetch_bytes=65_536)
    subject = PeerFetch(KEY, 4, ["a", "b"], timing, end=Position(300_000, 7), first_bytes=4096)
    sent_at_ms = {"a": 0, "b": 0}
    answers = defaultdict[int, list[tuple[str, int, int]]](list)
    at, asks = 0, True
    for now_ms in range(600_000):
        if subject.overdue(now_ms) or asks:
            asks, size = False, subject.ask(Position(at, 0), now_ms).max_bytes
            done_ms = max(now_ms, sent_at_ms[subject.source]) + size // bytes_per_ms
            sent_at_ms[subject.source] = done_ms
            answers[done_ms].append((subject.source, at, size))
        for sender, base, size in answers.pop(now_ms, ()):
            if subject.expects(sender, reply(base=base), Position(at, 0)):
                at, asks = at + size, True
                subject.answered()
        if at >= 300_000:
            return
    raise AssertionError(f"only {at} bytes came")


def test_single_source_is_asked_again() -> None:
    subject = fetch("a")
    subject.ask(AT, 0)
    assert subject.overdue(1000)
    assert subject.source == "a"


def test_peer_fetch_without_sources_is_an_error() -> None:
    with pytest.raises(AssertionError):
        PeerFetch(KEY, 4, (), TIMING)


# --- steps ---------------------------------------------------------------------------------------------


def test_one_request_is_outstanding() -> None:
    subject = fetch()
    subject.ask(AT, 0)
    with pytest.raises(AssertionError, match="cannot change from asked to asked"):
        subject.ask(AT, 0)
    subject.declined(10)
    subject.ask(AT, 10)
    subject.answered()
    subject.ask(AT, 10)


def test_permanently_dead_source_is_not_waited_for() -> None:
    subject, now_ms = fetch("a", "b", producers=True), 0
    for number in range(ROUNDS_FOR_THE_DEAD):
        assert not subject.refused(lambda node: node == "b"), number
        subject.ask(AT, now_ms)
        now_ms += TIMING.peer_fetch_ms
        assert subject.overdue(now_ms), "a is silent"
        subject.ask(AT, now_ms)
        subject.declined(now_ms)
        now_ms += TIMING.resend_ms
        assert subject.overdue(now_ms)
    assert subject.refused(lambda node: node == "b")
    assert not subject.refused(alive), "it may only be slow"
