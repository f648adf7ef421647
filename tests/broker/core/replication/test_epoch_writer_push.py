"""The push window: groups sent to all, bounded memory, resumption, and timely commit offsets."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.broker.core.bench import INCARNATION, KEY, descriptor

from tidelog_broker.core.replication.effects import Send
from tidelog_broker.core.replication.epoch_writer import PushWindow
from tidelog_broker.core.replication.ports import Position, Timing
from tidelog_proto import broker_pb2 as pb

TIMING = Timing(heartbeat_ms=50, window_bytes=100)
ALL = ("a", "b", "c")


class Owner:
    """The end of an owner's log, and its push window. A group is one batch of `size` bytes and `records` records."""

    def __init__(self, placement: tuple[str, ...] = ALL) -> None:
        self.end = Position(10, 0)
        self.commit = 10
        self.pushes = PushWindow.begin(KEY, descriptor(4, start=10, placement=placement), TIMING, 0)

    def add(self, size: int, *, records: int = 1, now_ms: int = 0) -> list[Send]:
        base, self.end = self.end, Position(self.end.offset + records, self.end.digest + 1)
        send = self.pushes.add(
            base, self.end, [memoryview(bytes(size))], commit=self.commit, log_start=3, now_ms=now_ms
        )
        return [] if send is None else [send]

    def resume(self, node: str, from_offset: int) -> list[Send] | None:
        return self.pushes.resume(node, from_offset, commit=self.commit, log_start=3, now_ms=0)

    def beats(self, now_ms: int, *, alive: tuple[str, ...] = ALL) -> list[str]:
        sends = self.pushes.heartbeats(self.end, commit=self.commit, log_start=3, alive=alive, now_ms=now_ms)
        assert all(isinstance(send.message, pb.AppendBatch) and not send.batches for send in sends)
        return to(sends)

    def deadline(self, *, alive: tuple[str, ...] = ALL) -> int | None:
        return self.pushes.deadline_ms(self.end.offset, commit=self.commit, alive=alive)

    def quiet(self, now_ms: int = 0) -> None:
        """Let all replicas hold everything and know the commit offset."""
        self.commit = self.end.offset
        for node in self.pushes.followers:
            self.pushes.acknowledged(node, self.end.offset, now_ms)
            self.pushes.followers[node].sent_commit = self.commit


def test_raised_log_start_is_sent_without_a_publish() -> None:
    owner = Owner()
    owner.add(10)
    owner.quiet()
    assert owner.pushes.quiet(owner.end.offset, owner.commit)
    owner.pushes.log_start = 5
    assert not owner.pushes.quiet(owner.end.offset, owner.commit)
    deadline = owner.deadline()
    assert deadline is not None
    beats = owner.pushes.heartbeats(owner.end, commit=owner.commit, log_start=5, alive=ALL, now_ms=deadline)
    assert [(list(beat.to), append(beat).log_start_offset) for beat in beats] == [(["b"], 5), (["c"], 5)]
    owner.quiet(deadline + 1)
    assert owner.deadline() is None
    owner.pushes.log_start = 6
    owner.end = Position(owner.end.offset, 0)
    owner.pushes.add(
        owner.end, Position(12, 9), [memoryview(b"x")], commit=owner.commit, log_start=6, now_ms=deadline + 2
    )
    for node in "bc":
        assert owner.pushes.followers[node].sent_log_start == 6, "an append tells it, too"


def append(send: Send) -> pb.AppendBatch:
    assert isinstance(send.message, pb.AppendBatch)
    return send.message


def to(sends: list[Send] | None) -> list[str]:
    """Return the receivers of messages, in order."""
    return [node for send in sends or () for node in send.to]


def offsets(sends: list[Send] | None) -> list[tuple[int, int]]:
    return [(append(send).base_offset, append(send).end_offset) for send in sends or ()]


def test_group_is_sent_to_all_followers_with_its_base() -> None:
    owner = Owner()
    owner.add(8, records=2)
    sends = owner.add(30, records=3)
    assert [send.to for send in sends] == [["b", "c"]]
    message = append(sends[0])
    assert (message.topic_id, message.partition, message.epoch) == (*KEY, 4)
    assert (message.owner, message.owner_incarnation) == ("a", INCARNATION)
    assert (message.base_offset, message.end_offset) == (12, 15)
    assert (message.previous_digest, message.end_digest) == (1, 2)
    assert (message.commit_offset, message.log_start_offset, message.length) == (10, 3, 30)
    assert [len(data) for data in sends[0].batches] == [30]


def test_new_epoch_is_announced_to_all_followers() -> None:
    owner = Owner()
    assert owner.deadline() == 0
    assert owner.beats(0) == ["b", "c"]
    assert owner.beats(0) == []


def test_single_replica_keeps_no_window() -> None:
    owner = Owner(("a",))
    assert owner.add(1000) == []
    assert owner.pushes.recent_bytes == 0
    assert owner.deadline() is None


# --- the window ----------------------------------------------------------------------------------------


def test_groups_held_by_all_are_dropped() -> None:
    owner = Owner()
    for _ in range(3):
        owner.add(30)
    owner.pushes.acknowledged("b", 13, 0)
    assert owner.pushes.recent_bytes == 90, "the other one has nothing yet"
    owner.pushes.acknowledged("c", 12, 0)
    assert owner.pushes.recent_bytes == 30
    owner.pushes.acknowledged("c", 13, 0)
    assert owner.pushes.recent_bytes == 0


def test_replica_behind_the_window_is_not_pushed_to_and_does_not_affect_others() -> None:
    owner = Owner()
    for size in (40, 40):
        owner.add(size)
        owner.pushes.acknowledged("b", owner.end.offset, 0)
    assert to(owner.add(40)) == ["b"], "c lacks dropped records and has to catch up"
    assert [node for node, follower in owner.pushes.followers.items() if not follower.streaming] == ["c"]
    assert owner.pushes.recent_bytes == 80


def test_replica_that_holds_dropped_groups_keeps_streaming() -> None:
    owner = Owner()
    for size in (40, 40):
        owner.add(size)
        owner.pushes.acknowledged("b", owner.end.offset, 0)
    owner.pushes.acknowledged("c", 11, 0)
    assert to(owner.add(40)) == ["b", "c"]


def test_group_larger_than_the_window_is_pushed_and_dropped_with_the_next() -> None:
    owner = Owner()
    assert to(owner.add(500)) == ["b", "c"]
    assert owner.pushes.recent_bytes == 500
    owner.pushes.acknowledged("b", 11, 0)
    owner.pushes.acknowledged("c", 11, 0)
    assert owner.pushes.recent_bytes == 0


@given(
    st.lists(
        st.one_of(st.integers(0, 150), st.tuples(st.sampled_from("bc"), st.integers(0, 20))), min_size=1, max_size=40
    )
)
def test_memory_is_bounded_and_no_replica_gets_a_gap(
    steps: list[int | tuple[str, int]],
) -> None:
    """The kept groups fit the limit, or are only the newest one; pushed groups are contiguous."""
    owner, pushed = Owner(), {"b": 10, "c": 10}
    for step in steps:
        if isinstance(step, int):
            sends = owner.add(step)
        else:
            node, behind = step
            held = max(min(owner.end.offset, pushed[node]) - behind, owner.pushes.followers[node].held_offset)
            owner.pushes.acknowledged(node, held, 0)
            sends = owner.resume(node, held) or []
            if sends:
                pushed[node] = held
        for send in sends:
            message = append(send)
            for node in send.to:
                assert message.base_offset <= pushed[node] < message.end_offset
                pushed[node] = message.end_offset
        assert owner.pushes.recent_bytes <= TIMING.window_bytes or len(owner.pushes._recent) == 1
        for node, follower in owner.pushes.followers.items():
            assert not follower.streaming or pushed[node] == owner.end.offset, f"{node} would never get the rest"


# --- back into the window ------------------------------------------------------------------------------


def test_replica_resumes_at_its_end_in_order() -> None:
    owner = Owner()
    for records in (2, 3, 4):
        owner.add(10, records=records)
    owner.pushes.followers["c"].streaming = False
    sends = owner.resume("c", 12)
    assert offsets(sends) == [(12, 15), (15, 19)]
    assert set(to(sends)) == {"c"}
    assert owner.pushes.followers["c"].streaming
    sends = owner.add(10)
    assert (offsets(sends), to(sends)) == ([(19, 20)], ["b", "c"]), "both are pushed to again"


def test_replica_inside_a_group_gets_the_group_again() -> None:
    """A fetch may end at any batch of a group; the replica skips the batches of the group that it has."""
    owner = Owner()
    for records in (2, 3):
        owner.add(10, records=records)
    owner.pushes.followers["c"].streaming = False
    assert offsets(owner.resume("c", 13)) == [(12, 15)]


def test_replica_before_the_window_keeps_fetching() -> None:
    owner = Owner()
    for _ in range(3):
        owner.add(40)
        owner.pushes.acknowledged("b", owner.end.offset, 0)
    assert owner.resume("c", 10) is None
    assert not owner.pushes.followers["c"].streaming
    assert offsets(owner.resume("c", 11)) == [(11, 12), (12, 13)]


def test_replica_that_caught_up_is_pushed_to_again() -> None:
    """Groups held by all are kept while a replica pulls, because its fetch has to reach the window."""
    owner = Owner()
    owner.add(10)
    owner.pushes.followers["c"].streaming = False
    for node in ("b", "c"):
        owner.pushes.acknowledged(node, 11, 0)
    assert owner.resume("c", 11) == []
    sends = owner.add(10)
    assert (offsets(sends), to(sends)) == ([(11, 12)], ["b", "c"])


def test_unknown_replica_and_empty_window_do_not_resume() -> None:
    owner = Owner()
    assert owner.resume("b", 10) is None
    owner.add(10)
    assert owner.resume("a", 10) is None
    assert owner.resume("stranger", 10) is None


# --- acknowledgements ----------------------------------------------------------------------------------


def test_acknowledged_offset_never_decreases() -> None:
    owner = Owner()
    owner.add(10, records=5)
    owner.pushes.acknowledged("b", 15, 0)
    owner.pushes.acknowledged("b", 12, 0)
    owner.pushes.acknowledged("stranger", 15, 0)
    assert {node: follower.held_offset for node, follower in owner.pushes.followers.items()} == {"b": 15, "c": 10}


def test_acknowledgement_latency_is_smoothed() -> None:
    owner = Owner()
    owner.add(10, now_ms=100)
    owner.add(10, now_ms=200)
    owner.pushes.acknowledged("b", 11, 150)
    assert owner.pushes.followers["b"].latency_ms == pytest.approx(10)
    owner.pushes.acknowledged("b", 11, 9000)
    assert owner.pushes.followers["b"].latency_ms == pytest.approx(10), (
        "a repeated acknowledgement does not change the latency"
    )
    owner.pushes.acknowledged("b", 12, 300)
    assert owner.pushes.followers["b"].latency_ms == pytest.approx(28)
    owner.add(10, records=2, now_ms=400)
    owner.pushes.acknowledged("b", 13, 500)
    assert owner.pushes.followers["b"].latency_ms == pytest.approx(28), "a part of a group tells nothing"


# --- empty appends -------------------------------------------------------------------------------------


def test_commit_is_sent_once_within_50_ms_without_appends() -> None:
    owner = Owner()
    owner.beats(0)
    owner.quiet()
    owner.add(10, now_ms=1000)
    for node in ("b", "c"):
        owner.pushes.acknowledged(node, 11, 1001)
    owner.commit = 11
    deadline = owner.deadline()
    assert deadline is not None
    assert deadline <= 1001 + TIMING.heartbeat_ms
    assert owner.beats(deadline - 1) == []
    assert owner.beats(deadline) == ["b", "c"]
    owner.quiet(deadline + 1)
    assert owner.deadline() is None
    assert owner.beats(10**6) == []
    assert owner.pushes.quiet(owner.end.offset, owner.commit)
    assert not owner.pushes.quiet(owner.end.offset, owner.commit + 1)
    assert not owner.pushes.quiet(owner.end.offset + 1, owner.commit)


def test_commit_carried_by_an_append_needs_no_heartbeat() -> None:
    owner = Owner()
    owner.beats(0)
    owner.quiet()
    owner.add(10)
    owner.commit = 11
    owner.add(10)
    for node in ("b", "c"):
        owner.pushes.acknowledged(node, 12, 1)
    assert owner.deadline() is None


def test_heartbeats_repeat_until_answered() -> None:
    """The heartbeat or its acknowledgement may be lost, and readers would wait until the next publish."""
    owner = Owner()
    owner.beats(0)
    owner.quiet()
    owner.add(10)
    owner.pushes.acknowledged("b", 11, 1)
    owner.pushes.acknowledged("c", 11, 1)
    owner.commit = 11
    at_ms = owner.deadline() or 0
    assert owner.beats(at_ms) == ["b", "c"]
    owner.pushes.acknowledged("b", 11, at_ms + 1)
    again_ms = owner.deadline()
    assert again_ms is not None
    assert owner.beats(again_ms) == ["c"]


def test_replica_that_lacks_records_gets_heartbeats() -> None:
    owner = Owner()
    owner.quiet()
    for follower in owner.pushes.followers.values():
        follower.answered = True
    owner.end = Position(12, 2)
    assert owner.deadline() is not None


def test_silent_replicas_get_fewer_heartbeats_but_one_per_second() -> None:
    owner = Owner()
    owner.add(10)
    at_ms, gaps = 0, []
    while at_ms < 60_000:
        due_ms = owner.deadline(alive=("a", "c"))
        assert due_ms is not None
        if due_ms > at_ms:
            gaps.append(due_ms - at_ms)
        at_ms = due_ms
        assert owner.beats(at_ms, alive=("a", "c")) == ["c"]
    assert gaps == sorted(gaps)
    assert gaps[0] <= 4 * TIMING.heartbeat_ms
    assert gaps[-1] == 20 * TIMING.heartbeat_ms


def test_fetching_replica_gets_fewer_heartbeats_than_a_streaming_one() -> None:
    owner = Owner()
    owner.beats(0)
    owner.quiet(1000)
    owner.pushes.followers["c"].streaming = False
    owner.commit += 1
    assert owner.beats(1050) == ["b", "c"]
    due_ms = {node: follower.next_heartbeat_ms - 1050 for node, follower in owner.pushes.followers.items()}
    assert due_ms == {"b": TIMING.heartbeat_ms, "c": 4 * TIMING.heartbeat_ms}


def test_replica_that_returns_after_long_silence_gets_the_commit_soon() -> None:
    owner = Owner()
    owner.add(10)
    owner.beats(60_000)
    owner.commit = 11
    owner.pushes.acknowledged("c", 11, 60_010)
    assert owner.pushes.followers["c"].next_heartbeat_ms <= 60_010 + TIMING.heartbeat_ms


def test_nothing_is_sent_to_dead_replicas() -> None:
    owner = Owner()
    assert owner.beats(1000, alive=("a", "b")) == ["b"]
    assert owner.deadline(alive=("a",)) is None


def test_heartbeat_contains_the_end_and_the_commit() -> None:
    owner = Owner()
    owner.add(10, records=4)
    owner.commit = 13
    [beat, _] = owner.pushes.heartbeats(owner.end, commit=13, log_start=3, alive=ALL, now_ms=60)
    message = append(beat)
    assert (message.base_offset, message.end_offset, message.length) == (14, 14, 0)
    assert (message.previous_digest, message.end_digest) == (1, 1)
    assert (message.commit_offset, message.log_start_offset) == (13, 3)


def test_lag_is_the_age_of_the_unreached_log_end() -> None:
    owner = Owner()
    slow = owner.pushes.followers["b"]

    def hold(offset: int, now_ms: int) -> None:
        owner.pushes.acknowledged("b", offset, now_ms)

    assert slow.lag_ms(1000) == 0, "nothing is lacking"
    owner.add(1, now_ms=1000)
    owner.add(1, now_ms=1500)
    assert slow.lag_ms(4000) == 3000
    hold(11, 4000)
    assert slow.lag_ms(4500) == 500, "it has what there was at 1000, and perhaps not what there is now"
    owner.add(1, now_ms=5000)
    hold(12, 6000)
    assert slow.lag_ms(6000) == 0
    owner.add(1, now_ms=6100)
    hold(13, 6500)
    hold(14, 6600)
    assert slow.lag_ms(60_000) == 0, "idle and whole"
    owner.add(1, now_ms=70_000)
    assert slow.lag_ms(70_001) == 1, "idle time does not count as lag"


def test_lag_of_a_steady_follower_is_bounded_by_its_delay() -> None:
    owner = Owner()
    slow = owner.pushes.followers["b"]
    lags = []
    for step in range(100):
        owner.add(1, now_ms=100 * step)
        if step > 5:
            owner.pushes.acknowledged("b", owner.end.offset - 5, 100 * step)
            lags.append(slow.lag_ms(100 * step))
    assert (min(lags), max(lags)) == (0, 400)


def test_smaller_window_applies_immediately_and_a_larger_one_later() -> None:
    owner = Owner()
    for _ in range(2):
        owner.add(40)
    owner.pushes.bound(50)
    assert owner.pushes.recent_bytes == 40
    assert not owner.pushes.followers["b"].streaming, "the records that it lacks are no longer in memory"
    owner.pushes.bound(1000)
    for _ in range(20):
        owner.add(40)
    assert owner.pushes.recent_bytes == 840


def test_heartbeat_contains_the_receivers_acknowledged_offset() -> None:
    owner = Owner()
    owner.add(10, records=5)
    owner.pushes.acknowledged("b", 13, 0)
    sends = owner.pushes.heartbeats(owner.end, commit=owner.commit, log_start=3, alive=ALL, now_ms=10_000)
    said = [(send.to, send.message.acknowledged_offset) for send in sends if isinstance(send.message, pb.AppendBatch)]
    assert said == [(("b",), 13), (("c",), 10)]
